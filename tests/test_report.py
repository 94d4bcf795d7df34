"""Reports: their figures, and the three ways in which they are written."""

import base64
import copy
import dataclasses
import json
import pickle
import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

from torchtpu import events
from torchtpu.causes import Cause, Kind
from torchtpu.layout import Layout
from torchtpu.ledger import Account, Held
from torchtpu.report import Report, WatchOpenError, build, report as report_module, sections, to_html, units

F32 = np.dtype(np.float32)


def origin(line: int, name: str = "train.py"):
    """An origin on a line of a file that does not exist."""
    code = compile("\n" * (line - 1) + "pass", name, "exec")
    return code, max(start for start, _, number in code.co_lines() if number == line)


def program(name: str, ops: list[str], shape: tuple[int, ...] = (8, 128)):
    layout = Layout(shape, F32)
    return SimpleNamespace(
        name=name,
        nodes=tuple(SimpleNamespace(op=op, inputs=(str(layout),), outputs=(layout,)) for op in ops),
        graph=tuple(SimpleNamespace(refs=(k - 1,), backward=False) for k in range(len(ops))),
        results=(len(ops) - 1,),
        hlo=lambda: "",
        inputs=(layout, layout),
        outputs=(layout,),
        compile_seconds=0.25,
        argument_bytes=2 * layout.nbytes,
        output_bytes=layout.nbytes,
        temp_bytes=512,
        alias_bytes=0,
        precision="",
        from_disk=False,
    )


def finished(log: events.Log, peak: list[Held] = (), live: list[Held] = (), error: str = "", finish: float = 0.0) -> Report:
    report = Report.unfinished()
    account = Account(
        before=0,
        peak=sum(h.nbytes for h in peak),
        peak_at=0.5,
        live=sum(h.nbytes for h in live),
        held_at_peak=list(peak),
        held_at_end=dict(enumerate(live)),
        earlier_alive=0,
        span=0.25,
        tops=(0, sum(h.nbytes for h in peak), sum(h.nbytes for h in live)),
    )
    report_module.fill(report, build.figures(log, finish, account, error))
    return report


def busy_log() -> events.Log:
    """Two programs: one fused and compiled here, one cached that ran a hundred times."""
    log = events.Log("defer_and_fuse", started=100.0)
    log.ended = 102.0
    log.ops, log.cache_hits, log.dispatch_seconds = 103, 100, 0.125
    fused, cached = (
        program("fused_3_ops_0", ["aten::mul.Tensor", "aten::add.Tensor", "aten::sum"]),
        program("aten_tanh", ["aten::tanh"]),
    )
    log.compiles.append(events.Compile(fused, 0.25, Cause(Kind.FIRST), origin(3), 0.1))
    log.ran(fused, "item", (origin(1), origin(1), origin(2)), 0.0, 0.0625)
    for _ in range(100):
        log.ran(cached, "end of cell", (origin(4),), 0.0, 0.001)
    log.flushes.append(events.Flush("item", origin(3), 3, 1, 0.5, 0.2))
    log.syncs.append(events.Sync("item", origin(3), 0.5, 4, 0.3))
    log.syncs.append(events.Sync("item", origin(3), 0.25, 4, 0.4))
    log.fallbacks.append(events.Fallback("aten::kthvalue", origin(5), 0.002, 4096, 0.5))
    log.fallbacks.append(events.Fallback("aten::kthvalue", origin(5), 0.003, 4096, 0.6))
    return log


@pytest.fixture
def log() -> events.Log:
    return busy_log()


def test_counts_are_numbers(log):
    report = finished(log)
    assert (report.compiles, report.cache_hits, report.runs, report.ops) == (1, 100, 101, 103)
    assert [p.name for p in report.programs] == ["fused_3_ops_0", "aten_tanh"]
    assert [p.runs for p in report.programs] == [1, 100]
    assert [p.compiled for p in report.programs] == [True, False]


def test_programs_name_their_ops_lines_and_arrays(log):
    fused = finished(log).programs[0]
    assert [(o.op, o.line.where) for o in fused.ops] == [
        ("aten::mul.Tensor", "train.py:1"),
        ("aten::add.Tensor", "train.py:1"),
        ("aten::sum", "train.py:2"),
    ]
    assert fused.inputs == ("float32[8,128]", "float32[8,128]")
    assert (fused.reason, fused.argument_bytes, fused.temp_bytes) == ("item", 8192, 512)


def test_events_keep_their_lines(log):
    report = finished(log)
    assert [(s.kind, s.line.where, s.seconds) for s in report.syncs] == [
        ("item", "train.py:3", 0.5),
        ("item", "train.py:3", 0.25),
    ]
    assert [(f.reason, f.line.where, f.ops) for f in report.flushes] == [("item", "train.py:3", 3)]
    assert [(f.op, f.line.number, f.count, f.nbytes) for f in report.fallbacks] == [("aten::kthvalue", 5, 2, 8192)]
    assert report.fallbacks[0].seconds == pytest.approx(0.005)


def test_seconds_add_up_to_the_elapsed_time(log):
    seconds = finished(log, finish=0.25).seconds
    assert (seconds.dispatch, seconds.compile, seconds.wait, seconds.finish) == (0.125, 0.25, 0.75, 0.25)
    assert seconds.run == pytest.approx(0.1625)
    assert seconds.elapsed == 2.25
    parts = seconds.dispatch + seconds.compile + seconds.run + seconds.wait + seconds.finish + seconds.rest
    assert parts == pytest.approx(seconds.elapsed)


def test_equal_code_of_two_files_is_told_apart(log):
    log.syncs = [events.Sync("item", origin(3, name), 0.1, 4, 0.1) for name in ("one.py", "two.py")]
    assert [s.line.where for s in finished(log).syncs] == ["one.py:3", "two.py:3"]


def test_buffers_of_one_line_are_one_row(log):
    big, small = Layout((1024, 1024), F32), Layout((4,), F32)
    peak = [Held(big.nbytes, big, origin(1)), Held(big.nbytes, big, origin(1)), Held(small.nbytes, small, None, earlier=True)]
    rows = finished(log, peak=peak, live=peak[2:]).hbm_peak_buffers
    assert [(r.what, r.count, r.nbytes, r.earlier) for r in rows] == [
        ("float32[1024,1024]", 2, 2 * big.nbytes, False),
        ("float32[4]", 1, 16, True),
    ]


def test_buffer_rows_always_add_up(log):
    held = [Held(Layout((n,), F32).nbytes, Layout((n,), F32), origin(n)) for n in range(1, 200)]
    report = finished(log, peak=held)
    assert sum(r.nbytes for r in report.hbm_peak_buffers) == report.hbm_peak
    assert sum(r.count for r in report.hbm_peak_buffers) == 199
    assert len(report.hbm_peak_buffers) == 51


def growth(n: int) -> Cause:
    return Cause(Kind.SHAPE, f"ids dim 1: {n} -> {n + 1}", "pad to one size", origin(2))


def test_a_line_that_compiles_again_and_again_is_a_storm(log):
    for n in range(17):
        log.compiles.append(events.Compile(program(f"aten_mul_{n}", ["aten::mul"], (1, n + 1)), 0.5, growth(n), origin(9), 0))
    report = finished(log)
    (storm,) = report.storms
    assert (storm.line.where, storm.ops, storm.compiles, storm.seconds) == ("train.py:9", "aten::mul", 17, 8.5)
    assert (storm.kind, storm.detail, storm.remedy) == ("shape", "ids dim 1: 16 -> 17", "pad to one size")
    warning = "! train.py:9 compiled aten::mul 17 times, 8.5 s: shape, the last time ids dim 1: 16 -> 17; pad to one size"
    assert warning in report.to_text(200)


def test_storms_of_one_kind_are_one_warning(log):
    for line in (7, 8, 9):
        for n in range(17):
            log.compiles.append(
                events.Compile(program(f"aten_{line}_{n}", ["aten::mul"]), line / 10, growth(n), origin(line), 0)
            )
    text = finished(log).to_text(200)
    assert "! train.py:9 and 2 more lines compiled 51 times, 40.8 s: shape, the last time ids dim 1: 16 -> 17" in text
    assert text.count("\n! ") == 1


def test_programs_that_are_used_again_are_no_storm(log):
    for n in range(17):
        p = program(f"aten_mul_{n}", ["aten::mul"], (1, n + 1))
        log.compiles.append(events.Compile(p, 0.5, growth(n), origin(9), 0))
        for _ in range(2):
            log.ran(p, "strict", (origin(9),), 0.0, 0.001)
    assert finished(log).storms == ()


def test_first_compiles_of_one_line_are_no_storm(log):
    for n in range(17):
        cause = Cause(Kind.FIRST, "at this place; the closest is at train.py:9: mul self dim 0: 8 -> 16")
        log.compiles.append(events.Compile(program(f"aten_mul_{n}", ["aten::mul"]), 0.5, cause, origin(9), 0))
    assert finished(log).storms == ()


def test_compiles_are_grouped_by_line_and_cause(log):
    for n in range(3):
        log.compiles.append(events.Compile(program("aten_mul", ["aten::mul"]), 0.5, growth(n), origin(9), 0))
    (compiles,) = [s for s in sections.sections(finished(log)) if s.title.startswith("Compiles")]
    assert compiles.title == "Compiles: 4, 1.75 s"
    where, why, remedy, programs, time = compiles.rows[0]
    assert (where.where, why.text, remedy.text, programs, time) == (
        "train.py:9",
        "shape: ids dim 1: 0 -> 1",
        "pad to one size",
        "3",
        "1.5 s",
    )
    assert why.details[0] == "aten_mul float32[8,128]: ids dim 1: 0 -> 1, compared with train.py:2; 500 ms"
    assert [row[0].where for row in compiles.rows] == ["train.py:9", "train.py:3"]
    assert compiles.rows[1][1].text == "first time"


def test_what_is_loaded_from_disk_is_no_compile(log):
    loaded = program("aten_exp", ["aten::exp"])
    loaded.from_disk = True
    log.compiles.append(events.Compile(loaded, 0.003, Cause(Kind.FIRST), origin(9), 0))
    report = finished(log)
    assert (report.compiles, report.disk_hits) == (1, 1)
    assert [c.from_disk for c in report.compile_events] == [False, True]
    assert "1 compile, 1 loaded from disk" in report.to_text()


def test_an_open_watch_says_so():
    report = Report.unfinished()
    with pytest.raises(
        WatchOpenError, match=r"the watch is still open: read report\.compiles after its `with` block has ended"
    ):
        _ = report.compiles
    assert str(report) == repr(report) == "<torchtpu report: the watch is still open>"
    assert report._repr_html_() is None


def test_a_report_can_be_copied_and_pickled(log):
    report = finished(log)
    assert copy.deepcopy(report) == pickle.loads(pickle.dumps(report)) == report


def test_a_misspelt_field_is_an_attribute_error(log):
    with pytest.raises(AttributeError, match=r"a report has no 'compile'\. Did you mean 'compiles'\?"):
        _ = finished(log).compile


def test_a_report_is_frozen(log):
    with pytest.raises(dataclasses.FrozenInstanceError):
        finished(log).compiles = 3


def test_json_is_the_whole_report(log):
    report = finished(log, error="ValueError: <no>")
    assert Report.from_json(report.to_json()) == report
    data = json.loads(report.to_json())
    assert (data["schema"], data["version"]) == ("torchtpu.report", 2)
    assert data["report"]["compiles"] == 1


def test_json_of_another_version_is_refused(log):
    data = json.loads(finished(log).to_json())
    with pytest.raises(ValueError, match="has version 99 of the schema, this torchtpu reads 2: a newer torchtpu may read it"):
        Report.from_json(json.dumps(data | {"version": 99}))
    with pytest.raises(
        ValueError, match="has version 1 of the schema, this torchtpu reads 2: run the code again for a new one"
    ):
        Report.from_json(json.dumps(data | {"version": 1}))
    with pytest.raises(ValueError, match=r"this JSON is not a torchtpu\.report"):
        Report.from_json("[]")
    del data["report"]["syncs"]
    with pytest.raises(ValueError, match=r"not a complete torchtpu\.report: KeyError\('syncs'\)"):
        Report.from_json(json.dumps(data))


def test_every_figure_has_a_label(log):
    report = finished(log)
    labels = report.labels()
    assert labels["compiles"] == "measured"
    assert labels["programs.temp_bytes"] == f"compiled ({report.compiler})"
    assert labels["hbm_peak"] == f"measured, temporaries compiled ({report.compiler})"
    numbers = {"compiles", "runs", "seconds.run", "syncs.seconds", "flushes.ops", "fallbacks.count", "hbm_live_buffers.nbytes"}
    assert numbers <= labels.keys()


def test_text_has_the_figures_and_their_labels(log):
    report = finished(log, finish=0.25)
    text = report.to_text(130)
    for figure in (
        "defer_and_fuse: 2 programs, 1 compile, 100 cache hits, 101 runs, 2 syncs (750 ms), 2 fallbacks, HBM peak 0 B",
        "elapsed 2.25 s (measured): dispatch 125 ms, compile 250 ms",
        f"bytes compiled ({report.compiler})",
        "train.py:3",
        "aten::kthvalue",
        "item",
    ):
        assert figure in text
    assert max(map(len, text.splitlines())) <= 130
    assert str(finished(log)) == finished(log).to_text()


def test_html_escapes_what_users_wrote(log):
    log.compiles[0].cause = Cause(Kind.SHAPE, "<script>alert('x')</script> & \"quotes\"", "<b>do</b>")
    html = finished(log, error="ValueError: <img src=x onerror=alert(1)>").to_html()
    assert "<script" not in html
    assert "<b>do</b>" not in html
    assert "<img src=x" not in html
    assert "&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; &quot;quotes&quot;" in html


def test_html_holds_only_what_an_untrusted_notebook_keeps(log):
    html = finished(log).to_html()
    tags = set(re.findall(r"<([a-z0-9]+)", html))
    assert tags <= {"div", "span", "b", "img", "details", "summary", "table", "thead", "tbody", "tr", "th", "td"}
    attributes = set(re.findall(r'\s([a-z-]+)="', re.sub(r'style="[^"]*"', 'style=""', html)))
    assert attributes <= {"style", "alt", "src", "height"}
    (picture,) = re.findall(r'src="data:image/svg\+xml;base64,([^"]+)"', html)
    assert base64.b64decode(picture).startswith(b"<svg")


def test_html_of_a_cell_with_200_ops_is_small():
    log = events.Log("strict", started=0.0, ended=1.0)
    for n in range(200):
        p = program(f"aten_operation_{n}", [f"aten::some_long_operation_name_{n}.Tensor_Scalar"], (n + 1, 128, 56, 56))
        log.compiles.append(events.Compile(p, 0.01, growth(n), origin(n + 1), 0.0))
        log.ran(p, "strict", (origin(n + 1),), 0.0, 0.001)
        log.syncs.append(events.Sync("to_host", origin(n + 1), 0.001, 4, 0.0))
        log.flushes.append(events.Flush(f"reason {n}", origin(n + 1), 3, 1, 0.5, 0.2))
        log.fallbacks.append(events.Fallback(f"aten::kthvalue{n}", origin(n + 1), 0.002, 4096, 0.5))
    held = [Held(Layout((n, 64, 64), F32).nbytes, Layout((n, 64, 64), F32), origin(n)) for n in range(1, 200)]
    html = finished(log, peak=held, live=held).to_html()
    assert len(html) < 60_000
    for more in (
        "190 more programs",
        "190 more compiles",
        "190 more syncs",
        "190 more flushes",
        "190 more ops",
        "more buffers",
    ):
        assert more in html


def test_html_of_the_largest_report_is_bounded():
    log = events.Log("defer_and_fuse", started=0.0, ended=1.0)
    for n in range(100):
        p = program("f" * 500 + str(n), [f"aten::{'x' * 500}{k}" for k in range(100)], tuple(range(1, 60)))
        log.compiles.append(
            events.Compile(p, 0.01, Cause(Kind.SHAPE, "<" * 1000, "<" * 1000), origin(n + 1, "p" * 300 + ".py"), 0.0)
        )
        log.ran(p, "<" * 500, tuple(origin(k + 1, "p" * 300 + ".py") for k in range(100)), 0.0, 0.001)
    assert len(finished(log).to_html()) < 200_000


def test_a_report_of_ten_thousand_runs_stays_small():
    log = events.Log("strict", started=0.0, ended=1.0)
    p = program("aten_add", ["aten::add.Tensor"], ())
    here = origin(3)
    for _ in range(10_000):
        log.ran(p, "strict", (here,), 0.0, 1e-5)
        log.syncs.append(events.Sync("item", here, 1e-6, 4, 0.0))
    report = finished(log)
    assert len(report.to_html()) < 10_000
    assert "10,000 syncs" in report.to_text()


@pytest.mark.parametrize(
    ("suffix", "start"), [(".json", "{"), (".html", "<!DOCTYPE html>"), (".txt", "torchtpu defer_and_fuse")]
)
def test_save_follows_the_suffix(log, tmp_path, suffix, start):
    path = finished(log).save(tmp_path / f"report{suffix}")
    assert path.read_text(encoding="utf-8").startswith(start)


def test_save_refuses_other_suffixes(log, tmp_path):
    with pytest.raises(ValueError, match=r"the name must end in \.json, \.html, \.txt"):
        finished(log).save(tmp_path / "report.pdf")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"),
        (12e-6, "12 us"),
        (0.0034, "3.4 ms"),
        (0.9996, "1 s"),
        (1.25, "1.25 s"),
        (59.96, "1 min 0 s"),
        (125, "2 min 5 s"),
    ],
)
def test_seconds_read_well(value, text):
    assert units.seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (4096, "4.0 KiB"),
        (13107200, "12.5 MiB"),
        (1 << 20, "1.0 MiB"),
        (200 << 30, "200 GiB"),
        (-2048, "-2.0 KiB"),
    ],
)
def test_bytes_read_well(value, text):
    assert units.nbytes(value) == text


def test_the_bar_has_a_colour_for_each_part(log):
    from torchtpu.report import bar

    assert [name for name, _ in sections.times(finished(log))] == list(bar.COLOURS)


def test_reports_import_no_front_end():
    assert to_html is sys.modules["torchtpu.report.to_html"]
    import subprocess

    code = "import sys, torchtpu.report, torchtpu.watch; print(sorted({'rich', 'IPython', 'jax'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
