"""A tensor on `tpu` is a plain tensor: making, moving, converting, printing and reading it."""

import copy
import re

import numpy as np
import pytest
import torch
from torch import nn

import torchtpu
from torchtpu.dtypes import XLA

pytestmark = pytest.mark.usefixtures("mode")

TPU = torch.device("tpu", 0)


def test_make():
    assert type(torch.ones(2, device="tpu")) is torch.Tensor
    for t in (
        torch.empty(2, 3, device="tpu"),
        torch.zeros(2, 3, device="tpu:0"),
        torch.tensor([1, 2], device="tpu"),
        torch.as_tensor([1.5], device="tpu"),
        torch.empty_strided((2, 3), (1, 4), device=torch.device("tpu")),
        torch.zeros_like(torch.ones(2), device="tpu"),
        torch.ones(2, device="tpu").new_zeros(3),
        torch.nn.Linear(2, 2, device="tpu").weight,
    ):
        assert t.device == TPU
        assert t.is_tpu
        assert t.get_device() == 0


def test_make_on_the_default_device():
    with torch.device("tpu"):
        assert torch.ones(2).device == TPU
        assert nn.Linear(1, 1).bias.device == TPU
    torch.set_default_device("tpu")
    try:
        assert torch.arange(3).device == TPU
        assert torch.tensor(1).device == TPU
    finally:
        torch.set_default_device(None)
    assert torch.ones(2).device.type == "cpu"


def test_move():
    host = torch.arange(6.0).view(2, 3)
    for there in (host.to("tpu"), host.tpu(), host.to(TPU, non_blocking=True), torch.as_tensor(host, device="tpu")):
        assert there.device == TPU
        for back in (there.cpu(), there.to("cpu"), torch.as_tensor(there, device="cpu"), torch.tensor(there.tolist())):
            assert back.device.type == "cpu"
            assert torch.equal(back, host)
    there = host.to("tpu")
    assert there.to("tpu") is there
    assert torch.as_tensor(there) is there
    assert torch.equal(there.clone().detach().cpu(), host)


def test_a_copy_is_private_on_both_sides():
    array = np.arange(16, dtype=np.float32)
    there = torch.from_numpy(array).to("tpu")
    array[0] = 99
    back = there.cpu()
    back[1] = 99
    assert there.tolist() == list(range(16))


def test_move_and_convert():
    there = torch.from_numpy(np.array([0.4, 1.6, -2.5])).to("tpu", torch.int32)
    assert there.dtype == torch.int32
    assert there.tolist() == [0, 1, -2]
    assert there.to(torch.bool).tolist() == [False, True, True]
    assert there.cpu().double().tolist() == [0, 1, -2]
    assert there.to("cpu", torch.float16).dtype == torch.float16


@pytest.mark.parametrize("dtype", XLA, ids=str)
def test_every_dtype_moves_unchanged(dtype):
    bits = torch.arange(64, dtype=torch.uint8)
    host = (bits % 2).bool() if dtype == torch.bool else bits.view(dtype)
    back = host.to("tpu").cpu()
    assert back.dtype == dtype
    assert torch.equal(back.view(torch.uint8), host.view(torch.uint8))


def test_memory_formats():
    host = torch.rand(2, 3, 4, 5).to(memory_format=torch.channels_last)
    there = host.to("tpu")
    assert there.is_contiguous(memory_format=torch.channels_last)
    assert there.cpu().stride() == host.stride()
    assert torch.equal(there.contiguous().cpu(), host)
    assert host.contiguous().to("tpu", memory_format=torch.channels_last).stride() == host.stride()
    assert torch.equal(host.to("tpu", memory_format=torch.contiguous_format).cpu(), host)
    assert torch.empty((2, 3, 4, 5), device="tpu", memory_format=torch.channels_last).stride() == host.stride()


def test_strided_and_broadcast_copies():
    host = torch.arange(24.0).view(2, 3, 4)
    there = host.to("tpu")
    assert torch.equal(host.transpose(0, 2)[::2].to("tpu").cpu(), host.transpose(0, 2)[::2])
    assert torch.equal(torch.ones(1).expand(3).to("tpu").cpu(), torch.ones(3))
    there[:, 1] = torch.tensor([9.0, 8, 7, 6])  # from the host, broadcast, into a view
    host[:, 1] = torch.tensor([9.0, 8, 7, 6])
    assert torch.equal(there.cpu(), host)
    target = torch.zeros(2, 3, 4)
    target.transpose(0, 2).copy_(there.transpose(0, 2))  # to the host, into a view
    assert torch.equal(target, host)


def test_read():
    t = torch.tensor([3.5, 0.0], device="tpu")
    assert t[0].item() == 3.5
    assert float(t[0]) == 3.5
    assert int(t[0]) == 3
    assert complex(t[0]) == 3.5
    assert bool(t[0])
    assert not t[1]
    assert f"{t[0]:.2f}" == "3.50"
    assert t.tolist() == [3.5, 0.0]
    assert [10, 11, 12, 13][t[0].int()] == 13
    assert torch.tensor(7, device="tpu") == 7
    with pytest.raises(RuntimeError, match="cannot be converted to Scalar"):
        t.item()
    with pytest.raises(RuntimeError, match="ambiguous"):
        bool(t)


def test_print_is_that_of_the_cpu():
    for host in (
        torch.arange(12.0).view(3, 4),
        torch.tensor(2),
        torch.rand(50, 50),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.tensor([1 + 2j]).conj(),
        torch.ones(0, 3),
        torch.ones(3, dtype=torch.bfloat16),
        torch.ones(3, dtype=torch.float8_e5m2),
        torch.ones(2, 3).t(),
    ):
        printed = repr(host.to("tpu"))
        assert "device='tpu:0'" in printed
        assert re.sub(r",\s+device='tpu:0'", "", printed) == repr(host)
    assert repr(nn.Parameter(torch.ones(1, device="tpu"))).startswith("Parameter containing:\ntensor([1.], device='tpu:0'")


def test_inspection_and_print_compile_nothing():
    t = torch.ones(100, 100, device="tpu") * 3
    with torchtpu.watch() as report:
        t.shape, t.dtype, t.device, type(t), dir(t), t.is_floating_point(), len(t)
        assert not hasattr(t, "__array_interface__")
    assert report.compile_events == ()
    assert len(report.syncs) == 0
    with torchtpu.watch() as report:
        repr(t), str(t[:, 1:7]), format(t.t())
    assert report.compile_events == ()
    assert {s.kind for s in report.syncs} == {"print"}


def test_numpy_is_refused_as_on_every_device():
    t = torch.ones(3, device="tpu")
    for convert in (t.numpy, lambda: np.asarray(t)):
        with pytest.raises(TypeError, match=r"can't convert tpu:0 device type tensor to numpy. Use Tensor.cpu\(\)"):
            convert()
    assert t.numpy(force=True).tolist() == [1, 1, 1]


def test_modules_move_and_keep_their_parameters():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    weight = model[0].weight
    expected = weight.tolist()
    model.tpu()
    assert model[0].weight is weight
    assert weight.device == TPU
    assert weight.tolist() == expected
    assert model[1].running_mean.device == TPU
    assert model.cpu()[0].weight.tolist() == expected


def test_storage():
    t = torch.arange(4, dtype=torch.int32, device="tpu")
    s = t.untyped_storage()
    assert s.device == TPU
    assert s.nbytes() == len(s) == 16
    assert s.tolist() == [0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0]
    assert s[4] == 1
    assert s.data_ptr() == t.data_ptr() != torch.ones(1, device="tpu").data_ptr()
    assert t[1:].data_ptr() == t.data_ptr() + 4
    assert s.clone().tolist() == s.cpu().tolist() == s.tolist()
    assert s.clone().data_ptr() != s.data_ptr()
    assert not s.is_pinned()
    assert torch.UntypedStorage(3, device="tpu").copy_(torch.UntypedStorage([1, 2, 3])).tolist() == [1, 2, 3]
    assert torch.UntypedStorage([7, 8], device="tpu").tolist() == [7, 8]
    assert s.new().device == TPU
    swapped = s.clone()
    swapped.byteswap(torch.int32)
    assert swapped.tolist()[4:8] == [0, 0, 0, 1]
    assert s.fill_(0) is s
    assert t.tolist() == [0, 0, 0, 0]


def test_resize_storage():
    t = torch.arange(4.0, device="tpu")
    view = t[1:3]
    s = t.untyped_storage()
    s.resize_(24)
    assert torch.empty(0, device="tpu").set_(s).tolist()[:4] == [0, 1, 2, 3]
    view.fill_(9)
    assert t.tolist() == [0, 9, 9, 3]
    s.resize_(12)
    assert s.nbytes() == 12
    assert view.tolist() == [9, 9]
    s.resize_(0)  # FSDP frees memory so
    assert torch.tpu.memory_allocated() >= 0
    s.resize_(16)
    t.copy_(torch.ones(4))
    assert view.tolist() == [1, 1]


def test_swap_and_copy():
    a, b = torch.ones(2, device="tpu"), torch.zeros(3, device="tpu")
    torch.utils.swap_tensors(a, b)
    assert (a.tolist(), b.tolist()) == ([0, 0, 0], [1, 1])
    c = copy.copy(a)
    c.add_(1)
    assert a.tolist() == [1, 1, 1]


def test_type_strings():
    assert torch.ones(1, device="tpu").type() == "torch.tpu.FloatTensor"
    assert torch.ones(1).type("torch.tpu.IntTensor").device == TPU
    assert torch.get_device_module("tpu") is torch.tpu


def test_fake_tensors():
    from torch._subclasses import FakeTensorMode

    with FakeTensorMode() as fake:
        t = torch.ones(3, 4, device="tpu")
        assert (t @ t.t()).device == TPU
    assert fake.from_tensor(torch.ones(2, device="tpu")).shape == (2,)


def test_lazy_conjugate_and_negative():
    host = torch.tensor([1 + 2j, 3 - 1j])
    t = host.to("tpu")
    for read in (
        lambda x: x.conj(),
        lambda x: x.conj().clone(),
        lambda x: x.conj().imag,
        lambda x: x.conj().imag.clone(),
        lambda x: x.conj() @ x,
        lambda x: x.conj().outer(x.conj()),
        lambda x: x.conj().resolve_conj(),
        lambda x: x.conj().to(torch.complex128),
    ):
        assert torch.equal(read(t).cpu(), read(host))
        assert repr(read(t)).replace(", device='tpu:0'", "") == repr(read(host))
    assert t.conj()[0].item() == 1 - 2j
    t.conj().copy_(torch.tensor([1j, 2j]))
    assert t.tolist() == [-1j, -2j]
    t.conj().imag.mul_(3)
    assert t.tolist() == [-3j, -6j]
