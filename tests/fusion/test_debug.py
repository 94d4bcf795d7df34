"""Debug mode's checks stop at the op and the line that a person looks for, and say where the values came from."""

from __future__ import annotations

import bdb
import builtins
import pickle

import pytest
import torch
from torch import nn

import torchtpu
from torchtpu import checks, config, errors, holders, modes
from torchtpu.checks import cpu


@pytest.fixture(autouse=True)
def debug():
    with modes.scope("debug"):
        yield
    cpu.forget()


def test_every_op_is_waited_for():
    x = torch.ones(4, device="tpu")
    with torchtpu.watch() as report:
        (x * 2 + 1).abs()
    assert sum(s.kind == "debug" for s in report.syncs) == report.runs == 3
    assert report.cache_hits == 3 - len(report.compile_events)


def sources(steps):
    return [(s.op, s.line.source if s.line else None) for s in steps]


class TestNaN:
    @pytest.fixture(autouse=True)
    def nan(self, debug):
        with config.options(debug_nan=True):
            yield

    def test_the_first_one_is_found_with_its_op_line_values_and_history(self):
        x = torch.tensor([1.0, 3.0], device="tpu")
        centred = x - 2  # the mean
        scaled = centred * 2
        with pytest.raises(errors.NumericsError) as caught:
            y = scaled.log()  # noqa: F841
        first, *rest = str(caught.value).splitlines()
        assert first.startswith("aten::log made 1 NaN and 0 Inf among 2 values from finite inputs (test_debug.py:")
        assert first.endswith(": y = scaled.log()  # noqa: F841)")
        assert (
            rest[0]
            == "  scaled in test_the_first_one_is_found_with_its_op_line_values_and_history(): float32[2], -2 to 2, mean 0"
        )
        assert rest[1].startswith("      from aten::mul.Tensor  test_debug.py:")
        assert rest[2].endswith(": centred = x - 2  # the mean")
        assert rest[-1] == "  result: float32[2], 0.6931 to 0.6931, mean 0.6931; 1 NaN of 2"
        finding = caught.value.finding
        assert (finding.op, finding.called) == ("aten::log", None)
        assert finding.line.source == "y = scaled.log()  # noqa: F841"
        (read,) = finding.inputs
        assert read.values == checks.Statistics("float32[2]", 2, 0, 0, 0, -2.0, 2.0, 0.0)
        assert sources(read.history) == [
            ("aten::mul.Tensor", "scaled = centred * 2"),
            ("aten::sub.Tensor", "centred = x - 2  # the mean"),
        ]
        assert pickle.loads(pickle.dumps(caught.value)).finding == finding

    @pytest.mark.parametrize(
        ("make", "op"),
        [
            (lambda x: x / 0, "aten::div.Tensor made 0 NaN and 2 Inf"),
            (lambda x: (x * 200).exp(), "aten::exp made 0 NaN and 2 Inf"),
            (lambda x: torch.full_like(x, -torch.inf).softmax(0), "aten::_softmax made 2 NaN and 0 Inf"),
            (lambda x: x.div_(0), "aten::div_.Tensor made 0 NaN and 2 Inf"),
            (lambda x: torch.zeros(2, device="tpu", dtype=torch.bfloat16).log(), "aten::log made 0 NaN and 2 Inf"),
            (lambda x: (x.to(torch.complex64) * 1j).div(0), "aten::div.Tensor made"),
        ],
    )
    def test_each_way_to_make_one(self, make, op, monkeypatch):
        monkeypatch.setattr(holders, "names", lambda buffers: [None] * len(buffers))  # pytest has many objects to look at
        with pytest.raises(errors.NumericsError) as caught:
            make(torch.ones(2, device="tpu"))
        assert str(caught.value).startswith(op)

    def test_what_was_asked_for_is_no_finding(self):
        mask = torch.zeros(3, device="tpu").masked_fill(torch.tensor([True, False, True], device="tpu"), float("-inf"))
        assert torch.softmax(mask, 0).tolist() == [0, 1, 0]
        missing = torch.full((2,), float("nan"), device="tpu") + 1
        assert missing.mul(2).nan_to_num(3.0).tolist() == [3, 3]

    def test_nans_that_were_there_before_are_found_where_they_are_read_first(self):
        model = nn.Linear(3, 2)
        with torch.no_grad():
            model.weight[0, 1] = float("nan")
        model.to("tpu")
        with pytest.raises(errors.NumericsError, match="from NaNs that were there before") as caught:
            model(torch.ones(1, 3, device="tpu"))
        (weight,) = (i for i in caught.value.finding.inputs if i.values.nans)
        assert weight.name.startswith("model.weight")
        assert (weight.values.nans, weight.values.count) == (1, 6)

    def test_in_backward_it_is_shown_at_the_forward_line(self):
        x = torch.zeros(3, device="tpu", requires_grad=True)
        y = x.sqrt().sum()  # the root of zero
        with pytest.raises(errors.NumericsError, match=r"backward of test_debug.py:\d+: .*the root of zero") as caught:
            y.backward()
        finding = caught.value.finding
        assert finding.line.backward
        assert finding.called.source == "y.backward()"
        assert "  called by the backward pass of test_debug.py:" in str(finding)
        assert ("aten::sqrt", "y = x.sqrt().sum()  # the root of zero") in sources(finding.inputs[1].history)

    def test_a_failed_op_changes_nothing_and_the_next_ones_work(self):
        x = torch.tensor([4.0, 0.0], device="tpu")
        with pytest.raises(errors.NumericsError):
            x.log_()
        assert x.tolist() == [4, 0]

    def test_the_checks_see_inputs_that_the_op_overwrites(self):
        x = torch.tensor([-1.0], device="tpu")
        x += 0
        with pytest.raises(errors.NumericsError) as caught:
            x.sqrt_()
        assert caught.value.finding.inputs[0].values.lowest == -1


@pytest.mark.parametrize("wrong", [7, -1])
def test_an_index_out_of_range_is_an_index_error(wrong):
    weight = torch.ones(5, 2, device="tpu")
    with pytest.raises(IndexError, match=f"index {wrong} is out of bounds for dimension with size 5"):
        torch.nn.functional.embedding(torch.tensor([0, wrong], device="tpu"), weight)


class TestAgainstCPU:
    @pytest.fixture(autouse=True)
    def compare(self, debug):
        with config.options(debug_compare_cpu=True):
            yield

    def test_a_training_step_agrees(self):
        model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Dropout(0.5)).to("tpu")
        optimizer = torch.optim.AdamW(model.parameters())
        with torchtpu.watch() as report:
            model(torch.randn(2, 1, 8, 8, device="tpu")).sum().backward()
            optimizer.step()
        compared = {r.op for r in report.trace if r.alone is not None}
        assert {"aten::convolution", "aten::native_batch_norm", "aten::convolution_backward"} <= compared
        assert {r.op for r in report.trace if r.alone is None} == {"aten::normal_", "aten::native_dropout"}
        assert max(r.alone for r in report.trace if r.alone is not None) < 1e-5

    def test_views_aliases_and_factories_agree(self):
        x = torch.arange(6.0, device="tpu")
        x[1::2].mul_(3)
        x.add_(x)
        x.view(2, 3).t()[1].mul_(x[2:4])
        assert x.tolist() == [0, 24, 4, 18, 144, 30]
        assert torch.ones(2, 2, device="tpu").t().sum(0).tolist() == [2, 2]
        out = torch.empty(3, device="tpu")
        torch.add(x[:3], 1, out=out)
        assert out.tolist() == [1, 25, 5]
        values, order = torch.tensor([3.0, 1.0], device="tpu").sort()
        assert (values.tolist(), order.tolist()) == ([1, 3], [1, 0])

    def test_the_error_grows_along_the_graph(self):
        with torchtpu.watch() as report:
            x = torch.linspace(0.1, 1, 1024, device="tpu").tanh()
            for _ in range(40):
                x = 3.9 * x * (1 - x)  # chaos: rounding errors grow
        rows = [r for r in report.trace if r.alone is not None]
        assert all(r.alone < 1e-6 for r in rows)
        assert rows[1].so_far < 1e-6
        assert rows[-1].so_far > 1e-2
        assert "Compared with the CPU: 122 ops" in report.to_text()
        assert "error so far, op 1 to 122" in report.to_html()

    def test_the_first_op_that_disagrees_is_found(self, monkeypatch):
        real = cpu._replay

        def wrong(plan, numbers, given):
            if plan.name == "aten::sinh":
                next(iter(given.values())).fill_(0)  # the CPU gets another input
            return real(plan, numbers, given)

        x = torch.ones(3, device="tpu") * 2
        monkeypatch.setattr(cpu, "_replay", wrong)
        y = x + 1
        where = r"aten::sinh disagrees with the CPU \(test_debug.py:\d+: y.sinh"
        with pytest.raises(errors.NumericsError, match=where) as caught, torchtpu.watch() as report:
            y.sinh()
        assert [(r.op, r.alone) for r in report.trace] == [("aten::sinh", pytest.approx(10.0179, rel=1e-4))]
        assert "10.0179 instead of 0 at element 0 of 3" in str(caught.value)
        assert caught.value.finding.inputs[0].name.startswith("y in")

    def test_which_of_equal_values_is_taken_is_free(self):
        x = torch.tensor([3.0, 1.0, 2.0, 2.0, 2.0], device="tpu")
        assert x.kthvalue(3).values.item() == 2
        assert x.argmax().item() == 0

    def test_products_may_be_off_by_what_cancels(self):
        a = torch.randn(64, 512, device="tpu", generator=torch.Generator("tpu").manual_seed(0))
        a @ a.t()
        a.bfloat16() @ a.t().bfloat16()


class TestTrace:
    def test_every_op_is_in_the_report_with_its_figures(self):
        x = torch.ones(8, 4, device="tpu", requires_grad=True)
        with torchtpu.watch(trace=True) as report:
            y = x @ x.t()  # a product
            y.sum().backward()
        mm, total, *_ = report.trace
        assert (mm.number, mm.op, mm.line.source) == (1, "aten::mm", "y = x @ x.t()  # a product")
        assert (mm.inputs, mm.outputs) == (("float32[8,4]", "float32[4,8]"), ("float32[8,8]",))
        assert (mm.read, mm.written, mm.alone, mm.so_far) == (256, 256, None, None)
        assert 0 < mm.seconds < report.seconds.elapsed
        assert mm.at < total.at
        assert len(report.trace) == report.ops == report.runs
        assert any(row.op == "aten::mm" and row.line.backward for row in report.trace)
        assert [r.number for r in report.trace[-2:]] == [len(report.trace) - 1, len(report.trace)]
        assert report.trace[-1] == list(report.trace)[-1]

    def test_it_is_saved(self, tmp_path):
        x = torch.ones(2, device="tpu")
        with torchtpu.watch(trace=True) as report:
            x * 2 + 1
        again = type(report).from_json(report.to_json())
        assert again.trace == report.trace
        lines = report.trace.save(tmp_path / "ops.csv").read_text().splitlines()
        assert lines[0] == "number,op,line,inputs,outputs,read,written,at,seconds,alone,so_far"
        assert lines[1].startswith("1,aten::mul.Tensor,test_debug.py:")
        assert len(lines) == 3
        with pytest.raises(ValueError, match=r"cannot save a trace as 'ops.txt': the name must end in .csv"):
            report.trace.save("ops.txt")

    def test_it_is_off_unless_asked_for(self):
        with torchtpu.watch() as report:
            torch.ones(2, device="tpu") * 2
        assert len(report.trace) == 0
        assert "Trace" not in report.to_text()

    @pytest.mark.parametrize("mode", ["strict", "defer_and_fuse"])
    def test_other_modes_have_no_time_of_an_op(self, mode):
        with modes.scope(mode), pytest.raises(ValueError, match=f"a trace needs debug mode.*this is {mode}"):
            torchtpu.watch(trace=True).__enter__()


class TestBreak:
    @pytest.fixture
    def typed(self, monkeypatch, capsys):
        """Sets what the user types, and returns what was shown since."""

        def type_(*lines):
            answers = iter(lines)
            monkeypatch.setattr(builtins, "input", lambda prompt="": next(answers))
            return lambda: capsys.readouterr().out

        return type_

    def test_before_each_op_of_a_name(self, typed):
        shown = typed("p before", "c", "p before", "c")
        x = torch.ones(2, 2, device="tpu")
        with config.options(debug_break="mm"):
            for before in (11, 22):  # noqa: B007 (what the user asks for)
                x @ x
        text = shown()
        assert text.count("stopped before aten::mm (test_debug.py:") == 2
        assert "\n11\n" in text
        assert "\n22\n" in text

    def test_at_a_line_once_for_all_of_its_ops(self, typed):
        shown = typed("p k", "c", "p k", "c")
        x = torch.ones(2, device="tpu")
        line = self.test_at_a_line_once_for_all_of_its_ops.__code__.co_firstlineno + 6
        with config.options(debug_break=f"test_debug.py:{line}"):
            for k in (33, 44):
                y = x * k
                y = y * 2 + 1 - x
        text = shown()
        assert text.count(f"stopped at the first op of test_debug.py:{line}: aten::mul.Tensor") == 2
        assert "\n33\n" in text
        assert "\n44\n" in text

    def test_in_the_backward_pass(self, typed):
        shown = typed("p loss.requires_grad", "c")
        x = torch.ones(2, 2, device="tpu", requires_grad=True)
        loss = (x @ torch.ones(2, 2, device="tpu")).sum()
        with config.options(debug_break="aten::mm"):
            loss.backward()
        assert "stopped before aten::mm (backward of test_debug.py:" in shown()
        assert x.grad.tolist() == [[2, 2], [2, 2]]

    def test_quitting_ends_the_code(self, typed):
        typed("q")
        x = torch.ones(2, device="tpu")
        with config.options(debug_break="mul"), pytest.raises(bdb.BdbQuit):
            x * 2

    def test_stepping_goes_on_from_there(self, typed):
        shown = typed("n", "p y.shape", "c")
        x = torch.ones(2, device="tpu")
        with config.options(debug_break="mul"):
            y = x * 2
            y = None  # noqa: F841 (the line that is not reached yet)
        assert "\ntorch.Size([2])\n" in shown()

    @pytest.mark.parametrize(
        ("where", "words"),
        [("mull", "ATen has no op 'mull' to break at. Did you mean 'mul'?"), ("12", "break at line 12 of which file")],
    )
    def test_a_place_that_does_not_exist_is_refused(self, where, words):
        with config.options(debug_break=where), pytest.raises(ValueError, match=words.replace("?", r"\?")):
            torch.ones(2, device="tpu") * 2
