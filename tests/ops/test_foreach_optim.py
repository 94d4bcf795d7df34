"""Foreach ops, fused and foreach optimizers, gradient clipping and scaling: values of the CPU, and counts of programs."""

from __future__ import annotations

import pytest
import torch
from torch.optim.optimizer import _default_to_fused_or_foreach

import torchtpu
from torchtpu.report import Report

pytestmark = pytest.mark.usefixtures("no_fallback")


def lists(device: str, dtype: torch.dtype = torch.float32) -> list[list[torch.Tensor]]:
    """Three lists of three positive tensors."""
    g = torch.Generator().manual_seed(0)
    shapes = (3, 4), (5,), (2, 1, 2)
    return [[torch.rand(s, generator=g).add(0.5).mul(3).to(dtype).to(device) for s in shapes] for _ in range(3)]


def reads(report: Report) -> list[str]:
    """What made the host wait for the device, other than debug mode."""
    return [s.kind for s in report.syncs if s.kind != "debug"]


# `x`, `y`, `z` are lists of tensors.
FUNCTIONAL = {
    "add.List": lambda x, y, z: torch._foreach_add(x, y, alpha=0.3),
    "add.Scalar": lambda x, y, z: torch._foreach_add(x, 2),
    "add.ScalarList": lambda x, y, z: torch._foreach_add(x, [1, 2, 3]),
    "add.Tensor": lambda x, y, z: torch._foreach_add(x, y[0][0, 0], alpha=2),
    "add.Tensor, number on the host": lambda x, y, z: torch._foreach_add(x, torch.tensor(2.5)),
    "addcdiv.Scalar": lambda x, y, z: torch._foreach_addcdiv(x, y, z, value=0.5),
    "addcdiv.ScalarList": lambda x, y, z: torch._foreach_addcdiv(x, y, z, [1.0, 2.0, 3.0]),
    "addcmul.ScalarList": lambda x, y, z: torch._foreach_addcmul(x, y, z, [1.0, 2.0, 3.0]),
    "addcmul.Tensor": lambda x, y, z: torch._foreach_addcmul(x, y, z, torch.tensor([1.0, 2.0, 3.0])),
    "clamp_max.List": lambda x, y, z: torch._foreach_clamp_max(x, y),
    "clamp_min.Scalar": lambda x, y, z: torch._foreach_clamp_min(x, 2.0),
    "div.ScalarList": lambda x, y, z: torch._foreach_div(x, [1.0, 2.0, 3.0]),
    "lerp.List": lambda x, y, z: torch._foreach_lerp(x, y, z),
    "lerp.Scalar": lambda x, y, z: torch._foreach_lerp(x, y, 0.2),
    "lerp.ScalarList": lambda x, y, z: torch._foreach_lerp(x, y, [0.2, 0.4, 0.8]),
    "max": lambda x, y, z: torch._foreach_max(x),
    "maximum.ScalarList": lambda x, y, z: torch._foreach_maximum(x, [1.0, 2.0, 3.0]),
    "minimum.List": lambda x, y, z: torch._foreach_minimum(x, y),
    "mul.List": lambda x, y, z: torch._foreach_mul(x, y),
    "neg": lambda x, y, z: torch._foreach_neg(x),
    "norm": lambda x, y, z: torch._foreach_norm(x),
    "norm, infinity": lambda x, y, z: torch._foreach_norm(x, float("inf")),
    "norm, other dtype": lambda x, y, z: torch._foreach_norm(x, 1, dtype=torch.float64),
    "pow.List": lambda x, y, z: torch._foreach_pow(x, y),
    "pow.Scalar": lambda x, y, z: torch._foreach_pow(x, 3),
    "pow.ScalarAndTensor": lambda x, y, z: torch._foreach_pow(2.0, x),
    "pow.ScalarList": lambda x, y, z: torch._foreach_pow(x, [0.5, 2.0, 3.0]),
    "powsum": lambda x, y, z: torch._foreach_powsum(x, 3),
    "sqrt": lambda x, y, z: torch._foreach_sqrt(x),
    "sub.List": lambda x, y, z: torch._foreach_sub(x, y, alpha=2),
}

IN_PLACE = {
    "add_": lambda x, y, z: torch._foreach_add_(x, [1.0, 2.0, 3.0]),
    "addcdiv_.Tensor": lambda x, y, z: torch._foreach_addcdiv_(x, y, z, torch.tensor([1.0, 2.0, 3.0])),
    "copy_": lambda x, y, z: torch._foreach_copy_(x, y),
    "copy_ of other dtypes": lambda x, y, z: torch._foreach_copy_(x, [t.double() for t in y]),
    "reciprocal_": lambda x, y, z: torch._foreach_reciprocal_(x),
    "the same tensor again and again": lambda x, y, z: torch._foreach_add_([x[0], x[0], x[0]], 1.0),
    "views of one tensor": lambda x, y, z: torch._foreach_mul_([x[0][0], x[0][1:], x[0][1]], [2.0, 3.0, 4.0]),
    "an argument that an earlier element wrote": lambda x, y, z: torch._foreach_add_([x[0], y[0]], [y[0], x[0]]),
    "zero_": lambda x, y, z: torch._foreach_zero_(x),
}


def test_functional(mode):
    ours = {name: call(*lists("tpu")) for name, call in FUNCTIONAL.items()}
    for name, call in FUNCTIONAL.items():
        torch.testing.assert_close([t.cpu() for t in ours[name]], list(call(*lists("cpu"))), msg=lambda m, n=name: f"{n}: {m}")


def test_in_place(mode):
    ours = {name: lists("tpu") for name in IN_PLACE}
    for name, call in IN_PLACE.items():
        call(*ours[name])
    for name, call in IN_PLACE.items():
        theirs = lists("cpu")
        call(*theirs)
        torch.testing.assert_close([[t.cpu() for t in ts] for ts in ours[name]], theirs, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.complex64])
def test_dtypes(dtype):
    for call in (FUNCTIONAL["add.List"], FUNCTIONAL["mul.List"], FUNCTIONAL["div.ScalarList"], FUNCTIONAL["neg"]):
        if dtype == torch.int64 and call is FUNCTIONAL["add.List"]:
            continue  # alpha is no integer
        torch.testing.assert_close([t.cpu() for t in call(*lists("tpu", dtype))], list(call(*lists("cpu", dtype))))


def test_a_call_is_one_program_whatever_the_numbers():
    x, y, z = lists("tpu")
    torch._foreach_addcdiv_(x, y, z, [1.0, 2.0, 3.0])
    with torchtpu.watch() as report:
        torch._foreach_addcdiv_(x, y, z, [0.5, 0.0, 1.0])
        torch._foreach_addcdiv_(x, y, z, torch.tensor([3.0, 2.0, 1.0]))
    assert (len(report.compile_events), report.runs) == (0, 2)


def test_copies_from_the_host():
    x, y, _ = lists("tpu")
    torch._foreach_copy_(x, [t.cpu() for t in y])
    torch.testing.assert_close([t.cpu() for t in x], [t.cpu() for t in y])


def test_errors_are_those_of_the_cpu():
    for call in (
        lambda x, y: torch._foreach_add(x, y[:2]),
        lambda x, y: torch._foreach_add_(x, [1.0]),
        lambda x, y: torch._foreach_add([], 1.0),
    ):
        messages = []
        for device in ("tpu", "cpu"):
            x, y, _ = lists(device)
            with pytest.raises(RuntimeError) as error:
                call(x, y)
            messages.append(str(error.value))
        assert messages[0] == messages[1]


# Optimizers

OPTIMIZERS = [
    ("ASGD", {}),
    ("Adadelta", {}),
    ("Adafactor", {}),
    ("Adagrad", {"lr_decay": 0.1}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1}),
    ("AdamW", {}),
    ("Adamax", {}),
    ("NAdam", {"decoupled_weight_decay": True, "weight_decay": 0.1}),
    ("RAdam", {}),
    ("RMSprop", {"momentum": 0.9, "centered": True}),
    ("Rprop", {}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
]
CAPTURABLE = {"ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"}
FUSED = [
    ("Adagrad", {"lr_decay": 0.1, "weight_decay": 0.1}),
    ("Adam", {"amsgrad": True, "weight_decay": 0.1, "maximize": True}),
    ("AdamW", {"weight_decay": 0.1}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "nesterov": True, "weight_decay": 0.01}),
    ("SGD", {"lr": 0.01, "momentum": 0.9, "dampening": 0.3}),
    ("SGD", {"lr": 0.01}),
]


def train(device: str, name: str, options: dict, dtype: torch.dtype = torch.float32, steps: int = 5) -> list[torch.Tensor]:
    """Return parameters and tensor states after some steps of a small problem."""
    g = torch.Generator().manual_seed(0)
    parameters = [torch.nn.Parameter(torch.randn(s, generator=g).to(device, dtype)) for s in ((3, 4), (4,))]
    optimizer = getattr(torch.optim, name)(parameters, **options)
    for step in range(steps):
        optimizer.zero_grad()
        sum(((p * (step + 1)).sin() ** 2).sum() for p in parameters).backward()
        optimizer.step()
    states = [v for p in parameters for v in optimizer.state[p].values() if isinstance(v, torch.Tensor)]
    return [t.detach().cpu() for t in (*parameters, *states)]


@pytest.mark.parametrize("foreach", [None, False], ids=["default", "for loop"])
@pytest.mark.parametrize(("name", "options"), OPTIMIZERS, ids=[n for n, _ in OPTIMIZERS])
def test_optimizer(name, options, foreach, mode):
    torch.testing.assert_close(
        train("tpu", name, {**options, "foreach": foreach}), train("cpu", name, {**options, "foreach": False})
    )


@pytest.mark.parametrize(("name", "options"), FUSED)
def test_fused_optimizer(name, options, mode):
    options = {**options, "fused": True}
    torch.testing.assert_close(train("tpu", name, options), train("cpu", name, options))


@pytest.mark.parametrize("name", sorted(CAPTURABLE))
def test_capturable_optimizer(name):
    options = dict(OPTIMIZERS)[name]
    ours = train("tpu", name, {**options, "capturable": True})
    torch.testing.assert_close(ours[:2], train("cpu", name, options)[:2])


@pytest.mark.parametrize("name", ["Adam", "SGD"])
def test_fused_optimizer_in_bfloat16(name):
    options = {"fused": True, "lr": 0.1}
    torch.testing.assert_close(train("tpu", name, options, torch.bfloat16), train("cpu", name, options, torch.bfloat16))


def test_lbfgs(mode):
    def minimum(device: str) -> torch.Tensor:
        x = torch.nn.Parameter(torch.tensor([3.0, -2.0], device=device))
        optimizer = torch.optim.LBFGS([x], max_iter=8)

        def closure() -> torch.Tensor:
            optimizer.zero_grad()
            loss = (x - 1).square().sum() + x.prod()
            loss.backward()
            return loss

        optimizer.step(closure)
        return x.detach().cpu()

    torch.testing.assert_close(minimum("tpu"), minimum("cpu"))


def test_muon():
    x = torch.randn(4, 6)

    def stepped(device: str) -> torch.Tensor:
        p = torch.nn.Parameter(x.to(device))
        optimizer = torch.optim.Muon([p])
        p.square().sum().backward()
        optimizer.step()
        return p.detach().cpu()

    torch.testing.assert_close(stepped("tpu"), stepped("cpu"))


def test_foreach_is_the_default():
    parameters = [torch.nn.Parameter(torch.ones(2, device="tpu"))]
    assert _default_to_fused_or_foreach(parameters, differentiable=False) == (False, True)


@pytest.mark.parametrize("fused", [None, True])
def test_a_learning_rate_schedule_compiles_nothing(mode, fused):
    p = torch.nn.Parameter(torch.ones(16, device="tpu"))
    optimizer = torch.optim.AdamW([p], lr=1e-3, fused=fused)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda k: 1 / (k + 1))

    def step() -> None:
        optimizer.zero_grad()
        p.square().sum().backward()
        optimizer.step()
        schedule.step()

    for _ in range(3):
        step()
    with torchtpu.watch() as report:
        for _ in range(10):
            step()
    assert (len(report.compile_events), reads(report)) == (0, [])


def test_equal_numbers_are_no_special_case(mode):
    p = torch.ones(4, device="tpu")

    def step(lr: float) -> None:
        nonlocal p
        p = p - lr * p / (p.abs() + 1e-8)
        p.sum().item()

    step(1e-2)
    step(1e-4)
    with torchtpu.watch() as report:
        for lr in (1e-8, 1e-6, 0.0, 1.0):
            step(lr)
    assert report.compile_events == ()


def test_training_goes_on_after_load_state_dict(mode):
    p = torch.nn.Parameter(torch.ones(8, device="tpu"))
    optimizer = torch.optim.AdamW([p])

    def step() -> None:
        optimizer.zero_grad()
        p.sum().backward()
        optimizer.step()

    for _ in range(3):
        step()
    optimizer.load_state_dict(optimizer.state_dict())
    step()
    with torchtpu.watch() as report:
        for _ in range(5):
            step()
    assert (len(report.compile_events), reads(report)) == (0, [])
    assert optimizer.state[p]["step"].device.type == "cpu"


# Clipping and scaling


def gradients(device: str) -> list[torch.nn.Parameter]:
    parameters = []
    for values in lists(device)[0]:
        p = torch.nn.Parameter(values)
        p.grad = values * 2
        parameters.append(p)
    return parameters


@pytest.mark.parametrize("kind", [1.0, 2.0, float("inf")])
def test_clip_grad_norm(kind, mode):
    ours, theirs = gradients("tpu"), gradients("cpu")
    norms = [torch.nn.utils.clip_grad_norm_(ps, 1.0, norm_type=kind) for ps in (ours, theirs)]
    torch.testing.assert_close(norms[0].cpu(), norms[1])
    torch.testing.assert_close([p.grad.cpu() for p in ours], [p.grad for p in theirs])


def test_clip_grad_norm_reads_nothing():
    parameters = gradients("tpu")
    with torchtpu.watch() as report:
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
    assert reads(report) == []
    parameters[0].grad[0, 0] = float("nan")
    with pytest.raises(RuntimeError, match="non-finite"):
        torch.nn.utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)


def test_clip_grad_value(mode):
    ours, theirs = gradients("tpu"), gradients("cpu")
    for parameters in (ours, theirs):
        torch.nn.utils.clip_grad_value_(parameters, 4.0)
    torch.testing.assert_close([p.grad.cpu() for p in ours], [p.grad for p in theirs])


@pytest.mark.parametrize("fused", [False, True])
def test_grad_scaler(fused, mode):
    """A step with an infinite gradient is skipped and halves the scale; two good ones double it."""
    w = torch.nn.Parameter(torch.full((4,), 2.0, device="tpu"))
    optimizer = torch.optim.SGD([w], lr=0.25, fused=fused)
    scaler = torch.amp.GradScaler("tpu", init_scale=4.0, growth_interval=2)
    history = []
    for blow_up in (1.0, float("inf"), 1.0, 1.0):
        optimizer.zero_grad()
        scaler.scale(w.square().sum() * blow_up).backward()
        scaler.step(optimizer)
        scaler.update()
        history.append((scaler.get_scale(), w[0].item()))
    assert history == [(4.0, 1.0), (2.0, 1.0), (2.0, 0.5), (4.0, 0.25)]
