"""Profiles as files: the suffix says what is written."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchtpu.profiler import page, to_perfetto

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile


def check_path(path: str | os.PathLike[str]) -> tuple[Path, str]:
    """Return the path of a profile to be saved, and the suffix that names its format: the longest one that fits.

    Raises:
        ValueError: none fits.
    """
    from torchtpu.profiler.result import SUFFIXES

    target = Path(path)
    for suffix in sorted(SUFFIXES, key=len, reverse=True):
        if target.name.lower().endswith(suffix):
            return target, suffix
    raise ValueError(f"cannot save a profile as {str(target)!r}: the name must end in {', '.join(SUFFIXES)}")


def save(profile: Profile, path: str | os.PathLike[str]) -> Path:
    """Write a profile to a file; see `Profile.save`."""
    target, suffix = check_path(path)
    match suffix:
        case ".trace.json.gz":
            target.write_bytes(to_perfetto.packed(profile))
        case ".html":
            _save_page(profile, target)
        case _:
            writers = {
                ".json": profile.to_json,
                ".txt": profile.to_text,
                ".trace.json": profile.to_perfetto,
                ".stacks.txt": profile.to_stacks,
            }
            target.write_text(writers[suffix](), encoding="utf-8")
    return target


def _save_page(profile: Profile, target: Path) -> None:
    trace = to_perfetto.packed(profile)
    beside = target.with_suffix(".trace.json.gz").name if len(trace) > page.EMBEDDED else ""
    if beside:
        (target.parent / beside).write_bytes(trace)
    target.write_text(page.page(profile, trace, beside), encoding="utf-8")
