"""Waits for the device are listed with what asked for them: bool, float, item, tolist, ..."""

import math

import pytest
import torch

import torchtpu
from torchtpu.reads import kind


def kinds(read):
    t = torch.tensor([2.0], device="tpu") * 1
    with torchtpu.watch() as report:
        read(t)
    return [s.kind for s in report.syncs if s.kind not in ("debug", "synchronize")]


def branch(t):
    if t > 0:
        pass
    while t < 0:
        pass
    return t or 5, not t, 1 if t else 0


READS = [
    (branch, ["bool"] * 5),
    (lambda t: bool(t), ["bool"]),
    (lambda t: max(t, t - 1), ["bool"]),
    (lambda t: t and t, ["bool"]),
    (lambda t: sorted([t, t - 1]), ["bool"]),
    (lambda t: float(t), ["float"]),
    (lambda t: math.sqrt(t.mean()), ["float"]),
    (lambda t: int(t[0]), ["int"]),
    (lambda t: [1, 2, 3][t.int()], ["int"]),
    (lambda t: t.item(), ["item"]),
    (lambda t: t.sum().item() + 1, ["item"]),
    (lambda t: f"{t.sum():.2f}", ["format"]),
    (lambda t: t.tolist(), ["tolist"]),
    (lambda t: t.mul(2).tolist()[0], ["tolist"]),
    (lambda t: t.cpu(), ["to_host"]),
    (lambda t: t.to("cpu").numpy(), ["to_host"]),
    (lambda t: float(t.item()), ["item"]),
    (lambda t: print(t), ["print"]),
    (lambda t: f"{t}", ["print"]),
    (lambda t: torch.from_dlpack(t), ["dlpack"]),
]


@pytest.mark.parametrize(("read", "expected"), READS)
def test_kind_of_a_read(read, expected, mode):
    assert kinds(read) == expected


def test_every_wait_has_its_line():
    loss = torch.ones(4, 4, device="tpu")
    with torchtpu.watch() as report:
        for _ in range(3):
            loss = loss * 2
            last = loss.mean().item()  # the read
    assert last == 8
    assert [s.line.source for s in report.syncs] == ["last = loss.mean().item()  # the read"] * 3
    assert all(s.seconds >= 0 and s.nbytes == 4 for s in report.syncs)


def test_without_an_origin_the_kernel_names_it():
    assert kind(None, "item") == "item"


def test_waits_can_be_forbidden(mode):
    t = torch.ones(2, device="tpu") * 2
    assert torch.tpu.get_sync_debug_mode() == 0
    try:
        torch.tpu.set_sync_debug_mode("error")
        with pytest.raises(
            RuntimeError, match=r"tolist waits for the device \(test_reads.py:\d+: t.tolist\(\)\), which .* forbids"
        ):
            t.tolist()
        with pytest.raises(RuntimeError, match="bool waits"):
            max(t[0], t[1])
        torch.tpu.synchronize()
        t.add_(1)
        torch.tpu.set_sync_debug_mode(1)
        with pytest.warns(RuntimeWarning, match="item waits for the device"):
            assert t[0].item() == 3
    finally:
        torch.tpu.set_sync_debug_mode("default")
    assert t.tolist() == [3, 3]
    with pytest.raises(ValueError, match="use one of default, warn, error, or 0, 1, 2"):
        torch.tpu.set_sync_debug_mode("strict")
