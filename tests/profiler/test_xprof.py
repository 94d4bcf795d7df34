"""What XProf makes of a profile: every tool has something to show, and its figures are ours."""

from __future__ import annotations

import gzip
import json
import re
import shutil
import urllib.parse
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu.profiler import Profile, tensorboard

TOOLS = (
    "trace_viewer",
    "overview_page",
    "hlo_stats",
    "op_profile",
    "roofline_model",
    "memory_viewer",
    "memory_profile",
    "graph_viewer",
    "framework_op_stats",
)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(width, 4, batch_first=True)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.norms[0](x)
        x = x + self.attention(h, h, h, need_weights=False)[0]
        return x + self.mlp(self.norms[1](x))


class GPT(nn.Module):
    def __init__(self, words: int = 64, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        self.embedding = nn.Embedding(words, width)
        self.blocks = nn.Sequential(*(Block(width) for _ in range(layers)))
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.embedding(ids)))


@pytest.fixture(scope="module", params=["strict", "defer_and_fuse"])
def profile(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """Five steps of a small GPT, the programs of which are compiled already."""
    torch.manual_seed(0)
    model = GPT().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    ids = torch.randint(0, 64, (4, 33)).to("tpu")

    def step() -> float:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        return loss.item()

    with torch.tpu.set_eager_mode(request.param):
        for _ in range(2):
            step()
        with torchtpu.profile(tmp_path_factory.mktemp("logs")) as captured:
            for _ in range(5):
                step()
    return captured.profile


Ask = Callable[..., Any]


@pytest.fixture(scope="module", params=["converter", "TensorBoard"])
def ask(request: pytest.FixtureRequest, profile: Profile, tmp_path_factory: pytest.TempPathFactory):
    """Asks XProf for a tool's data: its converter itself, or a TensorBoard that runs it."""
    if request.param == "converter":
        convert = pytest.importorskip("xprof.convert.raw_to_tool_data")
        (file,) = Path(profile.folder).glob("*.xplane.pb")
        copy = shutil.copy(file, tmp_path_factory.mktemp("run") / file.name)  # it leaves files beside the one it reads

        convert.xspace_to_tool_names([str(copy)])  # as TensorBoard does first: it takes the programs' HLO out

        def from_converter(tool: str, **options: str) -> Any:
            parameters = {"graph_viewer_options": options} if tool == "graph_viewer" else options
            data, _ = convert.xspace_to_tool_data([str(copy)], tool, parameters)
            return data.decode() if isinstance(data, bytes) else data

        yield from_converter
        return
    server = tensorboard.start(Path(profile.folder).parents[2])

    def fetch(route: str, **query: str) -> str:
        address = f"{server.address}data/plugin/profile/{route}?{urllib.parse.urlencode({'run': profile.run} | query)}"
        with urllib.request.urlopen(address, timeout=120) as answer:
            body = answer.read()
        return (gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body).decode()

    assert set(fetch("module_list").split(",")) >= set(_modules(profile))  # the page asks for it before it shows one

    def from_server(tool: str, **options: str) -> str:
        return fetch("data", tag=tool, host=profile.host, **options)

    yield from_server
    server.stop()


def table(data: str, column: str) -> list[dict[str, Any]]:
    """The first table of a tool's answer that has a column, row by row."""
    answer = json.loads(data)
    tables = answer if isinstance(answer, list) else [answer]
    for found in tables:
        names = [c["id"] for c in found.get("cols", ())]
        if column in names:
            return [dict(zip(names, (c["v"] for c in row["c"]), strict=False)) for row in found["rows"]]
    raise AssertionError(f"no table has a column {column}")


def programs(profile: Profile) -> list[str]:
    return [r.name for r in profile.programs if r.ops]


def test_every_tool_has_data(profile, ask):
    module = _modules(profile)[0]
    kernel = next(k.name for k in profile.kernels if k.program == programs(profile)[0])
    for tool in TOOLS:
        options = {}
        if tool in ("memory_viewer", "graph_viewer"):
            options = {"module_name": module}
        if tool == "graph_viewer":
            options |= {"type": "graph", "format": "html", "graph_width": "3", "node_name": kernel}
        data = ask(tool, **options)
        assert data and len(data) > 300, tool


def _modules(profile: Profile) -> list[str]:
    return [f"jit_{re.sub(r'#.*', '', p.name).rstrip('_')}({p.number})" for p in profile.programs if p.ops]


def test_step_times_agree(profile, ask):
    steps = table(ask("overview_page"), "stepnum")
    assert len(steps) == len(profile.steps) == 5
    properties = [t["p"] for t in json.loads(ask("overview_page")) if "steptime_ms_average" in t.get("p", {})]
    (average,) = {float(p["steptime_ms_average"]) for p in properties if "steptime_ms_standard_deviation" in p}
    assert average == pytest.approx(sum(s.seconds for s in profile.steps) / 5 * 1e3, rel=0.05)


def test_kernels_agree(profile, ask):
    rows = table(ask("hlo_stats"), "hlo_op_name")
    theirs: Counter[str] = Counter()
    for row in rows:
        theirs[row["hlo_op_name"]] += row["occurrences"]
    ours: Counter[str] = Counter()
    for kernel in profile.kernels:
        ours[kernel.name] += kernel.count
    assert theirs == ours
    # XProf's device has one queue: where two threads ran kernels at once, the overlap counts once.
    assert sum(r["total_time"] for r in rows) * 1e-6 == pytest.approx(profile.busy, rel=0.05)
    assert any("backward" in r["tf_op_name"] and "aten::mm" in r["tf_op_name"] for r in rows)
    assert any(f"{Path(__file__).name}:" in r["tf_op_name"] for r in rows)


def test_the_number_of_programs_agrees(profile, ask):
    by_program = json.loads(ask("op_profile"))["byProgramExcludeIdle"]["children"]
    assert len(by_program) == len(profile.programs)
    ran = {r["program_id"] for r in table(ask("hlo_stats"), "hlo_op_name")}
    assert len(ran) == len(programs(profile)) == len(profile.report.programs)


def test_floating_point_operations_agree(profile, ask):
    whole = json.loads(ask("op_profile"))["byProgramExcludeIdle"]["metrics"]
    assert whole["rawFlops"] == pytest.approx(sum(k.flops for k in profile.kernels), rel=0.01)


def test_the_memory_peak_agrees(profile, ask):
    (memory,) = json.loads(ask("memory_profile"))["memoryProfilePerAllocator"].values()
    peak = int(memory["profileSummary"]["peakStats"]["peakBytesInUse"])
    assert peak == pytest.approx(profile.report.hbm_peak, rel=0.05)


def test_a_programs_buffers_agree(profile, ask):
    rows = {r.name: r for r in profile.report.programs}
    only = [p for p in profile.programs if p.ops and [q.name for q in profile.programs].count(p.name) == 1]
    largest = max(only, key=lambda p: p.temp_bytes + p.ops)
    answer = json.loads(ask("memory_viewer", module_name=_modules(profile)[programs(profile).index(largest.name)]))
    row = rows[largest.name]
    planned = row.argument_bytes + row.output_bytes - row.alias_bytes + row.temp_bytes
    assert float(answer["totalBufferAllocationMib"]) * 2**20 == pytest.approx(planned, rel=0.05, abs=4096)
