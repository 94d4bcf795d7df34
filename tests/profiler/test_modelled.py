"""Runs of chips that are not there: the TPU compiler's estimates, in a run that says so."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from jax.profiler import ProfileData

import torchtpu
from torchtpu.errors import UnknownChipError
from torchtpu.profiler import Profile


@pytest.mark.slow
def test_a_chip_gets_a_run_of_its_own(tmp_path):
    x, w = torch.ones(256, 256, device="tpu"), torch.ones(256, 256, device="tpu")
    with torch.tpu.set_eager_mode("defer_and_fuse"), torchtpu.profile(tmp_path, target="v5e") as p:
        for _ in range(2):
            torch.relu(x @ w + 1).sum().item()
            p.step()
    (modelled,) = p.targets
    assert modelled.run == f"{p.run}_modelled_v5e" and modelled.modelled and not modelled.idle
    assert Profile.load(modelled.folder) == modelled
    assert modelled.labels()["kernels.seconds"] == "modelled" and p.labels()["kernels.seconds"] == "measured"
    assert [s.runs for s in modelled.steps] == [s.runs for s in p.steps] == [1, 1]
    first, second = modelled.steps
    assert first.seconds == pytest.approx(second.seconds) and first.seconds < p.steps[0].seconds
    assert sum(k.seconds for k in modelled.kernels) == pytest.approx(modelled.elapsed) == pytest.approx(modelled.busy)
    (mm,) = (o for o in modelled.ops if "aten::mm" in (o.op, *o.fused))
    assert mm.line.source == "torch.relu(x @ w + 1).sum().item()"
    assert mm.flops >= 2 * 2 * 256**3
    assert (modelled.peak_flops, "published for v5e" in modelled.peaks_from) == (197e12, True)
    (file,) = Path(modelled.folder).glob("*.xplane.pb")
    planes = {plane.name: plane for plane in ProfileData.from_file(str(file)).planes}
    device = dict(planes["/device:TPU:0"].stats)
    assert device["device_type_string"].startswith("TPU v5e, modelled from libtpu")
    assert "/host:metadata" in planes
    convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
    convert.xspace_to_tool_names([str(file)])
    (name,) = (f"jit_fused_{p.ops}_ops({p.number})" for p in modelled.programs)
    memory, _ = convert.xspace_to_tool_data([str(file)], "memory_viewer", {"module_name": name})
    assert json.loads(memory)["totalBufferAllocationMib"] >= 0.5  # two arguments of 256 KiB


def test_a_chip_that_does_not_exist_is_refused_before_anything_runs(tmp_path):
    ran = []
    with pytest.raises(UnknownChipError, match="v5e"), torchtpu.profile(tmp_path, target="v5f"):
        ran.append(1)
    assert not ran and not list(tmp_path.iterdir())
