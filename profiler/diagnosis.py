"""`doctor`: why TensorBoard does not show a profile, in this environment.

Most of what goes wrong on the way from a profile to its page is packaging: versions that do not fit, a folder too many, an
address that leads nowhere. Each is looked at here, and said with what to do.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import Any, Literal

from torchtpu.profiler import links, logdir as logdirs, tensorboard
from torchtpu.profiler.tensorboard import INSTALL
from torchtpu.report import units
from torchtpu.report.table import BOX, LINE, PHRASE, QUIET

State = Literal["ok", "warning", "problem"]

_PYTHON = (3, 11)
_PACKAGES = ("jax", "jaxlib", "protobuf", "tensorboard", "xprof", "tensorboard-plugin-profile")
# Of each, two at a time register or overwrite the same thing.
_EITHER = (("tensorboard", "tb-nightly"), ("xprof", "xprof-nightly"))
_LOAD_SECONDS = 120.0
_FULL, _NEARLY_FULL = 100 << 20, 1 << 30  # bytes free on the disk
_WIDTH = 120  # columns of text

# What TensorBoard does when it starts: one plugin that does not load ends it.
_LOAD = """
import importlib, importlib.metadata
import tensorboard.main
for entry in importlib.metadata.entry_points(group="tensorboard_plugins"):
    entry.load()
    if entry.name == "profile":
        importlib.import_module(entry.module.removesuffix("_loader"))
"""


@dataclass(frozen=True, slots=True)
class Row:
    """One thing that was looked at.

    Attributes:
        check: its name.
        state: ok; warning: it may be the cause; problem: it is one.
        found: what there is.
        do: what to do about it; empty if nothing.
    """

    check: str
    state: State
    found: str
    do: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Diagnosis:
    """What `doctor` found."""

    rows: tuple[Row, ...]

    @property
    def title(self) -> str:
        """The count of problems and warnings, in words."""
        counts = [(sum(r.state == state for r in self.rows), state) for state in ("problem", "warning")]
        return ", ".join(units.count(n, state) if n else f"no {state}s" for n, state in counts)

    def to_text(self, width: int = _WIDTH) -> str:
        """Draw it as text, `width` columns wide."""
        names = max((len(r.check) for r in self.rows), default=0)
        lines = [f"torchtpu doctor: {self.title}"]
        for row in self.rows:
            head = f"{row.state:<8} {row.check:<{names}}  "
            rest = " " * len(head)
            # Addresses and commands are copied: they are not broken.
            fill = textwrap.TextWrapper(width, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False)
            fill.initial_indent = head
            lines += fill.wrap(row.found)
            if row.do:
                fill.initial_indent, fill.subsequent_indent = f"{rest}-> ", f"{rest}   "
                lines += fill.wrap(row.do)
        return "\n".join(lines)

    def to_html(self) -> str:
        """Draw it as an HTML fragment that survives an untrusted notebook."""
        title = f'<div><b style="{PHRASE}">doctor</b> <span style="{PHRASE}">{escape(self.title)}</span></div>'
        body = "".join(map(_row_html, self.rows))
        table = (
            f'<table style="border-collapse:collapse;border:none;margin:6px 0 0 0;font-size:13px;color:inherit">{body}</table>'
        )
        return f'<div style="{BOX}">{title}<div style="overflow-x:auto">{table}</div></div>'

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<torchtpu doctor: {self.title}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython, where it shows text

    def _repr_html_(self) -> str:
        return self.to_html()


def _row_html(row: Row) -> str:
    cell = "padding:3px 14px 3px 0;vertical-align:top;text-align:left"
    strong = "" if row.state == "ok" else ";font-weight:bold"
    edge = {"ok": "transparent", "warning": "#d9a02b", "problem": "#d9572b"}[row.state]
    found = f'<span style="{QUIET if row.do else ""}">{escape(row.found)}</span>'
    do = f'<div style="overflow-wrap:anywhere">&#8594; {escape(row.do)}</div>' if row.do else ""
    return (
        f'<tr style="background:none;border-top:1px solid {LINE}">'
        f'<td style="{cell};padding-left:8px;border-left:3px solid {edge}{strong}">{row.state}</td>'
        f'<td style="{cell};white-space:nowrap">{escape(row.check)}</td>'
        f'<td style="{cell};overflow-wrap:anywhere">{found}{do}</td></tr>'
    )


def doctor(logdir: str | os.PathLike[str] | None = None) -> Diagnosis:
    """Look at what it takes to see a profile in TensorBoard. Starts no server, changes nothing, and never raises.

    Args:
        logdir: the log directory. None: that of the last capture, or of a server that runs.
    """
    where = logdir if logdir is not None else _last()
    checks: tuple[tuple[str, Callable[[], Iterator[Row]]], ...] = (
        ("Python", _python),
        ("packages", _packages),
        ("profile plugin", _plugin),
        ("plugin loads", _loads),
        ("log directory", lambda: _logdir(where)),
        ("disk", lambda: _disk(where)),
        ("port", _ports),
        ("address", _address),
        ("browser", _browser),
    )
    return Diagnosis(tuple(row for name, check in checks for row in _guarded(name, check)))


def _guarded(name: str, check: Callable[[], Iterator[Row]]) -> list[Row]:
    rows: list[Row] = []
    try:
        rows.extend(check())  # what came before an error is kept
    except Exception as error:
        rows.append(Row(name, "warning", f"could not be looked at: {type(error).__name__}: {error}"))
    return rows


def _last() -> str | os.PathLike[str] | None:
    try:
        import torchtpu.profiler as profiler

        last = getattr(profiler, "last_logdir", None)
        if last is not None and (captured := last()) is not None:
            return captured
    except Exception:  # whatever ails it, it is not what this is about
        return None
    servers = tensorboard.running()
    return servers[-1].logdir if servers else None


def _python() -> Iterator[Row]:
    version = platform.python_version()
    if sys.version_info < _PYTHON:
        least = ".".join(map(str, _PYTHON))
        yield Row("Python", "problem", version, f"torchtpu needs {least} or newer: make a new environment")
    else:
        yield Row("Python", "ok", f"{version} ({sys.executable})")


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Row]:
    found = {name: _version(name) for name in _PACKAGES}
    yield Row("packages", "ok", ", ".join(f"{name} {version}" for name, version in found.items() if version))
    if not (found["tensorboard"] or _version("tb-nightly")):
        yield Row("packages", "problem", "TensorBoard is not installed", INSTALL)
    for names in _EITHER:
        both = [name for name in names if _version(name)]
        if len(both) > 1:
            yield Row("packages", "problem", f"{' and '.join(both)} overwrite each other's files", _keep(both, both[0]))
    for name, version in found.items():
        if version:
            yield from _unmet(name, version)


def _unmet(name: str, version: str) -> Iterator[Row]:
    """What a package needs, and does not have in the version that is installed."""
    from packaging.requirements import Requirement

    for text in importlib.metadata.requires(name) or ():
        needed = Requirement(text)
        if needed.marker is not None and not needed.marker.evaluate({"extra": ""}):
            continue
        installed = _version(needed.name)
        if installed is None:
            found = f"{name} {version} needs {needed.name}, which is not installed"
            yield Row("packages", "problem", found, f"pip install '{needed.name}{needed.specifier}'")
        elif not needed.specifier.contains(installed, prereleases=True):
            found = f"{name} {version} needs {needed.name}{needed.specifier}, and {installed} is installed"
            yield Row("packages", "problem", found, f"pip install '{needed.name}{needed.specifier}', or {INSTALL}")


def _keep(names: list[str], keep: str) -> str:
    return f"keep one: pip uninstall -y {' '.join(names)} && pip install {keep}"


def _plugin() -> Iterator[Row]:
    registered = tensorboard.plugins()
    text = ", ".join(f"{name} {_version(name) or ''}".strip() for name in registered)
    if not registered:
        yield Row("profile plugin", "problem", "none is registered with TensorBoard", INSTALL)
    elif len(registered) > 1:
        found = f"{text} each register one: TensorBoard takes one of them, or ends"
        remove = [name for name in registered if name != "xprof"] if "xprof" in registered else list(registered)[1:]
        yield Row(
            "profile plugin", "problem", found, f"pip uninstall -y {' '.join(remove)} && pip install --force-reinstall xprof"
        )
    elif not any(name.startswith("xprof") for name in registered):
        found = f"{text} is from before XProf, and needs a TensorFlow of its age"
        yield Row("profile plugin", "problem", found, f"pip uninstall -y {next(iter(registered))} && {INSTALL}")
    else:
        yield Row("profile plugin", "ok", f"{text}, registered once")


def _loads() -> Iterator[Row]:
    """Load it where TensorBoard would: in another process."""
    if importlib.util.find_spec("tensorboard") is None:
        return  # said above
    command = [sys.executable, "-P", "-c", _LOAD]
    try:
        done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=_LOAD_SECONDS)
    except subprocess.TimeoutExpired:
        yield Row(
            "plugin loads", "warning", f"not within {_LOAD_SECONDS:.0f} s", "the disk or the machine is very slow: try again"
        )
        return
    if done.returncode == 0:
        yield Row("plugin loads", "ok", "in a process of its own, as TensorBoard's is")
        return
    last = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
    yield Row("plugin loads", "problem", f"it does not: {last}", INSTALL)


def _logdir(where: str | os.PathLike[str] | None) -> Iterator[Row]:
    if where is None:
        yield Row("log directory", "ok", "none was named, and nothing was captured in this session")
        return
    found = logdirs.look(where)
    if found.newest is not None:
        runs = units.count(len(found.runs), "run")
        yield Row(
            "log directory", "ok", f"{found.path}: {runs}, the newest {found.newest.name} ({units.nbytes(found.newest.nbytes)})"
        )
    for fault in found.faults:
        yield Row("log directory", "warning" if found.runs else "problem", fault.what, fault.do)


def _disk(where: str | os.PathLike[str] | None) -> Iterator[Row]:
    if where is None:
        return
    path = logdirs.absolute(where)
    there = next(p for p in (path, *path.parents) if p.exists())
    folder = there if there.is_dir() else there.parent
    if not os.access(folder, os.W_OK | os.X_OK):
        yield Row("disk", "problem", f"{folder} cannot be written to", "profile into another folder")
    free = shutil.disk_usage(folder).free
    text = f"{units.nbytes(free)} free where {Path(folder)} is"
    if free < _NEARLY_FULL:
        state: State = "problem" if free < _FULL else "warning"
        yield Row("disk", state, text, "a profile takes up to a few hundred MB: make room, or profile into another folder")
    else:
        yield Row("disk", "ok", text)


def _ports() -> Iterator[Row]:
    servers = tensorboard.running()
    for server in servers:
        try:
            yield Row("server", "ok", f"of {server.logdir}, at {server.url}: {units.count(len(server.runs()), 'run')}")
        except tensorboard.TensorBoardError as error:
            yield Row("server", "problem", str(error), f"%tpu_tensorboard --stop, then %tpu_tensorboard {server.logdir}")
    if not servers:
        first = tensorboard.PORTS[0]
        owner = tensorboard.owner_of(first)
        if owner is None:
            yield Row("port", "ok", f"{first}, TensorBoard's own, is free")
        else:
            found = f"{first}, TensorBoard's own, is taken by {owner}, which is not of this session"
            yield Row("port", "ok", f"{found}: %tpu_tensorboard takes the next free one")


def _address() -> Iterator[Row]:
    servers = tensorboard.running()
    port = servers[-1].port if servers else tensorboard.PORTS[0]
    route = links.route(port)
    why = f" (by {route.because})" if route.because else ""
    found = f"{route.via}{why}: port {port} is at {route.url}"
    if not route.needs:
        yield Row("address", "ok", found)
    else:
        yield Row("address", "warning", found, f"it needs {route.needs}")


def _browser() -> Iterator[Row]:
    """What only the browser knows."""
    if _loads_charts():
        found = (
            "XProf's pages load Google Charts from www.gstatic.com: your browser does, and whether it can is not known here. "
            "Without, charts stay blank; the trace viewer, the op profile and the figures of the overview do not need them"
        )
        yield Row("Google Charts", "warning", found, "if charts are blank: the summary of torchtpu's own needs no network")
    route = links.route(tensorboard.PORTS[0])
    if route.direct:
        found = (
            "a page that came by https, or from another machine, does not show what is at http://127.0.0.1 of this one, "
            "and a browser that keeps third-party data from pages shows it only in a tab of its own"
        )
        yield Row("embedding", "ok", found)


def _loads_charts() -> bool:
    spec = importlib.util.find_spec("xprof")
    folders = (spec.submodule_search_locations or ()) if spec is not None else ()
    pages = [Path(folder) / "static" / "index.html" for folder in folders]
    return any("gstatic" in page.read_text(encoding="utf-8", errors="replace") for page in pages if page.is_file())
