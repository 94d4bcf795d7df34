"""Account of device memory: bytes in use, their peak, and (while somebody watches) every allocation.

Sizes are those of the arrays that tensors hold, counted when an array is made and when its last holder lets go; a
program's temporaries (as its compiler reports them) count towards the peak while it runs. PJRT's own statistics do not
exist on XLA:CPU and cannot be attributed anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from torchtpu.layout import Layout
    from torchtpu.lines import Origin


class Trace(Protocol):
    """What watches allocations (a `ledger.Ledger`)."""

    def append(self, entry: tuple[int, int, Layout | str, Origin | None]) -> None:
        """Take an allocation, a release, or what a program needs while it runs."""


@dataclass(slots=True)
class Usage:
    """Counters in bytes.

    Attributes:
        live: held by tensors now.
        peak: highest `live` plus temporaries since the last reset.
        allocations: arrays made since the start.
        allocated: bytes since the start.
        trace: while watched, takes (+bytes, buffer id, layout, origin) and (-bytes, ...) in order; (+bytes, 0, name, None)
            for what a running program needs.
        origin: the line whose op runs now, while watched.
    """

    live: int = 0
    peak: int = 0
    allocations: int = 0
    allocated: int = 0
    trace: Trace | None = None
    origin: Origin | None = None


usage = Usage()


def peak_with(temporaries: int, program: str) -> None:
    """Count a running program's temporaries towards the peak."""
    u = usage
    if u.live + temporaries > u.peak:
        u.peak = u.live + temporaries
    if u.trace is not None:
        u.trace.append((temporaries, 0, program, None))


def reset_peak() -> None:
    """Start the peak anew from what is live now."""
    usage.peak = usage.live
