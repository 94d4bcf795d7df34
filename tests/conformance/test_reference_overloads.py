"""Every ATen overload of the reference (torch_tpu 0.2.0) reaches XLA, or is listed with the reason why not."""

from __future__ import annotations

from tests.conformance import declared, overloads


def test_overloads_of_the_reference() -> None:
    missing = {name for name in overloads.reference() if overloads.route(name) in ("missing", "absent")}
    assert missing - declared.OVERLOADS.keys() == set(), "neither native nor decomposed, and not explained"
    assert declared.OVERLOADS.keys() - missing == set(), "explained as missing, and there"
