"""Who holds device memory: now, and at the peak of a watch, as the rows of a report."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from torchtpu import holders, lines, ownership
from torchtpu.ledger import Account, Held
from torchtpu.report.rows import BufferRow, HoldingRow, OwnerRow

if TYPE_CHECKING:
    from torchtpu.buffer import Buffer
    from torchtpu.holders import Holder
    from torchtpu.lines import Line, Origin

Resolve = Callable[["Origin | None"], "Line | None"]

PARAMETERS, GRADIENTS, STATE, ACTIVATIONS = "parameters", "gradients", "optimizer state", "activations"
PASSING_GRADIENTS, INPUTS, RESULTS = "gradients of activations", "copied from the host", "intermediate results"
TEMPORARIES, UNKNOWN = "temporaries of programs", "unknown"

_BY_KIND = {
    holders.PARAMETER: PARAMETERS,
    holders.GRADIENT: GRADIENTS,
    holders.STATE: STATE,
    holders.AUTOGRAD: ACTIVATIONS,
    holders.PENDING: "pending graph",
    holders.TRACEBACK: holders.LAST,
}
_MAX_ROWS = 50
_MAX_ALSO = 3


def figures(account: Account, alive: Iterable[tuple[Buffer, list[Holder]]], resolve: Resolve) -> dict[str, Any]:
    """Return the fields of a `Report` that are about device memory.

    Args:
        alive: the buffers that have memory at the end, with who holds them (`holders.everything`).
    """
    for buffer, found in alive:
        if found:
            owner = ownership.owner_of(buffer, ownership.BEFORE)
            (owner.root or owner).holder = found[0]
    earlier = [Held.earlier_one(b, b.nbytes) for b, _ in alive if id(b) not in account.held_at_end]
    missing = account.earlier_alive - sum(h.nbytes for h in earlier)
    if missing > 0:
        earlier.append(Held(missing, "buffers that could not be found", earlier=True))
    at_peak = [*earlier, *account.held_at_peak]
    return {
        "hbm_before": account.before,
        "hbm_peak": account.peak,
        "hbm_peak_at": account.peak_at,
        "hbm_live": account.live,
        "hbm_span": account.span,
        "hbm_timeline": account.tops,
        "hbm_peak_owners": _owners(at_peak),
        "hbm_peak_buffers": _buffers(at_peak, resolve),
        "hbm_live_buffers": _buffers([*earlier, *account.held_at_end.values()], resolve),
        "hbm_holdings": _holdings(alive, resolve),
    }


def holdings() -> tuple[HoldingRow, ...]:
    """Return what holds device memory now, the largest first; the rows add up to `torch.tpu.memory_allocated()`."""
    return _holdings(holders.everything(), lines.resolve)


def _holdings(alive: Iterable[tuple[Buffer, list[Holder]]], resolve: Resolve) -> tuple[HoldingRow, ...]:
    groups: dict[tuple[str, str], list[tuple[Buffer, list[Holder]]]] = {}
    for buffer, found in alive:
        key = (found[0].root, found[0].kind) if found else ("", UNKNOWN)
        groups.setdefault(key, []).append((buffer, found))
    rows = [_holding(root, kind, group, resolve) for (root, kind), group in groups.items()]
    rows.sort(key=lambda r: -r.nbytes)
    rest = rows[_MAX_ROWS:]
    if rest:
        count, nbytes = sum(r.count for r in rest), sum(r.nbytes for r in rest)
        rows[_MAX_ROWS:] = [HoldingRow("smaller ones", "", "", None, "", (), count, nbytes)]
    return tuple(rows)


def _holding(root: str, kind: str, group: list[tuple[Buffer, list[Holder]]], resolve: Resolve) -> HoldingRow:
    origins = {id(b.origin[0]) + b.origin[1]: b.origin for b, _ in group if b.origin is not None}
    whats = dict.fromkeys(str(b.layout) for b, _ in group)
    also = dict.fromkeys(h.root for _, found in group for h in found if h.root != root)
    names = dict.fromkeys(found[0].name for _, found in group if found)
    if kind == holders.TRACEBACK or len(group) == 1:
        root = next(iter(names), "") + (f" + {len(names) - 1:,} more" if len(names) > 1 else "")
    frees = dict.fromkeys(found[0].free for _, found in group if found)
    return HoldingRow(
        name=root,
        kind=kind,
        what=next(iter(whats)) if len(whats) == 1 else f"{len(whats)} shapes",
        line=resolve(next(iter(origins.values()))) if len(origins) == 1 else None,
        free=next(iter(frees)) if len(frees) == 1 else _free_all(root, kind, list(frees)),
        also=tuple(also)[:_MAX_ALSO],
        count=len(group),
        nbytes=sum(b.nbytes for b, _ in group),
    )


def _free_all(root: str, kind: str, frees: list[str]) -> str:
    """Return what lets go of a whole root whose parts have commands of their own."""
    if not frees:
        return ""
    if kind == holders.GRADIENT:
        return frees[0]
    return f"del {root}"


def _owners(held: Iterable[Held]) -> tuple[OwnerRow, ...]:
    groups: dict[str, list[int]] = {}
    for h in held:
        groups.setdefault(_owner(h), []).append(h.nbytes)
    rows = sorted((OwnerRow(owner, len(sizes), sum(sizes)) for owner, sizes in groups.items()), key=lambda r: -r.nbytes)
    rest = rows[_MAX_ROWS:]
    if rest:
        rows[_MAX_ROWS:] = [OwnerRow("smaller ones", sum(r.count for r in rest), sum(r.nbytes for r in rest))]
    return tuple(rows)


def _owner(held: Held) -> str:
    """Say whose the bytes were: by who holds them at the end, else by what was done with them while that was watched."""
    owner = held.owner
    if owner is None:
        return TEMPORARIES if _running(held) else UNKNOWN
    holder = owner.holder
    if holder is not None and holder.kind in _BY_KIND:
        return _BY_KIND[holder.kind]
    if owner.stepped:
        return STATE if owner.phase == ownership.OPTIMIZER else PARAMETERS
    if owner.phase == ownership.BACKWARD and holder is None:
        return PASSING_GRADIENTS if owner.ended else GRADIENTS
    if holder is not None:
        return f"variable {holder.root}" if holder.kind == holders.VARIABLE else holder.root
    if owner.phase == ownership.FORWARD:
        return ACTIVATIONS if owner.read_in_backward else RESULTS
    return {ownership.HOST: INPUTS, ownership.OPTIMIZER: RESULTS}.get(owner.phase, UNKNOWN)


def _running(held: Held) -> bool:
    """Whether these are the temporaries of a program, which a program's name stands for."""
    return isinstance(held.what, str) and not held.earlier


def _buffers(held: Iterable[Held], resolve: Resolve) -> tuple[BufferRow, ...]:
    groups: dict[tuple[str, Line | None, bool, str], list[Held]] = {}
    for h in held:
        what = f"{h.what} while it runs" if _running(h) else str(h.what)
        groups.setdefault((what, resolve(h.origin), h.earlier, _owner(h)), []).append(h)

    def row(key: tuple[str, Line | None, bool, str], group: list[Held]) -> BufferRow:
        what, line, earlier, owner = key
        names = dict.fromkeys(h.owner.holder.name for h in group if h.owner is not None and h.owner.holder is not None)
        name = next(iter(names), "")
        held_by = f"{name} + {len(names) - 1:,} more" if len(names) > 1 else name
        return BufferRow(what, line, earlier, owner, held_by, len(group), sum(h.nbytes for h in group))

    rows = sorted((row(key, group) for key, group in groups.items()), key=lambda r: -r.nbytes)
    rest = rows[_MAX_ROWS:]
    if rest:
        count, nbytes = sum(r.count for r in rest), sum(r.nbytes for r in rest)
        rows[_MAX_ROWS:] = [BufferRow("smaller ones", None, False, "", "", count, nbytes)]
    return tuple(rows)
