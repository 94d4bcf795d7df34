"""`show()`: a run in TensorBoard, and what there is without one: its own page, and its files."""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape
from pathlib import Path

from torchtpu.errors import TorchTPUError
from torchtpu.profiler import capture, logdir as logdirs, save, stored, tensorboard
from torchtpu.profiler.result import Profile
from torchtpu.report.table import BOX, PHRASE, QUIET

OFFLINE = (
    "XProf draws most of its charts with Google Charts, which it loads from the internet: without a connection they stay "
    "blank, and the figures are on torchtpu's own page"
)


@dataclass(frozen=True, slots=True, repr=False)
class Shown:
    """A run, and the ways to look at it.

    Attributes:
        run: its name; xplane: the file that TensorBoard reads.
        url: TensorBoard at this run, for a browser behind whatever proxy serves the notebook; empty where there is none.
        why_no_url: then, why.
        profile: torchtpu's own figures; None for a run that another tool captured.
        page, trace: of these, one HTML file, and the timeline for Perfetto.
    """

    run: str
    xplane: Path
    url: str
    why_no_url: str
    profile: Profile | None
    page: Path | None
    trace: Path | None

    def to_text(self) -> str:
        """Return links and figures as plain text."""
        lines = [f"profile {self.run}", f"TensorBoard: {self.url or self.why_no_url}"]
        lines += [f"{what}: {path}" for what, path in self._files()]
        if self.url:
            lines.append(f"{OFFLINE}.")
        if self.profile is not None:
            lines += ["", self.profile.to_text()]
        return "\n".join(lines)

    def _files(self) -> list[tuple[str, Path]]:
        files = (("torchtpu's page", self.page), ("timeline for Perfetto", self.trace), ("XProf's file", self.xplane))
        return [(what, path) for what, path in files if path is not None]

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<profile {self.run}: {self.url or 'no TensorBoard'}>"

    def _repr_html_(self) -> str:
        where = (
            f'<a href="{escape(self.url)}" target="_blank" rel="noopener">open in TensorBoard</a>'
            if self.url
            else escape(self.why_no_url)
        )
        files = "".join(f"<div>{escape(what)}: <code>{escape(str(path))}</code></div>" for what, path in self._files())
        own = self.profile.to_html() if self.profile is not None else ""
        quiet = f'<div style="{QUIET};overflow-wrap:anywhere">{files}<div>{escape(OFFLINE)}.</div></div>'
        return f'<div style="{BOX}"><b style="{PHRASE}">profile {escape(self.run)}</b> {where}{quiet}</div>{own}'


def show(path: str | os.PathLike[str] | None = None, run: str = "") -> Shown:
    """Show a run: in TensorBoard, which is started or used again, and as torchtpu's own page, which needs no server.

    Args:
        path: the log directory; that of the last capture if left out.
        run: its name; the newest if left out.

    Raises:
        NoProfileError: there is no such run (with what was found instead).
    """
    logdir = Path(path) if path is not None else Path(capture.last_logdir() or capture.DEFAULT_LOGDIR)
    found = logdirs.look(logdir)
    chosen = next((r for r in found.runs if r.name == run), None) if run else found.newest
    if chosen is None:
        names = ", ".join(r.name for r in found.runs)
        raise tensorboard.NoProfileError(f"{logdir} has no run {run!r}, but {names}" if run and names else found.why_nothing())
    try:
        url, why = tensorboard.start(logdir).profile_url(chosen.name), ""
    except (TorchTPUError, OSError, ValueError) as error:
        url, why = "", f"not there: {error}"
    profile = page = trace = None
    try:
        profile = stored.load(chosen.path)
    except (FileNotFoundError, ValueError):
        pass  # a run of another tool
    else:
        page, trace = chosen.path / "torchtpu_profile.html", chosen.path / "torchtpu.trace.json.gz"
        if not page.exists():
            save.save(profile, page)
        if not trace.exists():
            save.save(profile, trace)
    return Shown(chosen.name, chosen.files[0], url, why, profile, page, trace)
