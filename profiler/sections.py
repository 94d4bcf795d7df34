"""A profile arranged for reading: a headline, the device's time, and tables. `to_text`, `to_html` and `page` draw them."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from torchtpu.profiler import device_sections, step_chart
from torchtpu.profiler.figures import NOTHING_RAN, device_label, more, share
from torchtpu.profiler.rows import IdleRow, StepRow
from torchtpu.report import memory_sections, sections as report_sections, units
from torchtpu.report.rows import MEASURED, MODELLED
from torchtpu.report.sections import Cell, Column, Place, Section, one_line, place

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

_CAUSE = 40  # characters: a DataLoader's annotation is longer, and would push the figures out of sight
ROWS = 10  # of a table, in a notebook and in text
_STEPS_MISSING = (
    "No steps: no optimizer stepped while this was captured. Mark them: with torchtpu.profiler.profile() as p, "
    "p.step() at the end of each."
)
# What to do about idle time, by its cause.
_REMEDIES = {
    "compile": "see Compiles for why; a first time does not come again",
    "fallback": "an op that XLA does not get: see CPU fallbacks",
    "wait": "read values less often; see Syncs",
    "dispatch": "give the device more at once: larger batches, or mode defer_and_fuse",
    "Python": "prepare data while the device works; log every N steps",
}
# Colours of the device's time. Middle tones, as in `report.bar`.
COLOURS = {
    "device busy": "#2f9e6e",
    "idle: compile": "#d9792b",
    "idle: fallback": "#b0629c",
    "idle: wait": "#d2536f",
    "idle: dispatch": "#8b7bd8",
    "idle: Python": "#3d85c6",
    "other": "#8a8f98",
}


def source(profile: Profile) -> str:
    """Say where the figures of the headline come from."""
    device = f"times of the device {MODELLED}, others {MEASURED}" if profile.modelled else MEASURED
    return f"{device}; HBM temporaries compiled by {profile.report.compiler or 'XLA'}"


def headline(profile: Profile) -> list[str]:
    """The figures of the whole capture, one phrase each."""
    report, steps = profile.report, profile.steps
    busy = f"device busy {share(profile.busy, profile.elapsed) or '0%'}"
    compiled, waits = units.count(report.compiles, "compile"), units.count(len(report.syncs), "wait")
    loaded = f"{report.disk_hits:,} loaded from disk" if report.disk_hits else ""
    compiling = ", ".join(phrase for phrase in (loaded, units.seconds(report.seconds.compile)) if phrase)
    return [
        f"{units.count(len(steps), 'step')}, median {units.seconds(profile.step_seconds)}" if steps else "no steps",
        f"{busy} of {units.seconds(profile.elapsed)}",
        f"{compiled} ({compiling})" if report.compile_events else compiled,
        f"{waits} ({units.seconds(report.seconds.wait)})" if report.syncs else waits,
        f"HBM peak {units.nbytes(report.hbm_peak)}",
    ]


def times(profile: Profile) -> list[tuple[str, float]]:
    """The parts of the elapsed time on the device, in seconds, under the names of their colours."""
    idle: dict[str, float] = {}
    for row in profile.idle:
        name = f"idle: {main_cause(row)}"
        idle[name] = idle.get(name, 0.0) + row.seconds
    parts = [("device busy", profile.busy), *((name, idle.get(name, 0.0)) for name in COLOURS if name.startswith("idle"))]
    rest = profile.elapsed - sum(seconds for _, seconds in parts)
    # What rounding leaves is nothing to show.
    return [*parts, ("other", rest if rest > 0.001 * profile.elapsed else 0.0)]


def warnings(profile: Profile) -> list[tuple[str, Place | None]]:
    """What deserves attention without opening anything: a sentence, and the line that is its subject."""
    found = report_sections.warnings(profile.report)
    if profile.dropped:
        spans = units.count(profile.dropped, "span")
        found.append((f"{spans} left out of the timeline: there were too many; capture fewer steps", None))
    return found


def sections(profile: Profile, rows: int = ROWS, wide: bool = False) -> list[Section]:
    """The tables. One that has no rows says why.

    Args:
        rows: of a table, at most.
        wide: there is room for more columns.
    """
    report = profile.report
    # If nothing ran, the first of these says so for all.
    d = device_sections
    on_device = (partial(d.by_time, wide=wide), d.by_bytes, d.by_flops, d.programs, d.kernels)[: None if profile.kernels else 1]
    return [
        _steps(profile, rows),
        _idle(profile, rows),
        *(table(profile, rows) for table in on_device),
        _or(report_sections.compiles(report), "Nothing was compiled: each run found its program."),
        _or(report_sections.syncs(report), "The host never waited for a value."),
        _or(report_sections.fallbacks(report), "Every op ran on the device."),
        _or(memory_sections.peak(report), "No tensor held device memory."),
        *((d.bounds(profile, rows),) if profile.kernels else ()),
    ]


def main_cause(row: IdleRow) -> str:
    """The cause of idle time without the annotation that it was in: `Python` for `Python in load_batch`."""
    return row.cause.partition(" in ")[0]


def _or(section: Section, sentence: str) -> Section:
    """A section, or where it is empty a sentence in it."""
    return section if section.rows else replace(section, more=sentence)


def _steps(profile: Profile, rows: int) -> Section:
    steps = profile.steps
    if not steps:
        return Section("Steps: 0", MEASURED, (), (), _STEPS_MISSING)
    slowest = sorted(steps, key=lambda s: -s.seconds)

    def row(step: StepRow) -> tuple[Cell, ...]:
        typical = profile.step_seconds
        return (
            f"{step.number:,}",
            units.seconds(step.at),
            units.seconds(step.seconds),
            f"{step.seconds / typical:.2f} x" if typical else "",
            units.seconds(step.busy),
            share(step.busy, step.seconds),
            units.seconds(step.compile),
            units.seconds(step.wait),
            f"{step.runs:,}",
            f"{step.compiles:,}",
        )

    titles = ("step", "after", "time", "of median", "device busy", "busy", "compile", "wait", "runs", "compiles")
    rest = slowest[rows:]
    return Section(
        f"Steps: {len(steps):,}, median {units.seconds(profile.step_seconds)}, slowest {units.seconds(slowest[0].seconds)}",
        f"{MODELLED if profile.modelled else MEASURED}; the slowest first",
        tuple(Column(title, True) for title in titles),
        tuple(map(row, slowest[:rows])),
        more(rest, "step"),
        chart=step_chart.picture(steps, profile.step_seconds),
    )


def _idle(profile: Profile, rows: int) -> Section:
    idle = sorted(profile.idle, key=lambda r: -r.seconds)
    total = sum(r.seconds for r in idle)

    def row(r: IdleRow) -> tuple[Cell, ...]:
        return (
            one_line(r.cause, _CAUSE),
            place(r.line),
            f"{r.count:,}",
            units.seconds(r.seconds),
            share(r.seconds, profile.elapsed),
        )

    causes: dict[str, float] = {}
    for r in idle:
        causes[main_cause(r)] = causes.get(main_cause(r), 0.0) + r.seconds
    advice = [f"{c:<10}{units.seconds(s):>8}  {_REMEDIES.get(c, '')}" for c, s in sorted(causes.items(), key=lambda c: -c[1])]

    return Section(
        f"Device idle: {units.seconds(total)}{f', {share(total, profile.elapsed)} of the time' if total else ''}",
        f"it had nothing to run, by what the host did meanwhile; {device_label(profile)}",
        (
            Column("the host"),
            Column("line"),
            Column("gaps", True),
            Column("time", True),
            Column("of elapsed", True),
        ),
        tuple(map(row, idle[:rows])),
        more(idle[rows:], "line") if idle else "The device was never idle." if profile.busy else NOTHING_RAN,
        ("What to do:", *advice) if advice else (),
    )
