"""What differs between two profiles."""

from dataclasses import replace

import pytest

from tests.profiler import made
from torchtpu.profiler import Profile
from torchtpu.profiler.difference import ProfileDifference, compare
from torchtpu.profiler.rows import OpTime


def changed(before: Profile) -> Profile:
    """The same run with one product twice as slow, one op gone and one new, an edited line, and half the steps."""
    mm, relu, add, _ = before.ops
    moved = replace(made.line(8, cell=9), number=12, where="In[9], line 12")
    edited = replace(made.line(3), source="h = torch.relu(x @ w1)")
    return replace(
        before,
        run="later",
        steps=before.steps[:5],
        ops=(
            replace(mm, seconds=0.3),  # of half as many steps
            replace(relu, line=edited, seconds=0.0625),
            replace(add, line=moved, seconds=0.05),
            OpTime("aten::tanh", made.line(4), "MLP/act", False, 5, (), 0.0025),
        ),
    )


@pytest.fixture(scope="module")
def difference() -> ProfileDifference:
    before = made.profile()
    return compare(before, changed(before))


def test_ops_are_compared_by_the_step_and_come_by_their_difference(difference):
    assert difference.per_step
    found = [(d.what, d.before, d.after, round(d.seconds, 6)) for d in difference.ops]
    assert found[:3] == [
        ("mm", 0.03, 0.06, 0.03),
        ("threshold_backward", 0.0075, None, -0.0075),
        ("tanh", None, 0.0005, 0.0005),
    ]
    assert {(what, seconds) for what, _, _, seconds in found[3:]} == {("relu", 0.0), ("add.Tensor", 0.0)}


def test_a_line_is_the_same_when_it_has_moved_or_was_edited(difference):
    ops = {d.what: d for d in difference.ops}
    assert (ops["add.Tensor"].line.where, ops["add.Tensor"].was) == ("In[9], line 12", None)
    assert ops["relu"].line.source == "h = torch.relu(x @ w1)"
    assert ops["relu"].was.source == "h = torch.relu(x @ w1 + b1)"
    assert "(was: h = torch.relu(x @ w1 + b1))" in difference.to_text(200)


def test_what_is_in_one_profile_only_is_called_so(difference):
    text = difference.to_text(160)
    assert "-7.5 ms, only before" in text
    assert "+500 us, only after" in text


def test_an_op_of_one_line_is_told_from_that_of_another():
    a = made.profile(
        ops=(OpTime("aten::mm", made.line(3), "", False, 1, (), 1.0), OpTime("aten::mm", made.line(4), "", False, 1))
    )
    b = made.profile(ops=(OpTime("aten::mm", made.line(4), "", False, 1, (), 2.0),))
    ops = {d.line.number: (d.before, d.after) for d in compare(a, b).ops}
    assert ops == {3: (0.1, None), 4: (0.0, 0.2)}


def test_figures_have_both_values(difference):
    changes = {c.figure: (c.before, c.after) for c in difference.changes}
    assert changes["steps"] == (10, 5)
    assert changes["median step"] == (0.1, 0.1)
    assert changes["a step: wait"] == pytest.approx((0.02, 0.02))
    assert changes["device busy"] == (0.6, 0.6)
    assert changes["device idle"] == pytest.approx((1.4, 1.4))


def test_kernels_are_compared_by_kind():
    before = made.profile()
    slower = replace(before, kernels=tuple(replace(k, seconds=3 * k.seconds) for k in before.kernels))
    kernels = [(d.what, round(d.before, 6), round(d.after, 6), d.calls) for d in compare(before, slower).kernels]
    assert kernels == [
        ("dot", 0.03, 0.09, (10, 10)),
        ("loop fusion", 0.02, 0.06, (20, 20)),
        ("add", 0.01, 0.03, (20, 20)),
    ]


def test_idle_time_is_compared_by_cause_and_line_without_compiling(difference):
    idle = {d.what: (round(d.before, 6), round(d.after, 6)) for d in difference.idle}
    assert idle == {"wait": (0.02, 0.04), "Python in load_batch": (0.015, 0.03), "dispatch": (0.005, 0.01)}


def test_programs_are_the_same_whatever_their_numbers():
    before = made.profile()
    later = replace(before, programs=tuple(replace(p, name=p.name.replace("#3", "#17")) for p in before.programs))
    assert [(d.what, d.seconds) for d in compare(before, later).programs] == [("fused_12_ops", 0.0), ("aten_add", 0.0)]


def test_without_steps_sums_are_compared():
    before = made.profile()
    difference = compare(before, replace(before, steps=()))
    assert not difference.per_step
    assert difference.ops[0].before == 0.3
    assert "seconds in all" in difference.to_text()


def test_equal_profiles_do_not_differ():
    difference = compare(made.profile(), made.profile())
    assert (difference.before, difference.after) == ("2026_12_02_10_00_00 (before)", "2026_12_02_10_00_00 (after)")
    for rows in (difference.ops, difference.programs, difference.kernels, difference.idle, difference.compiles):
        assert rows
        assert all(d.seconds == 0 and d.calls[0] == d.calls[1] for d in rows)


def test_modelled_times_are_called_so():
    before = made.profile()
    assert compare(before, before).source == "measured"
    assert (
        compare(before, replace(before, modelled=True)).source == "times of the device measured and modelled, others measured"
    )


@pytest.mark.parametrize("width", [90, 140])
def test_text_is_not_wider_than_asked(difference, width):
    assert max(map(len, difference.to_text(width).splitlines())) <= width


def test_html_escapes_names():
    before = made.profile()
    html = compare(before, before, ("<a>", "<b>x</b>")).to_html()
    assert "&lt;a&gt;" in html
    assert "<b>x</b>" not in html
