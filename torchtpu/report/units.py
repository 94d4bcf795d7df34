"""Figures as people read them."""

from __future__ import annotations


def seconds(value: float) -> str:
    """`0 s`, `12 us`, `3.4 ms`, `1.25 s`, `2 min 5 s`."""
    if value <= 0:
        return "0 s"
    if value < 0.9995e-3:
        return f"{value * 1e6:.0f} us"
    if value < 0.9995:
        return f"{value * 1e3:.3g} ms"
    if value < 59.95:
        return f"{value:.3g} s"
    minutes, rest = divmod(round(value), 60)
    return f"{minutes} min {rest} s"


def nbytes(value: int) -> str:
    """`0 B`, `512 B`, `4.0 KiB`, `12.5 MiB`, `1.25 GiB`."""
    if abs(value) < 1024:
        return f"{value} B"
    size = float(value)
    for unit in ("KiB", "MiB", "GiB"):
        size /= 1024
        if abs(size) < 1023.5 or unit == "GiB":
            break
    return f"{size:.0f} {unit}" if abs(size) >= 100 else f"{size:.1f} {unit}"


def scaled(value: float, unit: str) -> str:
    """`0 FLOP`, `950 FLOP`, `1.25 MFLOP`, `34.1 GB/s`: thousands are powers of ten."""
    for prefix in ("", "k", "M", "G", "T"):
        if abs(value) < 999.5 or prefix == "T":
            break
        value /= 1000
    return f"{value:.3g} {prefix}{unit}" if abs(value) < 999.5 else f"{value:,.0f} {prefix}{unit}"


def count(number: int, one: str, many: str = "") -> str:
    """`1 program`, `3 programs`; `many` where the plural is not `one` with an s."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def cut(text: str, width: int) -> str:
    """The text, or as much of it as fits into `width` characters with an ellipsis."""
    return text if len(text) <= width else text[: width - 1] + "\u2026"
