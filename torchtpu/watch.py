"""`watch()`: a `with` block whose device work is reported."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from torchtpu import client, holders, ledger
from torchtpu.events import Log
from torchtpu.report.report import Report, fill

if TYPE_CHECKING:
    from torchtpu.ledger import Ledger


@contextlib.contextmanager
def watch(*, trace: bool = False) -> Iterator[Report]:
    """Report what the device does inside a `with` block.

    A watch is a boundary: pending work is run before it begins and when it ends, and it ends when the device has nothing
    left to do. So its figures are those of the code in it, and of nothing else. Watches may be nested.

    Args:
        trace: keep each op with its line, time and bytes in `report.trace`. Only debug mode waits for each op.

    Yields:
        a report that is filled when the block ends, also when an exception ends it.

    Raises:
        ValueError: `trace` in another mode than debug.

    Example:
        with torchtpu.watch() as report:
            train_step(batch)
        assert report.compiles == 0
        print(report)
    """
    from torchtpu import modes  # here: it imports jax, which `import torchtpu` must not

    if trace and modes.current() is not modes.EagerMode.DEFER_NEVER_AND_LAUNCH_BLOCKING:
        raise ValueError(
            f"a trace needs debug mode, which waits for each op; this is {modes.current().label}. "
            "Enter it first: with torch.tpu.set_eager_mode('debug'), torchtpu.watch(trace=True) as report: ..."
        )
    with watching(Log(modes.current().label, tracing=trace)) as report:
        yield report


@contextlib.contextmanager
def watching(log: Log) -> Iterator[Report]:
    """Send what happens inside a block to a log, and make the report of it. See `watch`."""
    from torchtpu import modes

    modes.flush("start of watch")
    report = Report.unfinished()
    log.started = time.perf_counter()
    memory = ledger.start()
    modes.start_log(log)
    try:
        yield report
    except BaseException as error:
        failed = _finish(report, log, memory, f"{type(error).__name__}: {error}")
        if failed is not None:
            error.add_note(f"The work still pending at that point failed too: {failed}")
        raise
    failed = _finish(report, log, memory, "")
    if failed is not None:
        raise failed


def _finish(report: Report, log: Log, memory: Ledger, error: str) -> Exception | None:
    """Close a watch and fill its report. Returns the error with which pending work failed, if it did."""
    from torchtpu import modes
    from torchtpu.report import build

    failed: Exception | None = None
    finish = 0.0
    try:
        modes.flush("end of watch")
        log.ended = time.perf_counter()
        if log.runs:
            client.wait()
            finish = time.perf_counter() - log.ended
    except Exception as raised:
        failed = raised
    finally:  # also when the user interrupts the wait
        log.ended = log.ended or time.perf_counter()
        modes.stop_log(log)
        ledger.stop(memory)
    if failed is not None:
        error = error or f"{type(failed).__name__}: {failed}"
    fill(report, build.figures(log, finish, memory.close(), error, holders.everything()))
    return failed
