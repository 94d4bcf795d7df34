"""XSpace: the file format of profiles (tsl/profiler/protobuf/xplane.proto), written plane by plane.

A space has planes (the host, a device), a plane has lines (a thread, a queue), a line has events. Names and what is the
same for many events stand once in the plane, as metadata.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from torchtpu.profiler import wire

Stat = int | float | str | bytes

# Ids of XLA's own metadata in the host's plane are small; ours must not meet them when the planes are joined.
_APART = 1 << 40


@dataclass(frozen=True, slots=True)
class Event:
    """An event. `at` and `seconds` from the start of the profile; `metadata` as `Plane.metadata` returned it."""

    metadata: int
    at: float
    seconds: float
    stats: tuple[tuple[str, Stat], ...] = ()


@dataclass(slots=True)
class Plane:
    """A plane being written.

    Attributes:
        name: `/host:CPU`, `/device:TPU:0`, `/host:metadata`.
        number: its id.
        joined: it is added to a plane that XLA has written, whose ids ours must not meet.
    """

    name: str
    number: int
    joined: bool = False
    _body: list[bytes] = field(default_factory=list)
    _stats: dict[str, int] = field(default_factory=dict)
    _events: dict[str, int] = field(default_factory=dict)
    _encoded: dict[tuple[str, Stat], bytes] = field(default_factory=dict)

    def metadata(
        self, key: str, name: str = "", display: str = "", stats: Iterable[tuple[str, Stat]] = (), number: int | None = None
    ) -> int:
        """Return the id of the metadata of a key, which is written the first time.

        Args:
            key: what tells it from others of the plane.
            name: of its events (the key, if left out); display: a shorter one.
            stats: what all its events have.
            number: its id, if it must have a certain one.
        """
        known = self._events.get(key)
        if known is not None:
            return known
        made = self._events[key] = number if number is not None else self._base + len(self._events) + 1
        value = wire.number(1, made) + wire.text(2, name or key)
        if display:
            value += wire.text(4, display)
        value += b"".join(wire.message(5, self._stat(k, v)) for k, v in stats)
        self._body.append(wire.message(4, wire.number(1, made) + wire.message(2, value)))
        return made

    def line(self, number: int, name: str, events: Iterable[Event]) -> None:
        """Add a line with its events, in order of their start."""
        value = [wire.number(1, self._base + number), wire.text(2, name)]
        heads: dict[int, bytes] = {}
        for e in events:
            head = heads.get(e.metadata)
            if head is None:
                head = heads[e.metadata] = wire.number(1, e.metadata)
            body = head + wire.number(2, round(e.at * 1e12)) + wire.number(3, round(e.seconds * 1e12))
            for stat in e.stats:
                known = self._encoded.get(stat)
                if known is None:  # most occur again and again
                    known = self._encoded[stat] = wire.message(4, self._stat(*stat))
                body += known
            value.append(wire.message(4, body))
        self._body.append(wire.message(3, b"".join(value)))

    def stat(self, name: str, value: Stat) -> None:
        """Add a figure of the plane itself."""
        self._body.append(wire.message(6, self._stat(name, value)))

    def to_bytes(self, alone: bool = True) -> bytes:
        """Return the plane as a message, or what is to be joined to another one."""
        head = wire.number(1, self.number) + wire.text(2, self.name) if alone else b""
        names = (
            wire.message(5, wire.number(1, n) + wire.message(2, wire.number(1, n) + wire.text(2, name)))
            for name, n in self._stats.items()
        )
        return head + b"".join(self._body) + b"".join(names)

    @property
    def _base(self) -> int:
        return _APART if self.joined else 0

    def _stat(self, name: str, value: Stat) -> bytes:
        made = self._stats.setdefault(name, self._base + len(self._stats) + 1)
        body = wire.number(1, made)
        if isinstance(value, int):
            return body + wire.number(4, value)
        if isinstance(value, float):
            return body + wire.double(2, value)
        return body + (wire.text(5, value) if isinstance(value, str) else wire.message(6, value))


def join(space: bytes, planes: Iterable[Plane]) -> bytes:
    """Add planes to a space. One that it has already, by name, gets their lines and metadata if they are `joined`, or goes."""
    more = {p.name: p for p in planes}
    parts = []
    for number, value in wire.fields(space):
        if number == 1 and isinstance(value, bytes):
            plane = more.pop(_name(value), None)
            kept = value if plane is None or plane.joined else b""
            parts.append(wire.message(1, kept + plane.to_bytes(not plane.joined) if plane is not None else kept))
        elif isinstance(value, bytes):
            parts.append(wire.message(number, value))
    return b"".join(parts) + b"".join(wire.message(1, p.to_bytes()) for p in more.values())


def _name(plane: bytes) -> str:
    name = wire.first(plane, 2)
    return name.decode() if isinstance(name, bytes) else ""
