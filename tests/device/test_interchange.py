"""Exchange without copies: DLPack, jax, numpy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import torch

import torchtpu

pytestmark = pytest.mark.usefixtures("mode")


def test_dlpack_to_torch_numpy_and_jax():
    t = torch.arange(6.0, device="tpu").view(2, 3) + 1
    expected = [[1, 2, 3], [4, 5, 6]]
    host = torch.from_dlpack(t)
    assert host.device.type == "cpu"
    assert host.tolist() == np.from_dlpack(t).tolist() == jax.dlpack.from_dlpack(t).tolist() == expected
    assert torch.from_dlpack(t.t()[1:]).tolist() == [[2, 5], [3, 6]]
    assert torch.from_dlpack(t.bfloat16()).dtype == torch.bfloat16
    assert torch.from_dlpack(torch.tensor([True, False], device="tpu")).tolist() == [True, False]
    assert torch.from_dlpack(torch.to_dlpack(t)).tolist() == expected
    assert torch.from_dlpack(t).data_ptr() == host.data_ptr() != t.data_ptr()


def test_dlpack_from_jax():
    array = jnp.arange(4.0)
    assert torch.from_dlpack(array).to("tpu").tolist() == [0, 1, 2, 3]


def test_exported_memory_is_not_reused():
    t = torch.zeros(1000, device="tpu")
    host = torch.from_dlpack(t)
    array = torchtpu.to_jax(t)
    for _ in range(3):
        t.add_(1)
    assert t[0].item() == 3
    assert not host.any()
    assert not array.any()
    host = torch.from_dlpack(t)
    del t
    torch.zeros(1000, device="tpu").add_(5).sum().item()
    assert host.tolist() == [3] * 1000


def test_refusals():
    w = torch.ones(2, device="tpu", requires_grad=True)
    with pytest.raises(BufferError, match="require gradient"):
        torch.from_dlpack(w)
    with pytest.raises(BufferError, match="conjugate"):
        torch.from_dlpack(torch.ones(2, dtype=torch.complex64, device="tpu").conj())
    with pytest.raises(ValueError, match=r"detach\(\)"):
        torchtpu.to_jax(w)
    with pytest.raises(ValueError, match="takes a tensor on tpu, got one on cpu"):
        torchtpu.to_jax(torch.ones(2))
    with pytest.raises(TypeError, match="takes a jax array with a value, got ndarray"):
        torchtpu.from_jax(np.ones(2))
    with pytest.raises(TypeError, match="no counterpart in torch"):
        torchtpu.from_jax(jnp.ones(2, jnp.int4))


def test_tpu_memory_has_no_dlpack(monkeypatch):
    from torchtpu import client

    monkeypatch.setattr(client, "shares_memory", lambda: False)
    with pytest.raises(BufferError, match=r"use tensor.cpu\(\), or torchtpu.to_jax\(tensor\)"):
        torch.from_dlpack(torch.ones(2, device="tpu"))


def test_to_jax_and_back():
    t = torch.arange(6.0, device="tpu").view(2, 3).contiguous() * 2
    array = torchtpu.to_jax(t)
    assert isinstance(array, jax.Array)
    assert array.tolist() == [[0, 2, 4], [6, 8, 10]]
    assert torchtpu.to_jax(t).unsafe_buffer_pointer() == array.unsafe_buffer_pointer()
    assert torchtpu.to_jax(t.t()).tolist() == [[0, 6], [2, 8], [4, 10]]
    assert torchtpu.to_jax(t.view(6)[1:]).tolist() == [2, 4, 6, 8, 10]
    back = torchtpu.from_jax(jnp.sin(array))
    assert back.is_tpu
    torch.testing.assert_close(back.cpu(), t.cpu().sin())


@pytest.mark.parametrize("dtype", [torch.int64, torch.float64, torch.bfloat16, torch.bool, torch.complex128], ids=str)
def test_dtypes_survive_jax(dtype):
    t = torch.tensor([1, 0, 1], device="tpu").to(dtype)
    array = torchtpu.to_jax(t)
    assert array.dtype.itemsize == dtype.itemsize
    back = torchtpu.from_jax(array)
    assert back.dtype == dtype
    assert torch.equal(back.cpu(), t.cpu())


def test_writes_to_a_tensor_from_jax_stay_there():
    array = jnp.zeros(3)
    t = torchtpu.from_jax(array)
    t.add_(1)
    t[0] = 5
    assert t.tolist() == [5, 1, 1]
    assert array.tolist() == [0, 0, 0]
