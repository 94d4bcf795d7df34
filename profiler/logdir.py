"""What lies below a log directory: the runs that TensorBoard lists there, and the profiles that it does not find.

TensorBoard's profile plugin shows `<logdir>/plugins/profile/<run>/<host>.xplane.pb`, and the same further down:
`<logdir>/train/plugins/profile/<run>/<host>.xplane.pb` is the run `train/<run>`. Of anything else it says "No profile data
was found", and not why. Here is why.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

_ENDING = ".xplane.pb"
_PLUGIN = ("plugins", "profile")
_TORCH_TRACES = (".pt.trace.json", ".pt.trace.json.gz")
# What XProf keeps of a profile that it has shown, and shows again without looking at the profile.
_KEPT = ("ALL_HOSTS.*", "*.hlo_proto.pb", "*.SSTABLE", "cache_version.txt", ".cached_tools.json")
_STALE = 5.0  # seconds: files copied together differ by less
_FOLDERS = 20_000  # looked into at most: somebody may point at his home


@dataclass(frozen=True, slots=True)
class Run:
    """A run that TensorBoard lists.

    Attributes:
        name: as TensorBoard lists it.
        path: its folder.
        files: its profiles, one a host.
        nbytes: of all of them.
        modified: when the newest was written, in seconds since 1970.
    """

    name: str
    path: Path
    files: tuple[Path, ...]
    nbytes: int
    modified: float


@dataclass(frozen=True, slots=True)
class Fault:
    """Something in a log directory that keeps a profile from being seen: what is wrong, and what to do about it."""

    what: str
    do: str

    def __str__(self) -> str:
        return f"{self.what}: {self.do}"


@dataclass(frozen=True, slots=True)
class Logdir:
    """What lies below a log directory.

    Attributes:
        path: of it, absolute.
        runs: those that TensorBoard lists and can show, the newest last.
        faults: what is wrong, the worst first.
    """

    path: Path
    runs: tuple[Run, ...]
    faults: tuple[Fault, ...]

    @property
    def newest(self) -> Run | None:
        """The run that was written last."""
        return self.runs[-1] if self.runs else None

    def why_nothing(self) -> str:
        """Say why there is nothing to show, and what to do. Empty if there is a run."""
        return "" if self.runs else "; ".join(map(str, self.faults))


def absolute(logdir: str | os.PathLike[str]) -> Path:
    """Return the path that a user means: `~` is his home, and a relative one begins at the current folder."""
    return Path(os.path.abspath(os.path.expanduser(os.fspath(logdir))))


def look(logdir: str | os.PathLike[str]) -> Logdir:
    """Look at what lies below a log directory. Reads names and sizes, no profile; never raises for what it finds."""
    path = absolute(logdir)
    if path.is_file():
        return Logdir(path, (), (_file(path),))
    if not path.is_dir():
        return Logdir(path, (), (Fault(f"{path} does not exist", _capture(path)),))
    inside = _inside(path)
    runs: list[Run] = []
    faults: list[Fault] = []
    torch_traces: list[Path] = []
    folders = 0
    for folder, names in _walk(path):
        folders += 1
        place = folder.relative_to(path).parts
        files = sorted(folder / name for name in names if name.endswith(_ENDING))
        torch_traces += [folder / name for name in names if name.endswith(_TORCH_TRACES)]
        is_run = len(place) >= 3 and place[-3:-1] == _PLUGIN
        if files and is_run and inside is None:
            runs.append(run := _run(folder, place, files))
            faults += _faults_of(run, names)
        elif files and inside is None:
            faults.append(_misplaced(path, place, files))
        elif is_run and not files and not any(_profiles(folder)):
            what = f"the run {folder} holds no {_ENDING} file: TensorBoard lists it and has nothing to show"
            faults.append(Fault(what, f"delete it: rm -r {shlex.quote(str(folder))}"))
    if inside is not None and any(_profiles(path)):
        what = f"{path} is inside a log directory, and TensorBoard looks for plugins/profile below what it is given"
        return Logdir(path, (), (Fault(what, f"use {inside}"),))
    if folders >= _FOLDERS:
        faults.append(Fault(f"{path} has more than {_FOLDERS:,} folders, and only those were searched", "use a smaller one"))
    if not runs and not faults:
        faults.append(_nothing(path, torch_traces))
    return Logdir(path, tuple(sorted(runs, key=lambda r: (r.modified, r.name))), tuple(faults))


def _walk(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Yield folders and the names of their files, without what is hidden."""
    for count, (folder, folders, files) in enumerate(os.walk(path), 1):
        folders[:] = sorted(f for f in folders if not f.startswith("."))
        yield Path(folder), files
        if count >= _FOLDERS:
            return


def _profiles(path: Path) -> Iterator[Path]:
    for folder, names in _walk(path):
        yield from (folder / name for name in names if name.endswith(_ENDING))


def _run(folder: Path, place: tuple[str, ...], files: list[Path]) -> Run:
    stats = [file.stat() for file in files]
    name = "/".join((*place[:-3], place[-1]))
    return Run(name, folder, tuple(files), sum(s.st_size for s in stats), max(s.st_mtime for s in stats))


def _faults_of(run: Run, names: list[str]) -> list[Fault]:
    faults = []
    for file in run.files:
        if file.stat().st_size == 0:
            what = f"{file} is empty: the capture did not end, or the disk was full"
            faults.append(Fault(what, "capture again, and delete this one"))
    kept = [run.path / name for name in names if any(fnmatch(name, pattern) for pattern in _KEPT)]
    if any(file.stat().st_mtime < run.modified - _STALE for file in kept):
        what = (
            f"the run {run.name} was replaced after XProf had shown it, and XProf goes on showing what it kept of the old one"
        )
        patterns = " -o ".join(f"-name {shlex.quote(pattern)}" for pattern in _KEPT)
        faults.append(Fault(what, f"find {shlex.quote(str(run.path))} '(' {patterns} ')' -delete"))
    return faults


def _file(path: Path) -> Fault:
    if not path.name.endswith(_ENDING):
        return Fault(f"{path} is a file, and a log directory is a folder", "name the folder that plugins/profile is in")
    root = _inside(path.parent)
    if root is not None:
        return Fault(f"{path} is a profile, and not the log directory that it is in", f"use {root}")
    return _misplaced(path.parent, (), [path])


def _inside(path: Path) -> Path | None:
    """Return the log directory that a path is inside of, at `plugins` or below; None if it is none."""
    parts = path.parts
    for k in range(len(parts) - 1):
        if parts[k : k + 2] == _PLUGIN:
            return Path(*parts[:k])
    if path.name == _PLUGIN[0] and (path / _PLUGIN[1]).is_dir():
        return path.parent
    return None


def _misplaced(root: Path, place: tuple[str, ...], files: list[Path]) -> Fault:
    """Say that profiles lie where TensorBoard does not look, and how to move them."""
    folder = root.joinpath(*place)
    many = f"{len(files)} profiles lie" if len(files) > 1 else f"the profile {files[0].name} lies"
    top, run = root, folder.name if place else files[0].name.removesuffix(_ENDING)
    wrong = "there is no plugins/profile/<run> above it"
    if _PLUGIN in pairwise(place):
        k = next(k for k in range(len(place)) if place[k : k + 2] == _PLUGIN)
        top, below = root.joinpath(*place[:k]), place[k + 2 :]
        if below:
            wrong = f"{'a level' if len(below) == 2 else f'{len(below) - 1} levels'} too deep, below plugins/profile/{below[0]}"
        else:
            wrong = "the folder of the run is missing, below plugins/profile"
        run = "_".join(below) or files[0].name.removesuffix(_ENDING)
    elif len(place) >= 2 and place[-2] == _PLUGIN[1]:
        top, wrong = root.joinpath(*place[:-2]), "the folder `plugins` is missing above `profile`"
    to = shlex.quote(str(top.joinpath(*_PLUGIN, run)))
    source, it = (f"{shlex.quote(str(folder))}/*{_ENDING}", "them") if len(files) > 1 else (shlex.quote(str(files[0])), "it")
    what = f"{many} in {folder}, where TensorBoard does not look ({wrong})"
    return Fault(what, f"move {it}: mkdir -p {to} && mv {source} {to}/")


def _nothing(path: Path, torch_traces: list[Path]) -> Fault:
    if torch_traces:
        what = f"{path} holds traces of torch.profiler ({torch_traces[0].name}), which XProf does not read"
        return Fault(what, f"open them at https://ui.perfetto.dev, or {_capture(path)}")
    return Fault(f"there is no profile (*{_ENDING}) below {path}", _capture(path))


def _capture(path: Path) -> str:
    return f"capture one: with torchtpu.profile({str(path)!r}): ..."
