"""Runs in their folders: `<logdir>/plugins/profile/<run>`, beside what TensorBoard reads."""

from __future__ import annotations

import gzip
import os
from pathlib import Path
from typing import TYPE_CHECKING

from torchtpu.errors import did_you_mean

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

FILE = "torchtpu_profile.json.gz"
RUNS = Path("plugins") / "profile"  # in a log directory; where TensorBoard looks


def write(profile: Profile, folder: str | os.PathLike[str]) -> Path:
    """Write a profile into the folder of its run, where `load` finds it."""
    target = Path(folder) / FILE
    write_whole(target, gzip.compress(profile.to_json().encode(), 6, mtime=0))
    return target


def write_whole(target: Path, data: bytes) -> None:
    """Write a file that is there whole or not at all: TensorBoard may look at any time.

    Raises:
        OSError: it cannot be written (with the folder).
    """
    part = target.with_name(f"{target.name}.part")
    try:
        part.write_bytes(data)
        os.replace(part, target)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise type(error)(error.errno, f"the profile cannot be written to {target.parent}: {error.strerror}") from None


def load(path: str | os.PathLike[str]) -> Profile:
    """Read a profile that was captured earlier.

    Args:
        path: the folder of a run, `<logdir>/<run>`, a log directory with one run, or a file (.json, .json.gz).

    Raises:
        FileNotFoundError: there is no such run.
        ValueError: several runs to choose from, a run that another tool captured, or a file of another version.
    """
    from torchtpu.profiler.result import Profile

    found = find(Path(path).expanduser())
    data = found.read_bytes()
    try:
        return Profile.from_json((gzip.decompress(data) if data[:2] == b"\x1f\x8b" else data).decode())
    except (ValueError, OSError, EOFError) as error:  # a download that was cut short, say
        raise ValueError(f"{found}: {error}") from None


def find(path: Path) -> Path:
    """Return the file that a path stands for.

    Raises:
        FileNotFoundError, ValueError: as `load`.
    """
    if path.is_file():
        return path
    for folder in (path, path.parent / RUNS / path.name):
        if (folder / FILE).is_file():
            return folder / FILE
        if folder.is_dir() and any(folder.glob("*.xplane.pb")):
            raise ValueError(
                f"{folder} holds no {FILE}: another tool captured this run. TensorBoard shows it; to have it here, "
                "capture it with torchtpu.profiler"
            )
    runs = names(path)
    if len(runs) == 1:
        return find(path / RUNS / runs[0])
    if runs:
        raise ValueError(f"{path} has {len(runs)} runs, name one: {', '.join(str(path / run) for run in runs[-5:])}")
    others = names(path.parent)
    known = f" {path.parent} has {', '.join(others[-5:])}.{did_you_mean(path.name, others)}" if others else ""
    raise FileNotFoundError(f"no run at {path}.{known}")


def names(logdir: Path) -> list[str]:
    """The names of the runs in a log directory, in order."""
    folder = logdir / RUNS
    return sorted(run.name for run in folder.iterdir() if run.is_dir()) if folder.is_dir() else []
