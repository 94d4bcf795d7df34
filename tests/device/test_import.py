"""`import torchtpu`: quick, starts nothing, changes nothing for other devices."""

import pytest
import torch


def test_import_starts_nothing(script):
    done = script("""
import sys, torch
import torchtpu
torch.tpu.is_available(), torch.tpu.device_count(), torch.tpu.current_device(), torch.tpu.eager_mode
torch.accelerator.is_available(), torch.accelerator.synchronize(), torch.accelerator.empty_cache()
torch.tpu.memory_allocated(), torch.tpu.reset_peak_memory_stats(), torch.tpu.manual_seed(1), torch.manual_seed(2)
with torch.tpu.set_eager_mode("debug"), torch.autocast("tpu"):
    torch.ones(2) @ torch.ones(2)
print([m for m in ("jax", "jaxlib") if m in sys.modules], torch.tpu.is_initialized())
torch.ones(2, device="tpu")
print("jax" in sys.modules, torch.tpu.is_initialized())
""")
    assert done.stdout.split("\n")[:2] == ["[] False", "True True"], done.stderr


def test_import_adds_little_to_import_torch(script):
    code = "import time, torch; t = time.process_time(); import torchtpu; print(time.process_time() - t)"
    assert min(float(script(code).stdout) for _ in range(2)) < 0.3


def test_import_again_after_reload(script):
    done = script("""
import importlib, torch, torchtpu
importlib.reload(torchtpu)
print(torch.ones(2, device="tpu"))
""")
    assert done.stdout == "tensor([1., 1.], device='tpu:0')\n", done.stderr


@pytest.mark.parametrize("owner", ["torch.utils.rename_privateuse1_backend('npu')", "torch.tpu = sys"])
def test_another_package_has_the_device(script, owner):
    done = script(f"""
import sys, torch
{owner}
import torchtpu
""")
    assert "torchtpu.errors.DeviceTakenError" in done.stderr
    assert "TORCH_DEVICE_BACKEND_AUTOLOAD=0" in done.stderr
    assert "uninstall torch_tpu" in done.stderr


def test_unknown_platform(script):
    done = script("import torch, torchtpu; torch.ones(2, device='tpu')", TORCHTPU_PLATFORM="abacus")
    assert "TorchTPUError: no XLA device on platform 'abacus'" in done.stderr
    assert "TORCHTPU_PLATFORM" in done.stderr.splitlines()[-1]


def test_mode_from_the_environment(script):
    done = script("import torch, torchtpu; print(torch.tpu.eager_mode.label)", TORCHTPU_EAGER_MODE="Defer-and-Fuse")
    assert done.stdout == "defer_and_fuse\n"


def test_unknown_mode_in_the_environment(script):
    done = script("import torch, torchtpu; print('imported'); torch.ones(2, device='tpu')", TORCHTPU_EAGER_MODE="strickt")
    assert done.stdout == "imported\n"
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ValueError: TORCHTPU_EAGER_MODE")
    assert last.endswith("Did you mean 'strict'?")


def test_compile_on_the_cpu_is_untouched():
    torch.compiler.reset()
    f = torch.compile(lambda x: x * 2 + 1, backend="eager", fullgraph=True)
    result = f(torch.ones(3))
    assert result.device.type == "cpu"
    assert result.tolist() == [3, 3, 3]


def test_other_devices_are_untouched():
    assert torch.UntypedStorage(4).device.type == "cpu"
    assert torch.UntypedStorage(3, device="meta").nbytes() == 3
    assert torch.UntypedStorage([1, 2]).tolist() == [1, 2]
    assert torch.Generator().device.type == "cpu"
    assert torch.from_dlpack(torch.ones(2)).tolist() == [1, 1]
    assert torch.get_default_device().type == "cpu"
