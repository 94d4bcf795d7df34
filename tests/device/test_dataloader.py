"""DataLoaders beside a started device: workers are forked, and must neither hang nor touch it."""

import pytest
import torch
from torch.utils.data import DataLoader, Dataset, TensorDataset

import torchtpu  # noqa: F401
from torchtpu.errors import TorchTPUError

ROWS = torch.arange(32.0).view(16, 2)


def total(loader):
    return sum(batch.to("tpu", non_blocking=True).sum().item() for (batch,) in loader)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("pin_memory", [False, True])
def test_batches_move_to_the_device(workers, pin_memory, mode):
    torch.ones(1, device="tpu").item()
    loader = DataLoader(
        TensorDataset(ROWS), 4, shuffle=True, num_workers=workers, pin_memory=pin_memory, timeout=60 * bool(workers)
    )
    assert total(loader) == 496
    assert total(loader) == 496


class OnDevice(Dataset):
    def __init__(self):
        self.rows = ROWS.to("tpu")

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, k):
        return self.rows[k] + 1


def test_a_worker_that_touches_the_device_is_told():
    with pytest.raises(TorchTPUError, match=r"cannot be used in a forked process.*Return CPU tensors from the worker"):
        next(iter(DataLoader(OnDevice(), 4, num_workers=1, timeout=60)))
    assert next(iter(DataLoader(OnDevice(), 4))).tolist() == (ROWS[:4] + 1).tolist()


def test_pinning_is_not_needed():
    host = torch.ones(3)
    assert host.pin_memory() is host
    assert not host.is_pinned()
    assert not torch.ones(3, device="tpu").is_pinned()
    with pytest.raises(RuntimeError, match="only dense CPU tensors can be pinned"):
        torch.ones(3, device="tpu").pin_memory()
