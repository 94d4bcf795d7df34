"""The text form: a program that runs, and computes what the program computed."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchtpu
from torchtpu import config, modes, schedule
from torchtpu.dtypes import from_numpy
from torchtpu.graph.to_python import _DTYPES


def tensor(array):
    return from_numpy(np.array(array), _DTYPES[array.dtype])


def recorded(run):
    """Run a function twice in a fused mode, and return the arguments and results of each program of the second run."""
    torch.manual_seed(0)
    with modes.scope("defer_and_fuse"), torchtpu.watch() as report:
        run()
    calls = []
    programs = report._known().programs

    def recording(program):
        compiled = program.call

        def call(*arrays):
            count = len(program.inputs)
            before = [tensor(np.asarray(a)) for a in arrays[:count]]
            vectors = {w: np.array(v) for (w, _, _), v in zip(program.wires.groups, arrays[count:], strict=True)}
            numbers = [vectors[w][k].item() for w, k in program.wires.places]
            results = compiled(*arrays)
            calls.append((program, before, numbers, [tensor(np.asarray(r)) for r in results]))
            return results

        return call

    fused = [p for p in programs if p in schedule.programs.values()]
    try:
        for program in fused:
            program.call = recording(program)
        with modes.scope("defer_and_fuse"):
            run()
            modes.flush("end of test")
    finally:
        for program in fused:
            program.call = program.compiled
    assert calls
    return report, calls


def storage(result):
    """All elements of a tensor's storage, in the order of its memory."""
    flat = torch.empty(0, dtype=result.dtype, device=result.device)
    flat.set_(result.untyped_storage(), 0, (result.untyped_storage().nbytes() // result.itemsize,))
    return flat.cpu()


def check(run, device):
    """Execute the text of each program on the arguments that it had, and compare with its results."""
    report, calls = recorded(run)
    for program, arrays, numbers, results in calls:
        text = report.graph(program.name).to_python().replace('DEVICE = "tpu"', f'DEVICE = "{device}"')
        namespace = {"__name__": "text"}
        exec(compile(text, program.name, "exec"), namespace)
        function = namespace[program.name.partition("#")[0]]
        named = {f"n{k}": n for k, n in enumerate(numbers) if f" n{k}=" in text}
        actual = function(*(a.to(device) for a in arrays), **named)
        assert len(actual) == len(results)
        for a, r in zip(actual, results, strict=True):
            torch.testing.assert_close(storage(a), r.flatten(), equal_nan=True, rtol=1e-4, atol=1e-4)


def test_forward_backward_and_optimizer():
    net = nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 10)).to("tpu")
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-2)
    x, y = torch.rand(2, 1, 4, 4, device="tpu"), torch.randint(10, (2,)).to("tpu")

    def step():
        optimizer.zero_grad()
        F.cross_entropy(net(x), y).backward()
        optimizer.step()

    check(step, "cpu")


def test_an_op_that_only_the_device_has():
    """Attention has one of its own on tpu."""
    x = torch.rand(1, 2, 8, 4).to("tpu").requires_grad_()

    def run():
        x.grad = None
        F.scaled_dot_product_attention(x, x * 2, x, is_causal=True).sum().backward()

    check(run, "tpu")


def views(x):
    y = x * 2
    y[1:3, ::2] += 1
    y.t()[0] = 7
    z = y.unfold(0, 2, 1).sum(-1)
    w = z.view(torch.int32).to(torch.float32) + x[1:, 1:2].expand(3, 4)
    return y, z, w, y.diagonal().clone()


def in_place(x):
    y = x.clone()
    y.add_(x, alpha=0.5).mul_(3).clamp_(0, 2)
    out = torch.empty(4, 4, device=x.device)
    torch.add(y, 1, out=out)
    y.zero_()
    y[2].fill_(float("inf"))
    out.copy_(out.t().contiguous())
    return y, out


def several(x):
    values, indices = x.sort(dim=1, descending=True)
    parts = torch.stack([x, values]).unbind(0)
    mean = torch.ops.aten.native_layer_norm(x, [4], None, None, 1e-5)
    return values, indices, parts[0] + 1, *mean, torch.where(x > 0.5, x, float("nan")), torch.full_like(x, -float("inf")) + x


def arguments(x):
    return (
        x.sum(dim=(0, 1), keepdim=True),
        F.pad(x, (1, 2), value=3.0),
        torch.arange(3, 17, 2, device=x.device) + 1,
        x.to(torch.float64).std(),
        x.to(torch.bfloat16) * 1.5,
        x[[0, 2]] - x[torch.tensor([1, 3], device=x.device)],
        F.gelu(x, approximate="tanh"),
        torch.cat([x, x.bool().float()], dim=1),
        F.interpolate(x[None, None], scale_factor=2, mode="bilinear", align_corners=False) + 1,
    )


@pytest.mark.parametrize("function", [views, in_place, several, arguments])
def test_calls(function):
    x = torch.rand(4, 4).to("tpu")
    kept = []

    def run():
        kept[:] = function(x)

    check(run, "cpu")


def test_random_ops_draw_again_from_the_same_seed():
    """The text takes no keys: run after the same seed in strict mode, it draws what the program drew."""
    x = torch.rand(64, 64).to("tpu")
    kept = []

    def run():
        torch.manual_seed(7)
        kept[:] = [F.dropout(x, 0.25) + 1, torch.rand_like(x) * 2, x.clone().normal_()]

    report, ((program, arrays, _, results),) = recorded(run)
    namespace = {"__name__": "text"}
    exec(report.graph(program.name).to_python(), namespace)
    torch.manual_seed(7)
    actual = namespace[program.name.partition("#")[0]](*(a.to("tpu") for a in arrays))
    assert len(actual) == len(results)
    for a, r in zip(actual, results, strict=True):
        torch.testing.assert_close(storage(a), r.flatten())
    assert 0.2 < (results[-1].abs() > 1).float().mean() < 0.45


def test_products_keep_their_precision():
    a, b = torch.rand(8, 32).to("tpu"), torch.rand(32, 8).to("tpu")
    kept = []

    def run():
        with torch.tpu.precision("DEFAULT"):
            kept[:] = [a @ b]
        kept.append(a @ b)

    with config.options(numerics="tpu"):
        report, ((program, arrays, _, results),) = recorded(run)
        text = report.graph(program.name).to_python()
        assert text.count('with torch.tpu.precision("DEFAULT"):') == 1
        namespace = {"__name__": "text"}
        exec(text, namespace)
        actual = namespace[program.name.partition("#")[0]](*(x.to("tpu") for x in arrays))
    assert not torch.equal(*results)
    for x, r in zip(actual, results, strict=True):
        torch.testing.assert_close(x.cpu(), r, rtol=1e-6, atol=0)


def test_numbers_keep_the_values_that_they_had(graph_of, capsys):
    x = torch.rand(8, device="tpu")
    graph = graph_of(lambda: (x + 2.5).pow(0.125) * float("inf"))
    text = graph.to_python()
    assert "n0=2.5" in text
    assert 'float("inf")' in text or "n1=" in text
    exec(compile(text, "program.py", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.splitlines() == ["(8,) torch.float32"]


def test_lines_and_modules_are_comments(graph_of):
    net = nn.Sequential(nn.Linear(4, 4), nn.Tanh()).to("tpu")
    x = torch.rand(2, 4, device="tpu")
    text = graph_of(lambda: net(x).sum().backward()).to_python()
    assert "# Sequential.1, test_python.py:" in text
    assert "# Sequential.0, test_python.py:" in text
    assert ", backward: text = graph_of(" in text
