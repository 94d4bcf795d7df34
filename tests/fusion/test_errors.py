"""Mistakes and failures with work pending: the user's line, nothing lost, everything usable afterwards."""

from __future__ import annotations

import traceback

import pytest
import torch

from torchtpu import errors, modes
from torchtpu.program import Program


def line_of(error: BaseException) -> str:
    """The source of the last line of this file in a traceback."""
    return [f.line for f in traceback.extract_tb(error.__traceback__) if f.filename == __file__][-1]


def test_a_shape_error_is_raised_at_the_line_that_made_it(mode):
    a = torch.ones(3, 6, device="tpu")
    c = torch.ones(4, 2, device="tpu")
    with pytest.raises(RuntimeError, match=r"3\D+6\D+4\D+2") as caught:
        a @ c
    assert line_of(caught.value) == "a @ c"
    assert (a + 1).sum().item() == 36


def test_an_allocation_that_is_too_large_is_refused_when_it_is_written(mode):
    with pytest.raises(torch.OutOfMemoryError, match="GiB") as caught:
        torch.ones(1 << 50, device="tpu")
    assert line_of(caught.value) == 'torch.ones(1 << 50, device="tpu")'
    x = torch.ones(1 << 10, 1, device="tpu")
    with pytest.raises(torch.OutOfMemoryError):
        x.expand(1 << 10, 1 << 30) * 2.0
    assert x.sum().item() == 1024


def test_an_error_in_backward_leaves_the_engine_usable(mode):
    class Fails(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * 2

        @staticmethod
        def backward(ctx, grad):
            raise KeyError("in backward")

    x = torch.ones(3, device="tpu", requires_grad=True)
    with pytest.raises(KeyError, match="in backward"):
        (Fails.apply(x * 3) * 4).sum().backward()
    (x * 5).sum().backward()
    assert x.grad.tolist() == [5, 5, 5]


def test_a_program_that_cannot_be_compiled_names_its_line_and_keeps_the_rest(monkeypatch):
    x = torch.ones(5, device="tpu")
    real = Program.__init__

    def refuse(self, name, nodes, *rest):
        if any(n.op == "aten::sinh" for n in nodes):
            raise errors.CompileError("no sinh today")
        real(self, name, nodes, *rest)

    monkeypatch.setattr(Program, "__init__", refuse)
    with modes.scope("defer_and_fuse"):
        good = x + 1
        bad = good.sinh()
        worse = bad * 2
        other = good * 3
        with pytest.raises(errors.CompileError, match=r"no sinh today \(recorded at test_errors.py:\d+: bad = good.sinh\(\)\)"):
            modes.flush("test")
        assert good.tolist() == [2] * 5
        assert other.tolist() == [6] * 5
        for lost in (bad, worse):
            with pytest.raises(errors.CompileError, match="no sinh today"):
                lost.cpu()


def test_an_interrupt_while_compiling_loses_nothing(monkeypatch):
    x = torch.ones(7, device="tpu")
    real = Program.__init__
    interrupted = []

    def interrupt(self, *arguments):
        if not interrupted:
            interrupted.append(True)
            raise KeyboardInterrupt
        real(self, *arguments)

    with modes.scope("defer_and_fuse"):
        y = (x * 7 + 2).abs()
        monkeypatch.setattr(Program, "__init__", interrupt)
        with pytest.raises(KeyboardInterrupt):
            y.cpu()
        assert y.tolist() == [9] * 7


def test_the_mode_is_restored_after_an_error():
    assert modes.current().label == "strict"
    with pytest.raises(ZeroDivisionError), modes.scope("defer_and_fuse"):
        y = torch.ones(2, device="tpu") + 1
        raise ZeroDivisionError
    assert modes.current().label == "strict"
    assert y.tolist() == [2, 2]


def test_an_error_that_comes_out_while_printing_leaves_transforms_as_they_were(monkeypatch):
    from torchtpu import transfer

    def fail(*_):
        raise RuntimeError("not readable")

    x = torch.ones(3, device="tpu")
    with monkeypatch.context() as patch:
        patch.setattr(transfer, "to_host", fail)
        with pytest.raises(RuntimeError, match="not readable") as caught:  # holds the traceback, as a notebook does
            print(x)
    assert torch.func.jacfwd(torch.sin)(x).shape == (3, 3)
    assert caught.tb is not None
