"""Account of device memory: bytes in use, their peak, and (while somebody watches) every allocation.

Sizes are those of the arrays that tensors hold, counted when an array is made and when its last holder lets go; a
program's results and temporaries (as its compiler reports them) count towards the peak while it runs. PJRT's own
statistics do not exist on XLA:CPU and cannot be attributed anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.lines import Origin


class Trace(Protocol):
    """What watches allocations: a `ledger.Ledger`, a profile."""

    def allocated(self, buffer: Buffer) -> None:
        """Take a buffer that got its array."""

    def released(self, buffer: Buffer, nbytes: int) -> None:
        """Take a buffer that gave its bytes up."""

    def running(self, program: str, results: int, reused: int, temporaries: int) -> None:
        """Take a program that is about to run."""


@dataclass(slots=True)
class Usage:
    """Counters in bytes.

    Attributes:
        live: held by tensors now.
        peak: highest `live`, with what the programs running then needed, since the last reset.
        mark: as far as `live` may rise without a change of the peak, or a look at the limit.
        allocations: arrays made since the start, or since the counts were reset.
        allocated: their bytes.
        before: `live` when the counts were reset.
        trace: what watches, if somebody does.
        origin: the line whose op runs now, while watched.
    """

    live: int = 0
    peak: int = 0
    mark: int = 0
    allocations: int = 0
    allocated: int = 0
    before: int = 0
    trace: Trace | None = None
    origin: Origin | None = None


usage = Usage()


def rise(buffer: Buffer) -> None:
    """Move the peak to what is in use now, with this new buffer.

    Raises:
        torch.OutOfMemoryError: that is more than the limit.
    """
    from torchtpu import client, errors

    u = usage
    limit = client.memory_limit()
    if u.live > limit:
        wanted, buffer.nbytes = buffer.nbytes, 0  # it goes with the error, and was never there
        u.live -= wanted
        raise errors.out_of_memory(wanted, u.live, limit, f"a tensor of {buffer.layout}")
    u.peak = max(u.peak, u.live)
    u.mark = min(u.peak, limit)


def run(program: str, results: int, reused: int, temporaries: int) -> None:
    """Count what a program needs while it runs towards the peak.

    Args:
        program: its name.
        results: bytes of its results.
        reused: of these, those that take over the memory of an argument.
        temporaries: bytes besides.

    Raises:
        torch.OutOfMemoryError: they do not fit; the program must not be run.
    """
    u = usage
    needed = results - reused + temporaries
    if u.live + needed > u.mark:
        check(needed, f"program {program}")
        u.peak = u.mark = max(u.peak, u.live + needed)
    if u.trace is not None:
        u.trace.running(program, results, reused, temporaries)


def check(nbytes: int, what: str) -> None:
    """Check that something fits beside what is in use.

    Raises:
        torch.OutOfMemoryError: it does not.
    """
    from torchtpu import client, errors

    limit = client.memory_limit()
    if usage.live + nbytes > limit:
        raise errors.out_of_memory(nbytes, usage.live, limit, what)


def reset_peak() -> None:
    """Start the peak anew from what is live now."""
    usage.peak = usage.mark = usage.live


def limit_changed() -> None:
    """Look at the limit again, whatever is in use."""
    usage.mark = 0
