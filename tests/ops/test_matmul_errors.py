"""Products of shapes and dtypes that do not fit are refused in the CPU's words, in every mode."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F


def f(*shape, dtype=torch.float32):
    return lambda device: torch.zeros(shape, dtype=dtype, device=device)


half, double = torch.bfloat16, torch.float64
CASES = {
    "mm": (torch.mm, f(2, 3), f(2, 3)),
    "mm rank": (torch.mm, f(2, 3), f(3)),
    "mm ranks": (torch.mm, f(3), f(3)),
    "mm dtype": (torch.mm, f(2, 3), f(3, 2, dtype=double)),
    "mm out": (lambda a, b: torch.mm(a, b, out=a.new_empty(2, 2)), f(2, 3), f(2, 3)),
    "matmul": (torch.matmul, f(3, 6), f(4, 2)),
    "matmul vector": (torch.matmul, f(2, 3), f(2)),
    "matmul vectors": (torch.matmul, f(2), f(3)),
    "matmul batches": (torch.matmul, f(2, 3, 4), f(2, 5, 4)),
    "matmul batch sizes": (torch.matmul, f(2, 3, 4), f(3, 4, 4)),
    "matmul folded": (torch.matmul, f(2, 3, 4), f(5, 4)),
    "linear": (F.linear, f(2, 3), f(4, 5)),
    "linear bias": (F.linear, f(2, 3), f(4, 5), f(4)),
    "linear batch": (F.linear, f(2, 2, 3), f(4, 5), f(4)),
    "linear vector": (F.linear, f(3), f(4, 5), f(4)),
    "linear dtype": (F.linear, f(2, 3), f(4, 3, dtype=half)),
    "addmm": (torch.addmm, f(2), f(2, 3), f(4, 5)),
    "addmm addend": (torch.addmm, f(7), f(2, 3), f(3, 5)),
    "addmm dtype": (torch.addmm, f(2), f(2, 3), f(3, 2, dtype=half)),
    "addmm_": (lambda c, a, b: c.addmm_(a, b), f(2, 2), f(2, 3), f(2, 3)),
    "bmm": (torch.bmm, f(2, 3, 4), f(2, 3, 4)),
    "bmm sizes": (torch.bmm, f(2, 3, 4), f(3, 4, 4)),
    "bmm rank": (torch.bmm, f(2, 3), f(3, 4, 4)),
    "bmm dtype": (torch.bmm, f(2, 3, 3), f(2, 3, 3, dtype=half)),
    "baddbmm": (torch.baddbmm, f(2, 3, 4), f(2, 3, 4), f(2, 3, 4)),
    "baddbmm addend": (torch.baddbmm, f(9), f(2, 3, 4), f(2, 4, 4)),
    "mv": (torch.mv, f(2, 3), f(2)),
    "mv rank": (torch.mv, f(2, 2), f(2, 2)),
    "mv dtype": (torch.mv, f(3, 3), f(3, dtype=half)),
    "addmv": (torch.addmv, f(2), f(2, 3), f(4)),
    "addmv addend": (torch.addmv, f(5), f(2, 3), f(3)),
    "dot": (torch.dot, f(2), f(3)),
    "dot rank": (torch.dot, f(2, 2), f(3)),
    "dot dtype": (torch.dot, f(2), f(2, dtype=double)),
    "vdot": (torch.vdot, f(2), f(3)),
}


@pytest.mark.parametrize("name", CASES)
def test_in_the_words_of_the_cpu(name, mode):
    call, *makers = CASES[name]
    with pytest.raises(RuntimeError) as on_cpu:
        call(*(make("cpu") for make in makers))
    with pytest.raises(RuntimeError) as on_tpu:
        call(*(make("tpu") for make in makers))
    assert str(on_tpu.value) == str(on_cpu.value)


def test_what_fits_is_computed(mode):
    a, b = (torch.ones(n, m, device="tpu") for n, m in ((2, 3), (3, 4)))
    assert torch.addmm(torch.ones(1, 4, device="tpu"), a, b).tolist() == [[4.0] * 4] * 2
    assert torch.addmm(torch.ones((), device="tpu"), a, b)[0, 0].item() == 4
    assert torch.baddbmm(torch.ones(4, device="tpu"), a.expand(2, 2, 3), b.expand(2, 3, 4)).sum().item() == 64
    assert torch.mm(torch.ones(0, 3, device="tpu"), b).shape == (0, 4)
