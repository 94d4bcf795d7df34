"""The end of a capture: its figures, its files, and a look at them."""

from __future__ import annotations

import platform
from pathlib import Path
from typing import TYPE_CHECKING

from torchtpu.profiler import build, check, peaks, planes, runs, stored, trace, xspace
from torchtpu.profiler.captured import Captured
from torchtpu.profiler.rows import Span
from torchtpu.report.build import resolver

if TYPE_CHECKING:
    from torchtpu.profiler.capture import _Recording
    from torchtpu.profiler.check import Check
    from torchtpu.profiler.result import Profile


def finish(folder: Path, recording: _Recording) -> tuple[Captured, Profile, Check]:
    """Work out the figures of a recording and write its files.

    Raises:
        OSError: they cannot be written.
    """
    from torchtpu.profiler.capture import host

    noted = trace.read(recording.space)
    programs, ran = runs.match(noted.runs, recording.timeline.launches, noted.on_xla)
    captured = Captured(
        run=folder.name,
        folder=str(folder),
        host=host(),
        elapsed=recording.elapsed,
        report=recording.report,
        timeline=recording.timeline,
        allocations=recording.allocations,
        trace=noted,
        programs=programs,
        ran=ran,
        resolve=resolver(),
        peaks=peaks.of_device(),
        device_type=f"XLA:CPU on {platform.machine()}, kernel times measured",
    )
    spans = build.spans(captured)
    profile = build.profile(captured, spans)
    return captured, profile, save(captured, profile, spans, recording.space)


def save(captured: Captured, profile: Profile, spans: list[Span], space: bytes = b"") -> Check:
    """Write the files of a run, and read them back. `space` is what XLA has written of it."""
    folder = Path(captured.folder)
    target = folder / f"{captured.host}.xplane.pb"
    stored.write_whole(target, xspace.join(space, planes.of(captured, profile, spans)))
    stored.write(profile, folder)
    return check.look(target, profile)
