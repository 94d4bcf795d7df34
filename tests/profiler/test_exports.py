"""Profiles as JSON, as Chrome traces and as collapsed stacks, and from the folders of their runs."""

import copy
import gzip
import json
import pickle
import re
from collections import defaultdict
from dataclasses import replace

import pytest
import torch

import torchtpu.profiler
from tests.profiler import made, on_disk
from torchtpu.profiler import Profile, stored
from torchtpu.profiler.rows import KernelTime, Span, Spans


@pytest.fixture(scope="module")
def profile() -> Profile:
    return made.profile()


@pytest.fixture(scope="module")
def captured(tmp_path_factory) -> Profile:
    """A real capture: three steps of a small model."""
    with torch.tpu.set_eager_mode("defer_and_fuse"):
        model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 8)).to("tpu")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        x = torch.ones(16, 64, device="tpu")
        with torchtpu.profiler.profile(tmp_path_factory.mktemp("runs")) as capture:
            for _ in range(3):
                optimizer.zero_grad()
                loss = model(x).square().mean()
                loss.backward()
                optimizer.step()
            loss.item()
    return capture.profile


def spans(profile: Profile) -> list[dict]:
    return [e for e in json.loads(profile.to_perfetto())["traceEvents"] if e["ph"] == "X"]


# ---- JSON


def test_json_and_back_is_the_same_profile(profile, captured):
    assert Profile.from_json(profile.to_json()) == profile
    assert Profile.from_json(captured.to_json()) == captured
    assert copy.deepcopy(captured) == pickle.loads(pickle.dumps(captured)) == captured


def test_json_has_a_schema_a_version_and_labels(profile):
    data = json.loads(profile.to_json())
    assert (data["schema"], data["version"]) == ("torchtpu.profile", 1)
    assert data["labels"]["ops.seconds"] == "measured"
    assert data["labels"]["ops.flops"] == "compiled (XLA:CPU)"
    assert data["labels"]["report.programs.temp_bytes"] == "compiled (XLA:CPU)"
    assert data["labels"]["peak_flops"] == "measured here: one product and one copy"


def test_modelled_figures_are_labelled_so(profile):
    labels = replace(profile, modelled=True).labels()
    modelled = {path for path, label in labels.items() if label == "modelled"}
    assert {"busy", "ops.seconds", "kernels.seconds", "steps.busy"} <= modelled
    assert labels["steps.seconds"] == "modelled" and labels["report.seconds.wait"] == "measured"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "torchtpu.report"}, "this JSON is not a torchtpu.profile"),
        ({"version": 0}, "version 0 of the schema, this torchtpu reads 1: capture the run again"),
        ({"version": 2}, "version 2 of the schema, this torchtpu reads 1: a newer torchtpu may read it"),
        ({"profile": {"run": "x"}}, "not a complete torchtpu.profile: KeyError"),
    ],
)
def test_another_json_is_refused(profile, change, message):
    data = json.loads(profile.to_json()) | change
    with pytest.raises(ValueError, match=re.escape(message)):
        Profile.from_json(json.dumps(data))


# ---- Chrome traces


def assert_nested(events: list[dict]) -> None:
    """Of two events of a thread, one ends before the other begins, or is inside it."""
    threads = defaultdict(list)
    for e in events:
        start = round(e["ts"] * 1000)
        threads[e["pid"], e["tid"]].append((start, start + round(e["dur"] * 1000)))
    for found in threads.values():
        open_ends: list[int] = []
        for start, end in sorted(found, key=lambda s: (s[0], -s[1])):
            while open_ends and open_ends[-1] <= start:
                open_ends.pop()
            assert not open_ends or end <= open_ends[-1]
            open_ends.append(end)


def test_a_trace_has_every_span_and_its_threads_nest(profile, captured):
    for p in (profile, captured):
        assert len(spans(p)) == len(p.spans) > 0
        assert_nested(spans(p))


def test_events_are_in_microseconds_and_know_their_lines(profile):
    (first,) = [e for e in spans(profile) if e["name"] == "dot.4" and e["ts"] == 30_000]
    assert (first["dur"], first["cat"], first["pid"]) == (40_000, "device thread 0", 2)
    assert first["args"] == {
        "line": "In[4], line 3", "source": made.SOURCES[3], "function": "<module>", "backward": False, "cell": "In[4]",
        "detail": "fused_12_ops#3, dot: aten::mm",
    }  # fmt: skip


def test_spans_that_overlap_in_part_get_threads_of_their_own(profile):
    tids = {e["name"]: e["tid"] for e in spans(profile) if e["cat"] == "annotations"}
    assert tids["first"] != tids["second"]
    events = json.loads(profile.to_perfetto())["traceEvents"]
    names = {e["tid"]: e["args"]["name"] for e in events if e["name"] == "thread_name"}
    assert (names[tids["first"]], names[tids["second"]]) == ("annotations", "annotations (2)")


def test_tracks_are_named_and_ordered_from_steps_to_the_device(profile):
    events = json.loads(profile.to_perfetto())["traceEvents"]
    names = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
    order = {(e["pid"], e["tid"]): e["args"]["sort_index"] for e in events if e["name"] == "thread_sort_index"}
    assert [names[key] for key in sorted(names, key=lambda key: (key[0], order[key]))] == [
        "steps", "annotations", "annotations (2)", "flushes", "launches", "waits", "programs", "device thread 0",
    ]  # fmt: skip
    processes = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert processes == {1: "Host: laptop", 2: "Device: tpu:0 (XLA:CPU, measured)"}


def test_device_memory_is_a_counter(profile):
    counters = [e for e in json.loads(profile.to_perfetto())["traceEvents"] if e["ph"] == "C"]
    assert [e["args"]["bytes"] for e in counters] == list(profile.report.hbm_timeline)
    assert counters[1]["ts"] == pytest.approx(profile.report.hbm_span * 1e6, abs=0.001)


def test_numbered_threads_are_in_the_order_of_their_numbers():
    names = [f"device thread {k}" for k in (10, 2, 1)]
    p = made.profile(spans=Spans.of([Span(name, "k", 0.0, 1.0, None, "") for name in names]))
    tids = {e["cat"]: e["tid"] for e in spans(p)}
    assert sorted(tids, key=tids.__getitem__) == ["device thread 1", "device thread 2", "device thread 10"]


# ---- collapsed stacks


def test_stacks_go_from_the_line_to_the_kernel(profile):
    assert profile.to_stacks().splitlines()[:2] == [
        "In[4], line 3: h = torch.relu(x @ w1 + b1);MLP;fc1;mm;dot.4 (dot) 300000",
        "In[4], line 3: h = torch.relu(x @ w1 + b1);MLP;act;relu, add.Tensor;fusion.1 (loop fusion) 125000",
    ]


def test_stacks_add_up_to_the_time_of_the_kernels(profile, captured):
    tiny = tuple(KernelTime("p", f"k{n}", "add", ("aten::add",), None, "", False, 1, 0.4e-6) for n in range(1000))
    for p in (profile, captured, replace(profile, kernels=tiny)):
        numbers = [int(line.rpartition(" ")[2]) for line in p.to_stacks().splitlines()]
        assert sum(numbers) == round(sum(k.seconds for k in p.kernels) * 1e6)
        assert all(number > 0 for number in numbers)


def test_frames_hold_no_separators():
    kernel = KernelTime("p", "k", "add", ("aten::add",), replace(made.line(3), source="a; b\n"), "", False, 1, 1.0)
    assert made.profile(kernels=(kernel,)).to_stacks() == "In[4], line 3: a, b;add;k (add) 1000000\n"


# ---- files


@pytest.mark.parametrize(
    ("suffix", "start"),
    [
        (".html", "<!DOCTYPE html>"),
        (".json", '{"schema": "torchtpu.profile"'),
        (".txt", "torchtpu profile "),
        (".trace.json", '{"displayTimeUnit":"ms"'),
        (".stacks.txt", "In[4], line 3"),
    ],
)
def test_save_follows_the_suffix(profile, tmp_path, suffix, start):
    path = profile.save(tmp_path / f"run{suffix}")
    assert path.read_text(encoding="utf-8").startswith(start)


def test_a_compressed_trace_is_the_same_trace(profile, tmp_path):
    packed = profile.save(tmp_path / "run.trace.json.gz").read_bytes()
    assert gzip.decompress(packed).decode() == profile.to_perfetto()


@pytest.mark.parametrize("name", ["run.pdf", "run", "run.json.gz"])
def test_save_refuses_other_suffixes(profile, tmp_path, name):
    with pytest.raises(ValueError, match=r"the name must end in \.html, \.json, \.txt, \.trace\.json"):
        profile.save(tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_a_run_is_loaded_from_its_folder(captured, tmp_path):
    assert Profile.load(captured.folder) == captured
    runs = captured.folder.rpartition("/plugins/")[0]
    assert Profile.load(f"{runs}/{captured.run}") == captured
    assert Profile.load(runs) == captured  # the only one
    captured.save(tmp_path / "saved.json")
    assert Profile.load(tmp_path / "saved.json") == captured


def test_what_cannot_be_loaded_says_why(profile, tmp_path):
    runs = [on_disk.write_run(tmp_path, name) for name in ("2026_12_02_10_00_00", "2026_12_02_11_00_00")]
    stored.write(profile, runs[0])
    assert Profile.load(tmp_path / "2026_12_02_10_00_00") == profile
    with pytest.raises(ValueError, match="another tool captured this run"):
        Profile.load(runs[1])
    with pytest.raises(ValueError, match=r"has 2 runs, name one: .*/2026_12_02_10_00_00, .*/2026_12_02_11_00_00"):
        Profile.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no run at .*\. Did you mean '2026_12_02_11_00_00'\?"):
        Profile.load(tmp_path / "2026_12_02_11_00_01")
    with pytest.raises(FileNotFoundError, match="no run at nowhere"):
        Profile.load("nowhere")
    (runs[0] / stored.FILE).write_bytes(gzip.compress(profile.to_json().encode())[:1000])
    with pytest.raises(ValueError, match=r"torchtpu_profile\.json\.gz: "):
        Profile.load(runs[0])
