"""Protocol buffers' wire format, as much of it as traces and HLO modules need.

No package that torchtpu depends on ships classes for these messages. They are written field by field, from the schemas in
tsl/profiler/protobuf/xplane.proto and xla/service/hlo.proto, and read only where a field of another message is needed.
Messages may be joined end to end: fields that repeat are then appended.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from functools import cache

_VARINT, _FIXED64, _BYTES = 0, 1, 2


def varint(value: int) -> bytes:
    """Encode a whole number; negative ones take ten bytes, as int64 does."""
    value &= 0xFFFF_FFFF_FFFF_FFFF
    if value < 0x80:
        return bytes((value,))
    parts = bytearray()
    while value >= 0x80:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def number(field: int, value: int) -> bytes:
    """Encode an integer field."""
    return _tag(field, _VARINT) + varint(value)


@cache
def _tag(field: int, kind: int) -> bytes:
    return varint(field << 3 | kind)


def double(field: int, value: float) -> bytes:
    """Encode a double."""
    return _tag(field, _FIXED64) + struct.pack("<d", value)


def text(field: int, value: str) -> bytes:
    """Encode a string."""
    return message(field, value.encode())


def message(field: int, value: bytes) -> bytes:
    """Encode a message, or bytes."""
    return _tag(field, _BYTES) + varint(len(value)) + value


def fields(data: bytes) -> Iterator[tuple[int, int | bytes]]:
    """Yield the fields of a message in order: whole numbers for varints, bytes for everything else.

    Raises:
        ValueError: these bytes are no message.
    """
    at, end = 0, len(data)
    while at < end:
        tag, at = _varint(data, at)
        match tag & 7:
            case 0:
                value, at = _varint(data, at)
                yield tag >> 3, value
                continue
            case 2:
                length, at = _varint(data, at)
            case 1:
                length = 8
            case 5:
                length = 4
            case kind:
                raise ValueError(f"wire type {kind} at byte {at}")
        if at + length > end:
            raise ValueError(f"a field of {length} bytes at byte {at} of {end}")
        yield tag >> 3, data[at : at + length]
        at += length


def _varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        try:
            byte = data[at]
        except IndexError:
            raise ValueError("the message ends inside a number") from None
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, at
        shift += 7


def first(data: bytes, field: int) -> int | bytes | None:
    """Return a field's first value, None where it is absent."""
    return next((value for f, value in fields(data) if f == field), None)


def numbers(value: int | bytes) -> list[int]:
    """Return the values of a repeated integer field: packed in bytes, or one number."""
    if isinstance(value, int):
        return [value]
    found, at = [], 0
    while at < len(value):
        one, at = _varint(value, at)
        found.append(one)
    return found
