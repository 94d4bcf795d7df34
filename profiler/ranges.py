"""Ranges by push and pop, as `torch.cuda.nvtx` has them: for code in which a `with` block is in the way.

They are `torch.profiler.record_function`, so PyTorch's own profiler shows them too.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from torch.profiler import record_function


class _Open(threading.local):
    def __init__(self) -> None:
        self.ranges: list[record_function] = []


_open = _Open()


def range_push(msg: str) -> int:
    """Begin a range inside the one that this thread has open. Returns how many it is inside of."""
    made = record_function(msg)
    made.__enter__()
    _open.ranges.append(made)
    return len(_open.ranges) - 1


def range_pop() -> int:
    """End the range that this thread began last. Returns how many it was inside of; -1 if there was none."""
    if _open.ranges:
        _open.ranges.pop().__exit__(None, None, None)
        return len(_open.ranges)
    return -1


@contextlib.contextmanager
def range(msg: str) -> Iterator[None]:
    """Have a range for as long as a block runs."""
    range_push(msg)
    try:
        yield
    finally:
        range_pop()
