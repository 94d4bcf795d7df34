"""Random programs: those of a fixed seed, which are the same on every run."""

from __future__ import annotations

from hypothesis.stateful import run_state_machine_as_test

from tests.views.machine import Views
from tests.views.runs import FIXED


def test_random_programs() -> None:
    run_state_machine_as_test(Views, settings=FIXED)
