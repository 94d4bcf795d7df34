"""`%%tpu_compare`: a cell in several modes from the same state, and nothing of it left behind."""

import random
import shutil

import numpy as np
import pytest
import torch

from torchtpu import modes
from torchtpu.notebook_ext.comparison import Comparison
from torchtpu.notebook_ext.snapshot import Snapshot, names_of
from torchtpu.notebook_ext.values import collect, distance

TRAINING = """
import random, numpy as np
torch.manual_seed(0)
layers = torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8), torch.nn.Dropout(0.3), torch.nn.Linear(8, 2)
model = torch.nn.Sequential(*layers).to("tpu")
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
x = torch.randn(16, 4, device="tpu")
losses, settings, seen, array = [], {"steps": [1]}, set(), np.zeros(3)
generator = torch.Generator().manual_seed(3)
numbers = np.random.default_rng(5)
count = 0

class Meter:
    total = 0.0
    def __init__(self):
        self.values = []

meter = Meter()

def counter():
    inner = 0
    def bump():
        nonlocal inner
        inner += 1
        return inner
    return bump

bump = counter()

def step():
    global count
    count += 1
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    schedule.step()
    losses.append(loss.item())
    settings["steps"].append(count)
    settings["last"] = bump()
    seen.add(count)
    meter.values.append(torch.rand(1, generator=generator).item() + random.random() + numbers.random())
    meter.total = sum(meter.values)
    array[0] += 1
    return loss
"""
STEPS = "for _ in range(3):\n    step()\nmade = model[0].weight.detach().clone()"


def state(ns: dict) -> list:
    """What `STEPS` changes, as plain values."""
    return [
        {k: v.cpu().tolist() for k, v in ns["model"].state_dict().items()},
        [p.grad if p.grad is None else p.grad.cpu().tolist() for p in ns["model"].parameters()],
        ns["optimizer"].param_groups[0]["lr"],
        [{k: v.cpu().tolist() for k, v in s.items()} for s in ns["optimizer"].state.values()],
        ns["schedule"].last_epoch,
        [ns["losses"], ns["settings"], ns["seen"], ns["array"].tolist(), ns["count"], ns["meter"].values, ns["meter"].total],
        [torch.get_rng_state().tolist(), torch.tpu.get_rng_state().tolist(), ns["generator"].get_state().tolist()],
        [random.getstate(), np.random.get_state()[1].tolist(), ns["numbers"].bit_generator.state],
    ]


@pytest.fixture
def namespace() -> dict:
    ns = {"torch": torch, "__name__": "__main__"}
    exec(TRAINING, ns)
    return ns


def test_a_snapshot_puts_everything_back(namespace, mode):
    import copy

    code = compile(STEPS, "cell", "exec")
    before = copy.deepcopy(state(namespace))
    snapshot = Snapshot(namespace, names_of(code))
    after = []
    for _ in range(2):
        exec(code, namespace)
        namespace["bumped"] = namespace["bump"]()
        after.append(copy.deepcopy([state(namespace), namespace["bumped"], namespace["made"].cpu().tolist()]))
        snapshot.restore()
        assert state(namespace) == before
        assert "made" not in namespace
    assert after[0] == after[1]
    assert after[0][0] != before
    assert snapshot.lost == []


def test_a_snapshot_keeps_no_device_memory(namespace):
    torch.tpu.synchronize()
    before = torch.tpu.memory_allocated()
    snapshot = Snapshot(namespace, ["model", "x"])
    assert torch.tpu.memory_allocated() == before
    weight = namespace["model"][0].weight
    with torch.no_grad():
        weight += 1
    snapshot.restore()
    assert torch.tpu.memory_allocated() == before


def test_objects_and_aliases_stay_what_they_are(mode):
    base = torch.zeros(2, 3, device="tpu")
    ns = {"base": base, "row": base[1], "other": torch.ones(2, device="tpu")}
    snapshot = Snapshot(ns, ns)
    ns["base"].add_(5)
    ns["other"].data = torch.zeros(4, device="tpu")
    ns["row"] = None
    snapshot.restore()
    assert ns["base"] is base
    assert ns["row"].tolist() == [0, 0, 0]
    base[1] = 7
    assert ns["row"].tolist() == [7, 7, 7]
    assert ns["other"].tolist() == [1, 1]


def test_what_cannot_be_put_back_is_said():
    w = torch.ones(2, device="tpu", requires_grad=True)
    ns = {"batches": iter([1, 2]), "loss": (w * 2).sum(), "sparse": torch.eye(2).to_sparse()}
    lost = Snapshot(ns, ns).lost
    assert [phrase.partition(":")[0] for phrase in sorted(lost)] == ["batches", "loss", "sparse"]


def test_values_are_found_by_name():
    model = torch.nn.Linear(2, 1)
    model.weight.grad = torch.ones(1, 2)
    found = collect({"m": model, "l": [1.5, {"a": torch.ones(2)}], "s": "text"}, ["m", "l", "s", "absent"])
    assert set(found) == {"m.weight", "m.weight.grad", "m.bias", "l[0]", "l[1]['a']"}


def test_distance():
    nan = float("nan")
    first = {"a": torch.tensor([1.0, nan]), "b": torch.tensor([4, 2]), "c": torch.ones(2), "n": torch.ones(1)}
    second = {"a": torch.tensor([1.0, nan]), "b": torch.tensor([4, 3]), "c": torch.ones(3), "n": torch.tensor([nan])}
    second["d"] = first["a"]
    apart = distance(first, second)
    assert apart.compared == 4
    assert [(g.name, g.absolute) for g in apart.gaps] == [("c", float("inf")), ("n", float("inf")), ("b", 1.0)]
    assert apart.gaps[-1].relative == 0.25
    assert apart.only_one == ("d",)
    assert distance({}, first) is None


def compared(notebook, *lines: str) -> Comparison:
    result = notebook.run(*lines)
    assert result.success, notebook.printed
    return result.result


def test_the_modes_side_by_side(notebook):
    notebook.run(TRAINING)
    before = state(notebook.shell.user_ns)
    found = compared(notebook, "%%tpu_compare strict debug Defer-And-Fuse --runs 1", STEPS, "print('hello')", "losses[-1]")
    strict, debug, fused = found.columns
    assert [c.mode for c in found.columns] == ["strict", "debug", "defer_and_fuse"]
    assert notebook.printed.count("hello") == 1
    assert strict.second.compiles == debug.second.compiles == fused.second.compiles == 0
    assert strict.second.runs > 10 * fused.second.runs
    assert debug.distance.gaps == ()
    assert fused.distance.compared == debug.distance.compared > 30
    names = {g.name for g in fused.distance.gaps}
    assert all(g.absolute < 1e-5 for g in fused.distance.gaps if g.name.startswith("losses"))
    assert names & {"made", "model.0.weight", "the last expression", "losses[2]", "model.3.weight.grad"}
    assert found.lost == ()
    assert state(notebook.shell.user_ns) == before
    assert "made" not in notebook.shell.user_ns
    assert modes.current().label == "strict"
    for drawn in (found.to_text(), found.to_html()):
        for text in ("strict", "debug", "defer_and_fuse", "HBM peak", "largest difference", f"0 of {debug.distance.compared}"):
            assert text in drawn, text


MODEL = """
class Doubled(torch.nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer
    def forward(self, x):
        return self.layer(x) * 2

torch.manual_seed(0)
layer = torch.nn.Linear(3, 3)
model = torch.nn.Sequential(Doubled(layer), torch.nn.Tanh()).to("tpu")
view = model[0].layer.weight.detach()[1]
x = torch.randn(4, 3, device="tpu")
"""


def test_PyTorch_on_the_cpu_is_another_column(notebook):
    notebook.run(MODEL)
    work = ["loss = model(x + torch.ones(3, device='tpu')).square().mean()", "loss.backward()", "view += 1", "str(loss.device)"]
    found = compared(notebook, "%%tpu_compare strict cpu --runs 1", *work)
    _, cpu = found.columns
    assert (cpu.mode, cpu.first, cpu.error) == ("cpu (PyTorch)", None, "")
    assert cpu.steady > 0
    assert cpu.distance.compared == 7  # loss, x, view, two parameters, their gradients
    assert all(g.absolute < 1e-5 for g in cpu.distance.gaps)
    ns = notebook.shell.user_ns
    assert {t.device.type for t in (ns["x"], ns["view"], *ns["model"].parameters())} == {"tpu"}
    assert ns["layer"].weight.grad is None
    assert ns["view"].untyped_storage().buffer is ns["layer"].weight.untyped_storage().buffer


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("g++") is None, reason="torch.compile needs a C++ compiler")
def test_torch_compile_is_another_column(notebook):
    import torch._dynamo.utils as dynamo

    notebook.run(MODEL)
    graphs = dynamo.counters["stats"]["unique_graphs"]
    found = compared(notebook, "%%tpu_compare strict compile --runs 1", "with torch.no_grad():", "    y = model(x)")
    (_, compiled) = found.columns
    assert compiled.mode == "torch.compile (CPU)"
    assert dynamo.counters["stats"]["unique_graphs"] == graphs + 1
    assert compiled.steady < compiled.seconds / 5
    assert all(g.absolute < 1e-5 for g in compiled.distance.gaps)
    assert notebook.shell.user_ns["model"]._compiled_call_impl is None


def test_a_mode_that_fails_is_a_column(notebook):
    found = compared(
        notebook, "%%tpu_compare strict debug --runs 1", "assert torchtpu.modes.current().label == 'strict', '<b>'"
    )
    assert [c.error for c in found.columns] == ["", "AssertionError: <b>"]
    assert "! debug: AssertionError: <b>" in found.to_text()
    assert "debug: AssertionError: &lt;b&gt;" in found.to_html()


def test_an_error_in_every_mode_is_the_cells(notebook):
    notebook.run("kept = [1]")
    result = notebook.run("%%tpu_compare", "kept.append(2)", "1 / 0")
    assert not result.success
    assert "ZeroDivisionError" in notebook.printed
    assert f"In[{result.execution_count}], line 3" in notebook.printed
    assert notebook.shell.user_ns["kept"] == [1]


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("strict", "%%tpu_compare takes two or more different modes"),
        ("strict STRICT", "%%tpu_compare takes two or more different modes"),
        ("strict debgu", "unknown eager mode 'debgu': use one of strict, debug, defer_and_fuse. Did you mean 'debug'?"),
        ("strict debug --runs 0", "--runs takes a number of at least 1"),
    ],
)
def test_bad_arguments(notebook, line, error):
    assert not notebook.run(f"%%tpu_compare {line}", "ran = 1").success
    assert f"UsageError: {error}" in notebook.printed
    assert "ran" not in notebook.shell.user_ns
