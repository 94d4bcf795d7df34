"""Precision of float32 products: who chooses it, where it is written down, and what it does where a TPU is emulated."""

from __future__ import annotations

import itertools
import math
import re
import threading
from collections.abc import Callable, Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import torchtpu
from torchtpu import config, precision
from torchtpu.report import Report

PRECISIONS = ("DEFAULT", "HIGH", "HIGHEST")

# Relative errors as powers of two: (lowest, highest). An exact sum would have about -8.7, -17.8 and less than -24.
ERRORS = {"DEFAULT": (-9.5, -7.5), "HIGH": (-18.5, -16), "HIGHEST": (-26, -22)}


@pytest.fixture
def emulated() -> Iterator[None]:
    with config.options(numerics="tpu"):
        yield


# Sizes that no other test uses, and no other mode: strict and debug share their programs.
fresh = itertools.count(701).__next__


def error(ours: torch.Tensor, exact: torch.Tensor) -> float:
    """The relative error of a whole tensor, as a power of two."""
    return math.log2(float((ours.cpu().to(exact.dtype) - exact).norm() / exact.norm()))


def with_gradients(fn: Callable[..., torch.Tensor], arguments: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    """A function's result and its gradients, for a gradient of the result that has every digit."""
    arguments = tuple(a.detach().requires_grad_() for a in arguments)
    result = fn(*arguments)
    generator = torch.Generator().manual_seed(1)
    result.backward(torch.randn(result.shape, generator=generator).to(result.device, result.dtype))
    return [result.detach(), *(a.grad for a in arguments)]


def inputs(*shapes: tuple[int, ...], dtype: torch.dtype | None = None) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    return tuple(torch.randn(*shape, generator=generator, dtype=dtype) for shape in shapes)


FAMILIES = {
    "matmul": (torch.matmul, inputs((24, 96), (96, 20))),
    "convolution": (lambda x, w: F.conv2d(x, w, padding=1), inputs((2, 6, 8, 8), (5, 6, 3, 3))),
    "attention": (lambda q, k, v: F.scaled_dot_product_attention(q, k, v), inputs(*((2, 2, 24, 32),) * 3)),
}


@pytest.mark.parametrize("name", PRECISIONS)
def test_emulated_products_and_their_gradients_have_the_error_of_their_passes(mode: str, name: str, emulated: None) -> None:
    lowest, highest = ERRORS[name]
    for family, (fn, arguments) in FAMILIES.items():
        # The gradients of attention are a dozen products, of six passes each at HIGHEST: long to compile, and the same code.
        graded = family == "matmul" or (name == "DEFAULT" and mode == "defer_and_fuse")
        run = with_gradients if graded else lambda fn, arguments: [fn(*arguments)]
        exact = run(fn, tuple(a.double() for a in arguments))
        with torch.tpu.precision(name):
            ours = run(fn, tuple(a.to("tpu") for a in arguments))
        for k, (a, b) in enumerate(zip(ours, exact, strict=True)):
            assert lowest < error(a, b) < highest + (family == "attention"), (family, k, error(a, b))


def test_default_is_an_exact_product_of_bfloat16_numbers(mode: str, emulated: None) -> None:
    a, b = inputs((16, 32), (32, 16))
    with torch.tpu.precision("DEFAULT"):
        ours = a.to("tpu") @ b.to("tpu")
    assert error(ours, a.bfloat16().double() @ b.bfloat16().double()) < -23


@pytest.mark.parametrize(
    ("fn", "shapes"),
    [
        (torch.mv, ((24, 64), (64,))),
        (torch.dot, ((999,), (999,))),
        (torch.bmm, ((3, 8, 64), (3, 64, 8))),
        (torch.addmm, ((8, 8), (8, 64), (64, 8))),
        (torch.baddbmm, ((3, 8, 8), (3, 8, 64), (3, 64, 8))),
        (lambda a, b: torch.einsum("ij,jk->ki", a, b), ((8, 64), (64, 8))),
        (F.linear, ((8, 64), (8, 64), (8,))),
        (lambda x, w: F.conv_transpose1d(x, w, stride=2), ((2, 6, 9), (6, 5, 3))),
        (lambda x, w: F.conv3d(x, w), ((1, 6, 4, 4, 4), (5, 6, 3, 3, 3))),
    ],
    ids=["mv", "dot", "bmm", "addmm", "baddbmm", "einsum", "linear", "conv_transpose1d", "conv3d"],
)
def test_the_other_products_are_emulated_too(fn: Callable[..., torch.Tensor], shapes: tuple, emulated: None) -> None:
    arguments = inputs(*shapes)
    exact = fn(*(a.double() for a in arguments))
    with torch.tpu.precision("DEFAULT"):
        coarse = error(fn(*(a.to("tpu") for a in arguments)), exact)
    with torch.tpu.precision("HIGHEST"):
        fine = error(fn(*(a.to("tpu") for a in arguments)), exact)
    assert -12 < coarse < -7
    assert fine < -21


def test_distances_are_taken_from_a_product(emulated: None) -> None:
    a, b = inputs((30, 8), (26, 8))
    exact = torch.cdist(a.double(), b.double())
    with torch.tpu.precision("DEFAULT"):
        assert -12 < error(torch.cdist(a.to("tpu"), b.to("tpu")), exact) < -7


def test_a_recurrent_network_is_emulated(emulated: None) -> None:
    lstm, (x,) = nn.LSTM(8, 16), inputs((1, 2, 8))
    exact = lstm.double()(x.double())[0].detach()
    lstm = lstm.float().to("tpu")
    with torch.tpu.precision("DEFAULT"), torch.no_grad():
        assert -12 < error(lstm(x.to("tpu"))[0], exact) < -7


def test_complex_products_are_emulated(emulated: None) -> None:
    a, b = inputs((8, 64), (64, 8), dtype=torch.complex64)
    exact = a.to(torch.complex128) @ b.to(torch.complex128)
    for name, (lowest, highest) in ERRORS.items():
        with torch.tpu.precision(name):
            assert lowest < error(a.to("tpu") @ b.to("tpu"), exact) < highest


@pytest.mark.parametrize("name", PRECISIONS)
def test_infinities_spread_as_in_float32(name: str, emulated: None) -> None:
    a = torch.tensor([[math.inf, 2.01], [math.nan, 1.0], [1.0, 2.0]])
    b = torch.tensor([[2.01, 1.0], [1.0, -3.01]])
    with torch.tpu.precision(name):
        torch.testing.assert_close((a.to("tpu") @ b.to("tpu")).cpu(), a @ b, equal_nan=True, rtol=1e-2, atol=0)


def test_products_of_float16_lose_bits_at_default_only(emulated: None) -> None:
    a, b = (x.half() for x in inputs((16, 64), (64, 16)))
    exact = a.double() @ b.double()
    by_name = {}
    for name in PRECISIONS:
        with torch.tpu.precision(name):
            by_name[name] = a.to("tpu") @ b.to("tpu")
            assert by_name[name].dtype == torch.float16
    rounded = error(exact.half(), exact)
    assert error(by_name["DEFAULT"], exact) > rounded + 2
    assert abs(error(by_name["HIGH"], exact) - rounded) < 0.1
    assert torch.equal(by_name["HIGH"], by_name["HIGHEST"])


def test_products_of_other_dtypes_are_not_touched(mode: str, emulated: None) -> None:
    for dtype in (torch.float64, torch.bfloat16, torch.int64):
        a, b = (x.mul(9).to(dtype) for x in inputs((8, 16), (16, 8)))
        with torch.tpu.precision("DEFAULT"):
            torch.testing.assert_close((a.to("tpu") @ b.to("tpu")).cpu(), a @ b)


def losses(mode: str, name: str, numerics: str = "tpu") -> torch.Tensor:
    """Train a small model for a few steps."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 1)).to("tpu")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (t.to("tpu") for t in inputs((64, 16), (64, 1)))
    found = []
    with torch.tpu.set_eager_mode(mode), torch.tpu.precision(name), config.options(numerics=numerics):
        for _ in range(8):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            optimizer.step()
            found.append(loss.item())
    return torch.tensor(found, dtype=torch.float64)


def test_a_loss_curve_shows_the_passes_and_is_the_same_fused() -> None:
    exact = losses("defer_and_fuse", "HIGHEST", "native")
    coarse, fine = losses("defer_and_fuse", "DEFAULT"), losses("defer_and_fuse", "HIGHEST")
    assert ((coarse - exact) / exact).abs().max() > 1e-4
    torch.testing.assert_close(fine, exact, rtol=2e-6, atol=0)
    torch.testing.assert_close(losses("strict", "DEFAULT"), coarse, rtol=1e-5, atol=0)


def test_a_cpu_is_exact_whatever_the_precision(mode: str) -> None:
    a, b = (x.to("tpu") for x in inputs((16, 32), (32, 16)))
    results = []
    for name in PRECISIONS:
        with torch.tpu.precision(name):
            results.append((a @ b).cpu())
    assert torch.equal(results[0], results[1])
    assert torch.equal(results[0], results[2])


# -- who chooses


def test_a_scope_is_process_wide_nests_and_ends() -> None:
    seen: list[str] = []
    with torch.tpu.precision(torch.tpu.Precision.DEFAULT):
        with pytest.raises(KeyError), torch.tpu.precision("high"):
            thread = threading.Thread(target=lambda: seen.append(precision.current().precision.name))
            thread.start()
            thread.join()
            raise KeyError
        seen.append(precision.current().precision.name)
        assert torch.get_float32_matmul_precision() == "highest"  # other devices have it too
    seen.append(precision.current().precision.name)
    assert seen == ["HIGH", "DEFAULT", "HIGHEST"]


@pytest.mark.parametrize(("name", "ours"), [("medium", "DEFAULT"), ("high", "HIGH"), ("highest", "HIGHEST")])
def test_pytorchs_setting_is_honoured_from_the_next_op_on(mode: str, name: str, ours: str, emulated: None) -> None:
    a, b = (x.to("tpu") for x in inputs((16, 32), (32, 16)))
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(name)
        by_setting = a @ b
    finally:
        torch.set_float32_matmul_precision(before)
    with torch.tpu.precision(ours):
        assert torch.equal(by_setting, a @ b)
    with torch.tpu.precision("HIGHEST" if ours == "DEFAULT" else "DEFAULT"):
        assert not torch.equal(by_setting, a @ b)


def test_pytorchs_settings_for_single_backends_leave_products_exact() -> None:
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        torch.backends.cuda.matmul.fp32_precision = "tf32"
        with pytest.raises(RuntimeError, match="mix of the legacy and new APIs"):
            torch.get_float32_matmul_precision()
        assert precision.current() is precision.EXACT
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert torch.get_float32_matmul_precision() == "highest"


def test_names_of_precisions_are_read_generously() -> None:
    assert [(p.name, p.passes) for p in torch.tpu.Precision] == [("DEFAULT", 1), ("HIGH", 3), ("HIGHEST", 6)]
    for name in ("default", "medium", "Precision.DEFAULT", torch.tpu.Precision.DEFAULT):
        assert precision.Precision.parse(name) is torch.tpu.Precision.DEFAULT
    message = r"unknown precision 'hihgest': use one of DEFAULT, HIGH, HIGHEST\. Did you mean 'highest'\?"
    with pytest.raises(ValueError, match=message), torch.tpu.precision("hihgest"):
        pass


def test_an_unknown_numerics_is_refused_wherever_it_is_set() -> None:
    message = r"numerics='tpuu': use one of native, tpu\. Did you mean 'tpu'\?"
    with pytest.raises(ValueError, match=message), config.options(numerics="tpuu"):
        pass
    with pytest.raises(ValueError, match=message):
        config.numerics = "tpuu"
    assert config.numerics == "native"


# -- where it is written down


def programs(report: Report) -> str:
    return "\n".join(p.stablehlo() for p in report.live_programs())


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_lowered_code_carries_it_and_for_a_tpu_nothing_is_emulated(mode: str, name: str, emulated: None) -> None:
    moved = [(fn, tuple(a.to("tpu") for a in arguments)) for fn, arguments in FAMILIES.values()]
    with torch.tpu.precision(name), torchtpu.watch() as report:
        kept = [fn(*arguments) for fn, arguments in moved]
        torch.tpu.synchronize()
    assert len(kept) == 3
    lowered = [p.lower_for("tpu").as_text() for p in report.live_programs()]
    products = [line for text in lowered for line in text.splitlines() if "dot_general" in line or "convolution(" in line]
    assert len(products) == 4
    assert all(f"[{name}, {name}]" in line or line.count(f"#stablehlo<precision {name}>") == 2 for line in products)
    assert not any("reduce_precision" in text for text in lowered)
    assert "reduce_precision" in programs(report)


def test_ops_keep_the_precision_that_they_were_recorded_with(emulated: None) -> None:
    a, b = (x.to("tpu") for x in inputs((16, 32), (32, 16)))
    exact = a.cpu().double() @ b.cpu().double()
    with torch.tpu.set_eager_mode("defer_and_fuse"), torchtpu.watch() as report:
        with torch.tpu.precision("DEFAULT"):
            coarse = a @ b
        fine = a @ b
        torch.tpu.synchronize()
    assert -9.5 < error(coarse, exact) < -7.5
    assert error(fine, exact) < -22
    (program,) = report.programs
    assert program.precision == "DEFAULT, emulated and HIGHEST, emulated"


def test_each_precision_is_compiled_once(mode: str) -> None:
    a = torch.ones(fresh(), 11).to("tpu")

    def work() -> None:
        (a @ a.T).sum().item()

    for name in PRECISIONS:
        with torch.tpu.precision(name):
            work()
    with torchtpu.watch() as report:
        for name in PRECISIONS:
            with torch.tpu.precision(name):
                work()
    assert report.compile_events == ()
    assert {p.precision for p in report.programs} - {""} == set(PRECISIONS)


def test_products_that_have_no_choice_are_not_compiled_again(mode: str) -> None:
    a = torch.ones(fresh(), 13, dtype=torch.bfloat16).to("tpu")

    def work() -> None:
        (a @ a.T).sum().item()

    work()
    with torchtpu.watch() as report, torch.tpu.precision("DEFAULT"), config.options(numerics="tpu"):
        work()
    assert report.compile_events == ()
    assert {p.precision for p in report.programs} == {""}


def test_a_change_of_numerics_is_named_as_the_cause(mode: str) -> None:
    a = torch.ones(fresh(), 17).to("tpu")

    def work() -> None:
        (a @ a.T).sum().item()

    work()
    with torchtpu.watch() as report, config.options(numerics="tpu"), torch.tpu.precision("HIGH"):
        work()
    assert {cause.kind for cause in report.compile_events} == {"precision"}
    assert report.compile_events[0].detail.startswith("precision HIGHEST -> HIGH, numerics native -> tpu")


def test_reports_say_it_where_it_was_chosen() -> None:
    a = torch.ones(19, 19).to("tpu")
    with torchtpu.watch() as report:
        a @ a
    assert [p.precision for p in report.programs] == ["HIGHEST"]
    assert not re.search(r"\bprecision\b", report.to_text())
    with torchtpu.watch() as report, torch.tpu.precision("DEFAULT"):
        a @ a
        a + a
    assert sorted(p.precision for p in report.programs) == ["", "DEFAULT"]
    for text in (report.to_text(200), report.to_html()):
        assert re.search(r"\bprecision\b", text)
        assert "XLA:CPU computes float32 products exactly unless they are emulated" in text
    assert Report.from_json(report.to_json()).programs == report.programs
    with torchtpu.watch() as report, torch.tpu.precision("DEFAULT"), config.options(numerics="tpu"):
        a @ a
    assert "DEFAULT, emulated" in report.to_text(200)
    assert "exactly" not in report.to_text(200)


@pytest.mark.parametrize("name", PRECISIONS)
def test_the_check_against_the_cpu_allows_what_the_precision_does(name: str, emulated: None) -> None:
    a, b = (x.to("tpu") for x in inputs((32, 64), (64, 32)))
    checked = config.options(debug_compare_cpu=True)
    with torch.tpu.set_eager_mode("debug"), checked, torch.tpu.precision(name), torchtpu.watch() as report:
        a @ b
    (off,) = report.trace.alone
    assert off < {"DEFAULT": 2**-6, "HIGH": 2**-14, "HIGHEST": 2**-20}[name]


# -- excess precision


@pytest.fixture
def excess() -> Iterator[None]:
    torch.tpu.allow_excess_precision = True
    try:
        yield
    finally:
        torch.tpu.allow_excess_precision = False


def test_excess_precision_goes_to_the_compiler_and_has_programs_of_its_own(mode: str) -> None:
    x = torch.ones(fresh()).to("tpu")

    def work() -> Report:
        with torchtpu.watch() as report:
            (x.bfloat16() * 2).sum().item()
        return report

    assert torch.tpu.allow_excess_precision is False
    before = work()
    torch.tpu.allow_excess_precision = True
    try:
        allowed = work()
        assert work().compile_events == ()
    finally:
        torch.tpu.allow_excess_precision = False
    assert work().compile_events == ()
    for report, wanted in ((before, False), (allowed, True)):
        assert {p.options["xla_allow_excess_precision"] for p in report.live_programs()} == {wanted}
    assert {c.kind for c in allowed.compile_events} == {"precision"}
    assert allowed.compile_events[0].detail.startswith("allow_excess_precision False -> True")
    assert {p.precision for p in allowed.programs} == {"excess allowed"}


def test_pending_ops_run_before_excess_precision_changes(excess: None) -> None:
    with torch.tpu.set_eager_mode("defer_and_fuse"), torchtpu.watch() as report:
        x = torch.ones(29, device="tpu") * 3
        torch.tpu.allow_excess_precision = False
        y = x + 1
        assert y.sum().item() == 29 * 4
    assert [f.reason for f in report.flushes][:2] == ["precision change", "item"]


def test_excess_precision_is_a_bool() -> None:
    with pytest.raises(TypeError, match="allow_excess_precision is True or False, not 'yes'"):
        torch.tpu.allow_excess_precision = "yes"
