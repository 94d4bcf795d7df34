"""The end of a capture: its figures, its files, and a look at them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchtpu.profiler import build, check, planes, runs, stored, trace, xspace
from torchtpu.profiler.captured import Captured
from torchtpu.report.build import resolver

if TYPE_CHECKING:
    from torchtpu.profiler.capture import _Recording
    from torchtpu.profiler.check import Check
    from torchtpu.profiler.result import Profile


def finish(folder: Path, recording: _Recording) -> tuple[Profile, Check]:
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
    )
    spans = build.spans(captured)
    profile = build.profile(captured, spans)
    space = xspace.join(recording.space, planes.of(captured, profile, spans))
    target = folder / f"{captured.host}.xplane.pb"
    _write(target, space)
    stored.write(profile, folder)
    return profile, check.look(target, profile)


def _write(target: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all: TensorBoard may look at any time."""
    part = target.with_suffix(".part")
    try:
        part.write_bytes(data)
        os.replace(part, target)
    except OSError:
        part.unlink(missing_ok=True)
        raise
