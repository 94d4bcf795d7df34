"""Who holds a buffer: each kind of holder is found under its name, and looking keeps nothing alive."""

import functools
import gc
import re
import subprocess
import sys
import time
import weakref
from collections import OrderedDict, defaultdict, deque
from types import SimpleNamespace

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from torchtpu import holders, reach
from torchtpu.buffer import Buffer, buffer_of


def new(*shape: int) -> torch.Tensor:
    return torch.ones(shape or (4,), device="tpu")


@pytest.fixture
def space(monkeypatch):
    """The variables of a notebook without outputs."""
    variables = {}
    monkeypatch.setattr(holders, "session", lambda: holders.Session(variables, {}))
    return variables


_LOCAL = re.compile(r" in \w+\(\)$")


def names_of(tensor: torch.Tensor) -> list[str]:
    """Every name but those in running functions (the tests' own)."""
    (found,) = holders.holders([buffer_of(tensor)])
    return [h.name for h in found if not _LOCAL.search(h.name)]


def best_of(tensor: torch.Tensor) -> holders.Holder:
    (found,) = holders.holders([buffer_of(tensor)])
    return next(h for h in found if not _LOCAL.search(h.name))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1 = nn.Linear(3, 4)
        self.norm = nn.BatchNorm1d(4)
        self.heads = nn.ModuleList([nn.Linear(4, 2), nn.Linear(4, 2)])
        self.last = None

    def forward(self, x):
        self.last = self.norm(self.fc1(x))
        return self.heads[0](self.last)


def test_parameters_buffers_and_gradients(space, mode):
    space["model"] = model = Net().to("tpu")
    model(new(8, 3)).sum().backward()
    torch.tpu.synchronize()
    assert best_of(model.fc1.weight) == holders.Holder("model.fc1.weight", holders.PARAMETER, "model", "del model")
    assert best_of(model.norm.running_mean).name == "model.norm.running_mean"
    assert best_of(model.heads[1].bias).name == "model.heads.1.bias"
    grad = best_of(model.fc1.weight.grad)
    assert grad == holders.Holder("model.fc1.weight.grad", holders.GRADIENT, "model", "model.zero_grad()")
    assert best_of(model.last).name == "model.last"


def test_optimizer_state_has_the_parameters_names(space, mode):
    model = Net().to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    space["training"] = (optimizer, model)
    model(new(8, 3)).sum().backward()
    optimizer.step()
    torch.tpu.synchronize()
    state = best_of(optimizer.state[model.fc1.weight]["exp_avg"])
    assert (state.name, state.kind, state.root) == (
        "training[0].state[fc1.weight].exp_avg", holders.STATE, "training",
    )  # fmt: skip
    del space["training"], model
    space["optimizer"] = optimizer
    assert best_of(optimizer.param_groups[0]["params"][0]).name == "optimizer.param_groups[0]['params'][0]"
    assert best_of(optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"]).name == "optimizer.state[0].exp_avg"


class Slotted:
    __slots__ = ("value",)


def holder_in(kind: str, x: torch.Tensor):
    """A thing that holds a tensor, as kind says."""
    match kind:
        case "slots":
            thing = Slotted()
            thing.value = x
            return thing
        case "closure":
            return lambda: x
        case "default":
            return lambda a=x: a
        case "method":
            thing = SimpleNamespace(x=x)
            return functools.partial(thing.__eq__, x)
        case "generator":

            def generate():
                local = x
                yield
                del local

            running = generate()
            next(running)
            return running
        case "attribute of a tensor":
            thing = torch.zeros(1)
            thing.more = x
            return thing
        case "named tuple":
            return torch.return_types.max((x, x))
    raise ValueError(kind)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda x: x, "it"),
        (lambda x: x[1:], "it"),
        (lambda x: x.detach(), "it"),
        (lambda x: [1, 2, x], "it[2]"),
        (lambda x: (x,), "it[0]"),
        (lambda x: {"k": x}, "it['k']"),
        (lambda x: {7: {"deep": [x]}}, "it[7]['deep'][0]"),
        (lambda x: {("a", 1): x}, "it[...]"),
        (lambda x: {"k" * 100: x}, "it['" + "k" * 38 + "\u2026]"),
        (lambda x: {x}, "an item of it"),
        (lambda x: deque([x]), "it[0]"),
        (lambda x: OrderedDict(a=x), "it['a']"),
        (lambda x: defaultdict(list, a=[x]), "it['a'][0]"),
        (lambda x: SimpleNamespace(a=SimpleNamespace(b=x)), "it.a.b"),
        (lambda x: functools.partial(print, x), "it.args[0]"),
        (functools.partial(holder_in, "slots"), "it.value"),
        (functools.partial(holder_in, "closure"), "it.<closure>.x"),
        (functools.partial(holder_in, "default"), "a default of it()"),
        (functools.partial(holder_in, "method"), "it.args[0]"),
        (functools.partial(holder_in, "generator"), "it.<locals>.local"),
        (functools.partial(holder_in, "attribute of a tensor"), "it.more"),
        (functools.partial(holder_in, "named tuple"), "it[0]"),
        (lambda x: ValueError("no", x), "it.args[1]"),
    ],
)
def test_variables_and_what_they_hold(space, make, name):
    x = new()
    space["it"] = make(x)
    assert name in names_of(x)


def test_parts_are_deleted_by_themselves_where_python_can(space):
    x, y, z = new(), new(), new()
    space.update(losses=[x], cache={"k": y}, deep=[[z]])
    assert [found.free for found in map(best_of, (x, y, z))] == ["del losses[0]", "del cache['k']", "del deep"]


def test_every_holder_counts(space, monkeypatch):
    x = new()
    space.update(a=x, b=[x], c=x * 2)
    assert names_of(x) == ["a", "b[0]"]


def test_outputs_of_a_notebook(monkeypatch):
    x, y, old = new(), new(), new()
    variables = {"_": y, "__": old, "_7": x, "Out": {7: x, 8: [y]}, "_oh": {7: x}, "x": y}
    monkeypatch.setattr(holders, "session", lambda: holders.Session(variables, {7: x, 8: [y]}))
    assert best_of(x) == holders.Holder("Out[7]", holders.OUTPUT, "Out[7]", "%tpu_free Out")
    assert names_of(x) == ["Out[7]"]
    assert names_of(y) == ["x", "_", "Out[8][0]"]
    assert names_of(old) == ["__"]


def boom(a: torch.Tensor) -> None:
    big = a * 2
    inner = [big]
    raise ValueError(f"{len(inner)} is too few")


def test_the_last_traceback(space, monkeypatch):
    x = new()
    try:
        boom(x)
    except ValueError as error:
        monkeypatch.setattr(sys, "last_value", error, raising=False)
    big = sys.last_value.__traceback__.tb_next.tb_frame.f_locals["big"]
    found = best_of(big)
    assert (found.name, found.kind) == ("last traceback: boom() -> big", holders.TRACEBACK)
    assert "last traceback: boom() -> inner[0]" in names_of(big)
    assert "last traceback: boom() -> a" in names_of(x)


def test_the_tracebacks_behind_the_last_one(space, monkeypatch):
    x = new()
    try:
        try:
            boom(x)
        except ValueError as first:
            raise KeyError("second") from first
    except KeyError as second:
        monkeypatch.setattr(sys, "last_value", second, raising=False)
    assert "last traceback: boom() -> a" in names_of(x)


def test_locals_of_running_functions(space):
    def outer():
        mine = [new()]
        return inner(mine[0] + 1), holders.names([buffer_of(mine[0])])

    def inner(given):
        return holders.names([buffer_of(given)])

    assert outer() == (["given in inner()"], ["mine[0] in outer()"])


def test_globals_of_a_running_module():
    global kept
    kept = new()
    try:
        assert names_of(kept) == [f"{__name__}.kept"]
    finally:
        del kept


def test_saved_for_backward(space):
    x = new(4, 3).requires_grad_()
    middle = x.exp()
    space["loss"] = (middle * middle).sum()
    found = best_of(middle)
    assert (found.kind, found.root, found.free) == (holders.AUTOGRAD, "loss", "del loss")
    assert found.name.startswith("saved for backward of loss (")
    space["loss"].backward()
    assert names_of(middle) == []


def test_saved_by_a_function_of_the_users(space):
    class Double(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            ctx.other = x + 1
            others.append(weakref.ref(ctx.other))
            return x * 2

        @staticmethod
        def backward(ctx, g):
            return g * 2

    others = []
    x = new().requires_grad_()
    space["y"] = Double.apply(x)
    assert "saved for backward of y (DoubleBackward)" in names_of(x)
    assert names_of(others[0]()) == ["saved for backward of y (DoubleBackward.other)"]


def test_hooks_of_saved_tensors_are_not_called(space):
    called = []
    x = new(4, 3).requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda t: ("packed", t), lambda p: called.append(p) or p[1]):
        space["y"] = x.exp()
    space["z"] = checkpoint(lambda t: t.sin(), x, use_reentrant=False)
    assert "saved for backward of y (ExpBackward0)[1]" in names_of(space["y"].detach())
    assert called == []


def test_the_pending_graph(space):
    from torchtpu import modes

    with modes.scope("defer_and_fuse"):
        x = new()
        modes.flush("test")
        space["y"] = x * 2
        found = best_of(x)
        assert (found.kind, found.free) == (holders.PENDING, "torch.tpu.synchronize()")
        torch.tpu.synchronize()
        assert names_of(x) == []


def test_what_has_no_name(space):
    x = new()
    buffer = buffer_of(x)
    kept = weakref.ref(x)
    del x
    assert kept() is None
    assert holders.names([buffer]) == [None]


class Hostile:
    """Its code must not run."""

    def __init__(self, x):
        object.__setattr__(self, "x", x)

    def _run(self, *args, **kwargs):
        raise AssertionError("code of the user's ran")

    __getattr__ = __getattribute__ = __len__ = __iter__ = __bool__ = __eq__ = __repr__ = __call__ = __contains__ = _run
    __hash__ = None
    __class__ = property(_run)


class HostileDict(dict):
    def _run(self, *args):
        raise AssertionError("code of the user's ran")

    items = keys = values = get = __iter__ = __len__ = __getitem__ = __contains__ = _run


class HostileTensor(torch.Tensor):
    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        raise AssertionError("code of the user's ran")


def test_no_code_of_the_users_runs(space):
    x, y, z = new(), new(), new()
    space.update(a=Hostile(x), b=HostileDict(k=y))
    space["c"] = torch.Tensor._make_subclass(HostileTensor, z)
    assert names_of(x) == ["a.x"]
    assert names_of(y) == ["b['k']"]
    assert names_of(z) == ["c"]


def test_looking_keeps_nothing_alive():
    def work():
        local = new()
        assert holders.names([buffer_of(local)]) == ["local in work()"]
        refs.append(weakref.ref(buffer_of(local)))
        del local
        assert refs[0]() is None, "the running function's own variables are kept"
        second = new().requires_grad_()
        graph = second.exp()
        holders.holders([buffer_of(second)])
        refs.append(weakref.ref(buffer_of(second)))
        return graph.shape

    refs = []
    gc.disable()
    try:
        work()
        assert [r() for r in refs] == [None, None]
    finally:
        gc.enable()


def test_locals_dictionaries_of_the_users_are_left_as_they_are():
    def work():
        mine = new()
        seen = locals()
        holders.names([buffer_of(mine)])
        return seen["mine"] is mine

    assert work()


def test_cycles_and_deep_nesting_end(space):
    x = new()
    loop = [x]
    loop.append(loop)
    deep = x
    for _ in range(100):
        deep = [deep]
    space.update(loop=loop, deep=deep)
    assert names_of(x) == ["loop[0]"]


def test_a_large_list_of_numbers_is_passed_quickly(space):
    x = new()
    space.update(numbers=list(range(1_000_000)), x=x)
    start = time.perf_counter()
    assert names_of(x) == ["x"]
    assert time.perf_counter() - start < 5


def test_a_thousand_tensors_in_a_walk_of_few_objects(space):
    space["many"] = many = [new() for _ in range(1000)]
    walk = reach.Walk(10_000)
    assert sum(1 for _ in walk.run(many, "many")) == 1000
    assert walk.left == 10_000 - 1001
    found = holders.names([buffer_of(t) for t in many])
    assert found == [f"many[{k}]" for k in range(1000)]


def test_everything_is_all_there_is(space):
    from torchtpu import hbm

    gc.collect()
    x = new()
    nameless = buffer_of(new())
    found = holders.everything()
    assert sum(b.nbytes for b, _ in found) == hbm.usage.live
    assert [h for b, h in found if b is nameless] == [[]]
    assert all(type(b) is Buffer for b, _ in found)
    del x


def test_it_starts_no_device():
    code = (
        "import sys, torchtpu; from torchtpu import client, holders\n"
        "assert holders.everything() == [] and not client.started() and 'jax' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
