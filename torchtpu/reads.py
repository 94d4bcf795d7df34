"""What asked for a value: `if t:`, `float(t)`, `t.tolist()`, an f-string, ... PyTorch sends them all to two kernels.

The answer is in the instruction that the user's frame stands at. It is looked up only while somebody watches.
"""

from __future__ import annotations

import contextlib
import dis
import math
import warnings
from collections.abc import Iterator
from functools import lru_cache
from types import CodeType

from torchtpu import lines
from torchtpu.errors import SyncError
from torchtpu.lines import Origin

# What to do with a read that waits: nothing, warn, or raise. `torch.tpu.set_sync_debug_mode` sets it.
MODES = ("default", "warn", "error")
debug_mode = 0


def object_to(what: str) -> None:
    """Warn of a read, or refuse it.

    Raises:
        SyncError: `torch.tpu.set_sync_debug_mode("error")` is in force.
    """
    origin = lines.here()
    line = lines.resolve(origin)
    where = f" ({line.where}: {line.source})" if line is not None else ""
    read = kind(origin, what)
    text = f"{read} waits for the device{where}"
    instead = f". Instead: {remedy(read)}" if remedy(read) else ""
    if debug_mode == 2:
        raise SyncError(f"{text}, which --no-sync or torch.tpu.set_sync_debug_mode('error') forbids{instead}")
    warnings.warn(f"{text}{instead}", RuntimeWarning, stacklevel=2)


@contextlib.contextmanager
def forbidden() -> Iterator[None]:
    """Refuse reads inside a `with` block, as `torch.tpu.set_sync_debug_mode("error")` does."""
    global debug_mode
    before, debug_mode = debug_mode, MODES.index("error")
    try:
        yield
    finally:
        debug_mode = before


_REMEDIES = {
    "bool": "decide on the device with torch.where or a mask, or read once every N steps",
    "int": "index with the tensor itself, or take the number from the CPU before it goes to the device",
    "float": "keep it a tensor: torch.sqrt(x) in place of math.sqrt(x), x in place of float(x)",
    "complex": "keep it a tensor",
    "item": "keep the tensor (detached), and read it every N steps or after the loop",
    "tolist": "read once, after the loop",
    "to_host": "copy once, after the loop",
    "format": "log every N steps",
    "print": "log every N steps",
}


def remedy(kind: str) -> str:
    """Say what to do instead of a kind of read; empty where it was asked for (`synchronize`)."""
    return _REMEDIES.get(kind, "")


# What a call of this name reads. Others are named after the kernel that was asked: `item`, `to_host`.
_OF_CALL = {
    **dict.fromkeys(("bool", "max", "min", "sorted", "any", "all", "filter", "index", "count", "remove"), "bool"),
    **dict.fromkeys(("int", "range", "round", "divmod"), "int"),
    **dict.fromkeys((name for name in dir(math) if not name.startswith("_")), "float"),
    **dict.fromkeys(("format", "print", "str", "repr"), "format"),
    "float": "float",
    "complex": "complex",
    "item": "item",
    "tolist": "tolist",
}
_NAMING = frozenset({"LOAD_ATTR", "LOAD_METHOD", "LOAD_NAME", "LOAD_GLOBAL", "LOAD_FAST", "LOAD_DEREF"})


def kind(origin: Origin | None, default: str) -> str:
    """Name what the user's instruction asks of a tensor.

    Args:
        origin: the user's frame.
        default: the name of the kernel that was called, used where the instruction says no more.

    Returns:
        bool, int, float, complex, item, tolist, format, or `default`.
    """
    return _kind(origin[0], origin[1], default) if origin is not None else default


@lru_cache(maxsize=1024)
def _kind(code: CodeType, lasti: int, default: str) -> str:
    instructions = list(dis.get_instructions(code))
    place = next((k for k, instruction in enumerate(instructions) if instruction.offset == lasti), None)
    if place is None:
        return default
    name = instructions[place].opname
    if name.startswith(("POP_JUMP", "JUMP_IF", "TO_BOOL", "UNARY_NOT", "CONTAINS_OP")):
        return "bool"
    if name.startswith("FORMAT_"):
        return "format"
    if name in ("BINARY_SUBSCR", "STORE_SUBSCR", "BINARY_SLICE", "STORE_SLICE"):
        return "int"
    if name.startswith(("PRECALL", "CALL")):
        return _OF_CALL.get(_callee(instructions[:place], instructions[place]), default)
    return default


def _callee(previous: list[dis.Instruction], call: dis.Instruction) -> str:
    """Return the name that is called: the last one loaded whose source begins where the call's does."""
    where = call.positions
    for instruction in reversed(previous):
        at = instruction.positions
        if (
            instruction.opname in _NAMING
            and at is not None
            and where is not None
            and (at.lineno, at.col_offset) == (where.lineno, where.col_offset)
        ):
            return str(instruction.argval)
    return ""
