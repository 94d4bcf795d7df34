"""`profile()`: a `with` block whose work is profiled."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from torchtpu import _torch_gaps, client, ledger
from torchtpu.errors import TorchTPUError
from torchtpu.profiler.timeline import STEP_OF_TORCH, Allocations, Timeline
from torchtpu.profiler.trace import CLOCK
from torchtpu.report import Report
from torchtpu.watch import watching

if TYPE_CHECKING:
    from torchtpu.ahead import Chip
    from torchtpu.profiler.check import Check
    from torchtpu.profiler.result import Profile


DEFAULT_LOGDIR = "tpu_profiles"


class ProfileOpenError(TorchTPUError):
    """A second profile was begun, or a profile was read, while one is open."""


_open: Capture | None = None
_last: Profile | None = None


def last() -> Profile | None:
    """Return the profile of the latest capture; None if there was none."""
    return _last


def last_logdir() -> str | None:
    """Return where the latest capture was written; None if there was none."""
    return str(Path(_last.folder).parents[2]) if _last is not None else None


@dataclass(frozen=True, slots=True)
class Levels:
    """How much XLA's tracers note (jax.profiler.ProfileOptions): on the host, on a chip, in Python; options of a chip's."""

    host: int = 2
    device: int = 1
    python: int = 0
    options: Mapping[str, str | bool | int] = field(default_factory=dict)


class Capture:
    """A profile that is being captured, and what it found once its `with` block has ended.

    It then has the attributes and methods of `Profile`.

    Attributes:
        targets: for each target chip the profile that its compiler expects.
    """

    def __init__(self, folder: Path, steps: int | None, chips: Sequence[Chip], progress: Callable[[str], None] | None) -> None:
        self.targets: tuple[Profile, ...] = ()
        self._folder = folder
        self._limit = steps
        self._chips = chips
        self._progress = progress
        self._profile: Profile | None = None
        self._check: Check | None = None
        self._recording: _Recording | None = None  # until it stops
        self._recorded: _Recording | None = None
        self._hook: RemovableHandle | None = None
        self._marked = False
        self._optimizer: int | None = None  # whose steps count

    @property
    def finished(self) -> bool:
        """Whether the block has ended and everything is written."""
        return self._profile is not None

    @property
    def profile(self) -> Profile:
        """What was found.

        Raises:
            ProfileOpenError: the block has not ended.
        """
        if self._profile is None:
            raise ProfileOpenError("the profile is still open: read it after its `with` block has ended")
        return self._profile

    @property
    def check(self) -> Check:
        """What TensorBoard's tools will show of it, and what not, read back from the file.

        Raises:
            ProfileOpenError: the block has not ended.
        """
        if self._check is None:
            raise ProfileOpenError("the profile is still open: read it after its `with` block has ended")
        return self._check

    @property
    def log(self) -> Timeline:
        """What is noted, while it is noted: to look at while the block runs."""
        assert self._recorded is not None
        return self._recorded.timeline

    def step(self) -> None:
        """Mark the end of a step. Steps are then no longer those of an optimizer."""
        recording = self._recording
        if recording is None:
            return
        if not self._marked:
            self._marked = True
            recording.timeline.ends_of_steps.clear()
        self._step_ended()

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return getattr(self.profile, name)

    def __repr__(self) -> str:
        return repr(self._profile) if self._profile is not None else f"<profile {self._folder.name}: still open>"

    def __str__(self) -> str:
        return str(self._profile) if self._profile is not None else repr(self)

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython, where it shows text

    def _repr_html_(self) -> str | None:
        return self._profile.to_html() if self._profile is not None else None

    def _optimizer_stepped(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if not self._marked and id(optimizer) == self._optimizer:
            self._step_ended()

    def _step_ended(self) -> None:
        recording = self._recording
        if recording is None:
            return
        ends = recording.timeline.ends_of_steps
        ends.append(time.perf_counter())
        if self._limit is not None and len(ends) >= self._limit:
            self._stop()

    def _annotated(self, name: str, start: float, end: float) -> None:
        if self._recording is not None:
            self._recording.timeline.annotated(name, start, end)
            if name.startswith(STEP_OF_TORCH):
                self.step()

    def _start(self, levels: Levels) -> None:
        self._recorded = self._recording = _Recording(self._annotated, levels)
        # Taken out at the end of the block, and not where a step stops the recording: PyTorch goes through its hooks then.
        self._hook = register_optimizer_step_post_hook(self._optimizer_stepped)

    def _stop(self, error: BaseException | None = None) -> None:
        """Stop recording, once; what follows in the block is not profiled."""
        recording, self._recording = self._recording, None
        if recording is not None:
            recording.stop(error)

    def _finish(self) -> None:
        """Work out the figures, write everything, and read it back."""
        global _last
        from torchtpu.profiler import write
        from torchtpu.profiler.modelled import model

        assert self._recorded is not None
        captured, self._profile, self._check = write.finish(self._folder, self._recorded)
        _last = self._profile
        for chip in self._chips:
            made, modelled, spans = model(captured, chip, self._progress)
            Path(made.folder).mkdir()
            write.save(made, modelled, spans)
            self.targets += (modelled,)

    def _close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        if self.finished:
            self._recorded = None  # it holds the whole trace


class _Recording:
    """What is under way between the start and the stop of a capture."""

    def __init__(self, annotated: Callable[[str, float, float], None], levels: Levels) -> None:
        import jax
        from jax._src.profiler import _profile_state
        from jaxlib import _profiler

        from torchtpu import modes

        if _profile_state.profile_session is not None:  # XLA has one session; it would only say so at the end
            raise ProfileOpenError("jax.profiler has a trace open: end it with jax.profiler.stop_trace() first")
        options = jax.profiler.ProfileOptions()
        options.host_tracer_level, options.device_tracer_level = levels.host, levels.device
        options.python_tracer_level = levels.python
        if levels.options:
            options.advanced_configuration = dict(levels.options)
        client.device()  # a device that starts inside the capture would be the longest event of it
        modes.flush("start of profile")
        client.wait()  # what was launched before is not of the capture
        self.scopes = contextlib.ExitStack()
        self.space = b""
        self.elapsed = 0.0
        try:
            self.timeline = Timeline(modes.current().label)
            self.report: Report = self.scopes.enter_context(watching(self.timeline))
            self.allocations = Allocations()
            self._session = _profiler.ProfilerSession(options)
            _profile_state.profile_session = self._session  # else jax.profiler would begin a trace that fails at its end
            self.scopes.callback(_leave_jax)
            self._mark()
            ledger.attach(self.allocations)
            self.scopes.callback(ledger.stop, self.allocations)
            self.scopes.enter_context(_torch_gaps.annotations(annotated))
        except BaseException:
            self.scopes.close()
            raise

    def stop(self, error: BaseException | None) -> None:
        """Wait for the device and stop, whatever fails meanwhile."""
        from torchtpu import modes

        failed: BaseException | None = None
        try:
            modes.flush("end of profile")
            client.wait()
        except BaseException as raised:
            failed = raised
        self.elapsed = time.perf_counter() - self.timeline.started
        try:
            self._mark()
            if error is None:
                self.scopes.close()
            else:
                self.scopes.__exit__(type(error), error, error.__traceback__)
        except BaseException as raised:
            if raised is not error:
                failed = failed or raised
        finally:
            self.space = self._session.stop()
        if failed is not None and error is None:
            raise failed

    @staticmethod
    def _mark() -> None:
        """Note torchtpu's clock in XLA's trace, several times: the thread may lose the CPU between the two."""
        import jax

        for _ in range(5):
            with jax.profiler.TraceAnnotation(CLOCK, at=time.perf_counter_ns()):
                pass


def _leave_jax() -> None:
    from jax._src.profiler import _profile_state

    _profile_state.profile_session = None


@contextlib.contextmanager
def profile(
    logdir: str | os.PathLike[str] = DEFAULT_LOGDIR,
    *,
    name: str = "",
    steps: int | None = None,
    python: bool = False,
    target: str = "",
) -> Iterator[Capture]:
    """Profile what happens inside a `with` block, and write it where TensorBoard finds it.

    It writes `<logdir>/plugins/profile/<run>/<host>.xplane.pb`, and what it found beside it. It begins when the device has
    run what was pending, and ends when it has nothing left to do. An exception inside is the one that is raised; what was
    captured until then is written.

    Args:
        logdir: a directory; made if it does not exist.
        name: of the run, after the time; in a notebook the cell's.
        steps: stop after so many; what follows in the block is not profiled.
        python: trace Python's calls too: the trace grows, and Python gets several times slower.
        target: chips by name (`v6e`, `v5e,v6e`, `all`), which need not be there: for each, a second run is written beside
            the first, `<run>_modelled_v6e`, with the programs as compiled for the chip, and the time that its compiler
            expects of each kernel. Compiling takes seconds to minutes, once.

    Yields:
        what becomes a `Profile` when the block ends. Its `step()` marks the end of a step; without it, steps are those of
        the first optimizer that makes one.

    Raises:
        ProfileOpenError: another profile is open.
        NotADirectoryError, PermissionError, OSError: nothing can be written to `logdir`. Raised before the block runs.
        ValueError: `steps` is less than 1.
        UnknownChipError, CompilerMissingError: for `target`. Raised before the block runs.

    Example:
        with torchtpu.profiler.profile("runs") as p:
            for batch in batches:
                train_step(batch)
        print(p)
    """
    capture = start(logdir, name=name, steps=steps, levels=Levels(python=int(python)), target=target)
    try:
        yield capture
    except BaseException as error:
        stop(capture, error)
        raise
    empty = [t.tool for t in stop(capture).check.tools if not t.filled]
    if empty:
        print(f"torchtpu profile {capture.run}: empty in TensorBoard: {', '.join(empty)}; why: print(p.check)", file=sys.stderr)


def start(
    logdir: str | os.PathLike[str] = DEFAULT_LOGDIR,
    *,
    name: str = "",
    steps: int | None = None,
    levels: Levels | None = None,
    target: str = "",
    progress: Callable[[str], None] | None = None,
) -> Capture:
    """Begin a profile, which `stop` ends. Arguments and errors are those of `profile`.

    Args:
        levels: how much XLA notes, instead of `python`.
        progress: called while programs are compiled for `target`, with what is done.
    """
    global _open
    if _open is not None:
        raise ProfileOpenError(
            f"a profile is open already ({_open._folder.name}): profiles cannot be nested. Let its `with` block end first "
            "(or call torchtpu.profiler.stop() if start() began it); torch.profiler.record_function names a part of it."
        )
    if steps is not None and steps < 1:
        raise ValueError(f"steps={steps}: a profile has at least one step")
    chips: tuple[Chip, ...] = ()
    if target:
        from torchtpu.ahead import parse, process

        chips = parse(target)
        process.version()  # or an error that says how to get the compiler
    folder = _new_folder(Path(logdir).expanduser().absolute(), name)  # the block may change directory
    capture = _open = Capture(folder, steps, chips, progress)
    try:
        capture._start(levels or Levels())
    except BaseException:
        _open = None
        _discard(folder)
        raise
    return capture


def stop(capture: Capture | None = None, error: BaseException | None = None) -> Capture:
    """End a profile and write it.

    Args:
        capture: what `start` returned; the one that is open if left out.
        error: what ended the block, if something did. It then has whatever fails here as a note, and nothing is raised.

    Raises:
        ProfileOpenError: none is open.
        OSError: it cannot be written.
    """
    global _open
    capture = capture or _open
    if capture is None:
        raise ProfileOpenError("no profile is open")
    failed: BaseException | None = None
    try:
        try:
            capture._stop(error)
        except BaseException as raised:  # a program that failed, or an interrupt: what was captured is written all the same
            failed = raised
        capture._finish()
    except BaseException as raised:
        _discard(capture._folder)
        failed = failed or raised
    finally:
        capture._close()
        if _open is capture:
            _open = None
    if failed is not None and error is None:
        raise failed
    if failed is not None and error is not None:
        error.add_note(f"The profile is not complete: {type(failed).__name__}: {failed}".rstrip(": "))
    return capture


def _new_folder(logdir: Path, name: str) -> Path:
    """Make the folder of a new run."""
    if logdir.exists() and not logdir.is_dir():
        raise NotADirectoryError(f"profiles go to a directory, and {logdir} is a file: name another one")
    safe = re.sub(r"[^A-Za-z0-9.-]+", "_", name).strip("_.")
    run = time.strftime("%Y_%m_%d_%H_%M_%S") + (f"_{safe}" if safe else "")
    parent = logdir / "plugins" / "profile"
    try:
        parent.mkdir(parents=True, exist_ok=True)
        for again in range(1000):
            folder = parent / (f"{run}_{again + 1}" if again else run)
            with contextlib.suppress(FileExistsError):
                folder.mkdir()
                return folder
    except OSError as error:
        raise type(error)(error.errno, f"no profile can be written to {logdir}: {error.strerror}") from None
    raise FileExistsError(f"{parent} has a thousand runs of this second already")


def _discard(folder: Path) -> None:
    """Take back the folder of a run that has come to nothing."""
    if not any(folder.glob("*.xplane.pb")):
        shutil.rmtree(folder, ignore_errors=True)


def host() -> str:
    """Return this machine's name, as it names files."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", socket.gethostname()) or "host"
