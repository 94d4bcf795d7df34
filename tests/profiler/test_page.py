"""Profiles as text, as HTML in a notebook, and as a page."""

import base64
import hashlib
import re
from dataclasses import replace

import pytest

from tests.profiler import made
from torchtpu.profiler import Profile, figures, page, roofline, sections, step_chart
from torchtpu.profiler.rows import OpTime, StepRow
from torchtpu.report import units
from torchtpu.report.sections import Fold, Place


@pytest.fixture(scope="module")
def profile() -> Profile:
    return made.profile()


def table(profile: Profile, title: str, **options) -> sections.Section:
    (found,) = [s for s in sections.sections(profile, **options) if s.title.startswith(title)]
    return found


def column(section: sections.Section, title: str) -> list:
    (k,) = [k for k, c in enumerate(section.columns) if c.title == title]
    return [row[k] for row in section.rows]


def test_the_headline_has_the_figures_of_the_capture(profile):
    first, busy, _, waits, hbm = sections.headline(profile)
    assert (first, busy) == ("10 steps, median 100 ms", "device busy 30% of 2 s")
    assert waits.startswith("1 wait (")
    assert hbm == f"HBM peak {units.nbytes(profile.report.hbm_peak)}"
    assert profile.report.hbm_peak >= 32 << 10  # what else this process holds counts too


def test_the_parts_of_the_time_add_up(profile):
    times = dict(sections.times(profile))
    assert times.pop("other") == 0.0
    assert sum(times.values()) == pytest.approx(profile.elapsed)
    assert times["device busy"] == 0.6
    assert times["idle: Python"] == 0.15  # whatever annotation it was in
    assert set(sections.COLOURS) == {*times, "other"}


def test_what_no_row_explains_is_shown_as_other(profile):
    assert dict(sections.times(replace(profile, elapsed=2.5)))["other"] == pytest.approx(0.5)


def test_the_slowest_step_comes_first(profile):
    steps = table(profile, "Steps")
    assert steps.title == "Steps: 10, median 100 ms, slowest 1.1 s"
    assert steps.rows[0] == ("0", "0 s", "1.1 s", "11.00 x", "60 ms", "5.5%", "1 s", "20 ms", "3", "2")
    assert steps.chart.caption.endswith("scale 0 to 125 ms; cut off: step 0 (1.1 s)")
    assert steps.chart.lines == ("█▇▇▇▇▇▇▇▇▇",)


def test_columns_of_steps_are_as_high_as_their_times():
    steps = [StepRow(0, 0.0, 1.0, 0.5, 0.25, 0.25), StepRow(1, 1.0, 0.5, 0.5, 0.0, 0.0)]
    svg = step_chart.picture(steps, 0.5).svg
    heights = [float(h) for h in re.findall(r"<rect [^>]*height='([\d.]+)' fill", svg)][:6]
    scale = heights[0] / 0.5  # pixels a second
    # Of each step: busy, then compile, wait and the rest, without those that are zero.
    assert heights[:4] == pytest.approx([0.5 * scale, 0.25 * scale, 0.25 * scale, 0.5 * scale], abs=0.11)


def test_many_steps_are_drawn_by_the_slowest_of_each_stretch():
    steps = [StepRow(k, 0.1 * k, 0.1 + 0.001 * (k % 10)) for k in range(1000)]
    chart = step_chart.picture(steps, 0.1)
    assert "of each 12 the slowest" in chart.caption
    assert len(chart.svg) < 25_000


def test_idle_time_has_its_causes_lines_and_advice(profile):
    idle = table(profile, "Device idle")
    assert idle.title == "Device idle: 1.4 s, 70% of the time"
    assert column(idle, "the host") == ["compile", "wait", "Python in load_batch", "dispatch"]
    assert idle.rows[1] == ("wait", Place("In[4], line 7", "print(loss.item())"), "10", "200 ms", "10%")
    assert idle.listing[3] == "Python      150 ms  prepare data while the device works; log every N steps"


def test_ops_by_time_have_their_rates(profile):
    ops = table(profile, "Ops by time", wide=True)
    assert ops.rows[0] == (
        "mm", Place("In[4], line 3", made.SOURCES[3]), "MLP/fc1", "10", "300 ms", "50%", "15.0", "3.33", "4.5 G", "954 MiB",
    )  # fmt: skip
    assert ops.rows[1][0] == Fold("relu +1", ("its kernels compute too: add.Tensor",))
    assert ops.rows[3][1].where == "In[4], line 3 (backward)"
    assert "measured" in ops.note and "compiled (XLA:CPU)" in ops.note


def test_ops_have_an_order_by_bytes_and_one_by_operations(profile):
    assert [c if isinstance(c, str) else c.text for c in column(table(profile, "Ops by bytes"), "op")] == [
        "relu +1", "mm", "threshold_backward", "add.Tensor",
    ]  # fmt: skip
    flops = table(profile, "Ops by FLOP")
    assert column(flops, "share") == ["90%", "8.0%", "2.0%", "<0.1%"]
    assert column(flops, "of peak") == ["30%", "6.4%", "2.7%", "<0.1%"]


def test_what_is_left_out_is_summed_up(profile):
    assert table(profile, "Ops by time", rows=1).more == "3 more ops, 300 ms together"


def test_the_roofline_says_what_bounds_a_kernel(profile):
    points = roofline.points(profile)
    assert [(p.kernel.name, p.bound) for p in points] == [
        ("dot.4", "compute"),  # 15 of 50 GFLOP/s, 3.3 of 25 GB/s
        ("fusion.1", "memory"),  # 20 of 25 GB/s
        ("add.1", "overhead"),
        ("fusion.2", "memory"),
    ]
    assert [round(p.of_roof, 3) for p in points] == [0.3, 0.8, 0.005, 0.267]
    assert points[0].intensity == 4.5


def test_a_dot_is_where_its_kernel_is(profile):
    """At 4.5 operations a byte and 15 GFLOP/s: on axes from 0.01 to 10, and from 10 MFLOP/s to 100 GFLOP/s."""
    svg = roofline.picture(profile, roofline.points(profile)).svg
    x = 76 + (680 - 12 - 76) * (0.6532 + 2) / 3
    y = 264 - (264 - 24) * (10.1761 - 7) / 4
    assert f"<circle cx='{x:.0f}' cy='{y:.0f}' r='12.0'/>" in svg  # the longest


def test_without_peaks_nothing_is_said_about_bounds(profile):
    unknown = replace(profile, peak_flops=0.0, peak_bandwidth=0.0, peaks_from="")
    found = table(unknown, "Roofline")
    assert set(column(found, "bound by")) == {"unknown"}
    assert found.more.endswith("the device's peaks are not known.")
    assert "no roofs" in found.chart.caption


def test_kernels_that_only_move_bytes_are_no_dots(profile):
    copies = tuple(replace(k, flops=0.0) for k in profile.kernels)
    assert roofline.picture(profile, roofline.points(replace(profile, kernels=copies))) is None


def test_modelled_times_are_called_so(profile):
    modelled = replace(profile, modelled=True)
    for text in (modelled.to_text(), modelled.to_html()):
        assert "times of the device modelled, others measured" in text
        assert "times modelled, FLOP and bytes compiled (libtpu)" in text


def test_empty_tables_say_why():
    text = made.empty().to_text(200)
    for sentence in (
        "No steps: no optimizer stepped while this was captured. Mark them:",
        "The device ran nothing between the start and the end of the capture.",
        "Nothing was compiled: each run found its program.",
        "The host never waited for a value.",
        "Every op ran on the device.",
        "No tensor held device memory.",
    ):
        assert sentence in text
    assert "Programs" not in text  # that nothing ran has been said


@pytest.mark.parametrize("width", [80, 110, 160])
def test_text_is_not_wider_than_asked(profile, width):
    lines = profile.to_text(width).splitlines()
    assert max(map(len, lines)) <= width
    assert lines[0].startswith("torchtpu profile 2026_12_02_10_00_00: 10 steps, median 100 ms")


def test_html_holds_only_what_an_untrusted_notebook_keeps(profile):
    html = profile.to_html()
    assert set(re.findall(r"<([a-z0-9]+)", html)) <= {
        "div", "span", "b", "img", "details", "summary", "table", "thead", "tbody", "tr", "th", "td",
    }  # fmt: skip
    attributes = set(re.findall(r'\s([a-z-]+)="', re.sub(r'style="[^"]*"', 'style=""', html)))
    assert attributes <= {"style", "alt", "src", "height"}
    pictures = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert len(pictures) == 4  # the bar, the steps, HBM, the roofline
    assert all(base64.b64decode(p).startswith(b"<svg") for p in pictures)
    assert html.count("<details open") == 3


def test_html_escapes_what_users_wrote(profile):
    line = replace(made.line(3), source="x = '<script>alert(1)</script>'")
    ops = (OpTime("aten::mm", line, "<b>m</b>", False, 1, ("<i>",), 1.0, 1.0, 1.0),)
    shown = replace(profile, ops=ops, run="</title><script>")
    for html in (shown.to_html(), page.page(shown, b"")):
        own = re.sub(r"<script>\n?// Sorts.*?</script>", "", html, flags=re.DOTALL)
        assert "<script" not in own
        assert "<b>m</b>" not in own and "<i>" not in own


def test_html_stays_small_whatever_ran(profile):
    many = replace(
        profile,
        ops=tuple(
            replace(o, module=f"M/{'x' * 200}{k}", op=f"aten::{'y' * 200}{k}", fused=("aten::add.Tensor",) * 100)
            for o in profile.ops
            for k in range(500)
        ),
        kernels=tuple(replace(o, name=f"{'f' * 200}{k}", flops=1e6 * k) for o in profile.kernels for k in range(500)),
        programs=tuple(replace(p, name="p" * 500, reason="r" * 500) for p in profile.programs for _ in range(500)),
    )
    assert len(many.to_html()) < 200_000
    assert "1,990 more ops" in many.to_html()


def test_a_page_runs_its_own_script_only_and_loads_nothing(profile):
    html = page.page(profile, b"trace")
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)[1]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'" in html
    assert not re.findall(r'(?:src|href)="(?!data:|#)[^"]*"', html)
    assert html.count("<section ") == 12


def test_the_trace_is_in_the_page_or_beside_it(profile, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "EMBEDDED", 100)
    profile.save(tmp_path / "run.html")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["run.html", "run.trace.json.gz"]
    html = (tmp_path / "run.html").read_text(encoding="utf-8")
    assert '<a href="run.trace.json.gz">' in html
    assert "data:application/gzip" not in html


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 FLOP"),
        (950, "950 FLOP"),
        (999.6, "1 kFLOP"),
        (1.25e6, "1.25 MFLOP"),
        (34.14e9, "34.1 GFLOP"),
        (2.5e15, "2,500 TFLOP"),
    ],
)
def test_large_figures_read_well(value, text):
    assert units.scaled(value, "FLOP") == text


@pytest.mark.parametrize(("part", "text"), [(0, ""), (0.0001, "<0.1%"), (0.004, "0.4%"), (0.0996, "10%"), (1.5, "150%")])
def test_shares_read_well(part, text):
    assert figures.share(part, 1.0) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, ""), (0.0001, "<0.001"), (0.0123, "0.012"), (1.234, "1.23"), (12.34, "12.3"), (1234.5, "1,234")]
)
def test_rates_read_well(value, text):
    assert figures.figure(value) == text
