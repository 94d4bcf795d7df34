"""Profiles as Chrome trace events, which Perfetto and chrome://tracing open.

The format: "Trace Event Format" by the Chrome team; Perfetto reads its X, M and C events. Times are in microseconds.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from torchtpu.profiler.figures import device_label
from torchtpu.report.rows import MEASURED

if TYPE_CHECKING:
    from torchtpu.lines import Line
    from torchtpu.profiler.result import Profile
    from torchtpu.profiler.rows import Spans

HOST, DEVICE = 1, 2  # process ids: the host's tracks, and the device's
# From top to bottom; device threads come after, in the order of their names.
_ORDER = (
    "steps", "annotations", "ops", "flushes", "launches", "compiles", "waits", "fallbacks", "programs", "device",
)  # fmt: skip
_LANES = 1000  # threads of a track at most


def to_perfetto(profile: Profile) -> str:
    """Write a profile as a JSON document."""
    document = {
        "displayTimeUnit": "ms",
        "otherData": {
            "run": profile.run,
            "host": profile.host,
            "began": profile.began,
            "device times": device_label(profile),
            "host times": MEASURED,
        },
    }
    events = ",\n".join(_events(profile))
    return f'{_json(document)[:-1]},"traceEvents":[\n{events}\n]}}\n'


def packed(profile: Profile) -> bytes:
    """Write it compressed, as both viewers read it too; the same profile gives the same bytes."""
    return gzip.compress(to_perfetto(profile).encode(), 6, mtime=0)


def process(track: str) -> int:
    """The process that a track is shown in."""
    return DEVICE if track == "programs" or track.startswith("device") else HOST


def _events(profile: Profile) -> Iterator[str]:
    device = f"Device: {profile.report.device or 'tpu'} ({profile.report.compiler}, {device_label(profile)})"
    for pid, name in ((HOST, f"Host: {profile.host}"), (DEVICE, device)):
        yield _named("process", pid, 0, {"name": name})
        yield _named("process", pid, 0, {"sort_index": pid}, "sort_index")
    threads = _Threads(profile.spans.tracks)
    yield from _complete(profile.spans, threads)
    for name, pid, tid in threads.names():
        yield _named("thread", pid, tid, {"name": name})
        yield _named("thread", pid, tid, {"sort_index": tid}, "sort_index")
    for k, nbytes in enumerate(profile.report.hbm_timeline):
        at = round(k * profile.report.hbm_span * 1e9) / 1000
        yield _json({"ph": "C", "pid": DEVICE, "name": "HBM in use", "ts": at, "args": {"bytes": nbytes}})


def _complete(spans: Spans, threads: _Threads) -> Iterator[str]:
    """Yield an X event for each span. What many of them share, which is all but their times, is written once."""
    tracks, names = [*map(_json, spans.tracks)], [*map(_json, spans.names)]
    lines = [_where(line) for line in spans.lines]
    arguments: dict[tuple[int, int], str] = {}
    # Whoever encloses another comes first.
    for k in sorted(range(len(spans)), key=lambda k: (spans.at[k], -spans.seconds[k])):
        start, end = round(spans.at[k] * 1e9), round((spans.at[k] + spans.seconds[k]) * 1e9)
        pid, tid = threads.place(spans.tracks[spans.track[k]], start, end)
        about = spans.line[k], spans.detail[k]
        if about not in arguments:
            detail = spans.details[about[1]]
            arguments[about] = _json({**(lines[about[0]] if about[0] >= 0 else {}), **({"detail": detail} if detail else {})})
        yield (
            f'{{"ph":"X","pid":{pid},"tid":{tid},"name":{names[spans.name[k]]},"cat":{tracks[spans.track[k]]},'
            f'"ts":{start / 1000},"dur":{(end - start) / 1000},"args":{arguments[about]}}}'
        )


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _named(what: str, pid: int, tid: int, arguments: dict[str, Any], kind: str = "name") -> str:
    return _json({"ph": "M", "pid": pid, "tid": tid, "name": f"{what}_{kind}", "args": arguments})


def _where(line: Line) -> dict[str, Any]:
    found = {"line": line.where, "source": line.source, "function": line.function, "backward": line.backward}
    cell = line.where.partition(",")[0]
    return {**found, "cell": cell} if cell.startswith("In[") else {**found, "file": f"{line.file}:{line.number}"}


class _Threads:
    """Threads of the trace. Spans of one thread must nest: of those that overlap in part, the later one gets another."""

    def __init__(self, tracks: Sequence[str]) -> None:
        known = {name: k for k, name in enumerate(_ORDER)}
        # Numbered threads by their numbers: a longer name is a larger number.
        ordered = sorted(tracks, key=lambda t: (known.get(t, len(known)), len(t), t))
        self._first = {track: 1 + _LANES * k for k, track in enumerate(ordered)}
        self._open: dict[str, list[list[int]]] = {track: [] for track in ordered}  # of each lane the ends of what is open

    def place(self, track: str, start: int, end: int) -> tuple[int, int]:
        """Return process and thread of a span, in nanoseconds; those that start earlier must come earlier."""
        lanes = self._open[track]
        for lane, ends in enumerate(lanes):
            while ends and ends[-1] <= start:
                ends.pop()
            if not ends or end <= ends[-1]:
                ends.append(end)
                return process(track), self._first[track] + lane
        lanes.append([end])
        return process(track), self._first[track] + len(lanes) - 1

    def names(self) -> Iterator[tuple[str, int, int]]:
        """Yield the name, process and number of each thread, from top to bottom, which is the order of the numbers."""
        for track, first in self._first.items():
            for lane in range(len(self._open[track])):
                yield (f"{track} ({lane + 1})" if lane else track), process(track), first + lane
