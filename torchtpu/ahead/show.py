"""A `Compiled` as text and as static HTML."""

from __future__ import annotations

from html import escape

from torchtpu.ahead.compiled import Compiled
from torchtpu.report import units
from torchtpu.report.table import BOX, QUIET, WARNING, Table

_SHOWN = 10  # buffers
_SOURCE = 60  # characters of a line of code


def to_text(result: Compiled) -> str:
    """Return a result as plain text."""
    out = [title(result)]
    out += [f"  {what:<10}{text}" for what, text in facts(result)]
    if result.largest:
        out += ["", _LARGEST, largest(result).to_text()]
    return "\n".join(out)


def to_html(result: Compiled) -> str:
    """Return a result as HTML that an untrusted notebook keeps."""
    cell = "padding:2px 14px 2px 0;vertical-align:top;text-align:left"
    rows = "".join(
        f'<tr style="background:none"><td style="{cell};{QUIET}">{escape(what)}</td><td style="{cell}">{escape(text)}</td></tr>'
        for what, text in facts(result)
        if what != "reason"
    )
    style = "border-collapse:collapse;border:none;font-size:13px;color:inherit"
    why = f'<div style="{WARNING}">{escape(result.reason)}</div>' if result.reason else ""
    more = f"<details><summary>{escape(_LARGEST)}</summary>{largest(result).to_html()}</details>" if result.largest else ""
    return (
        f'<div style="{BOX}"><div><b>{escape(title(result))}</b></div>{why}'
        f'<table style="{style}"><tbody>{rows}</tbody></table>{more}</div>'
    )


_LARGEST = "Largest buffers in use at the peak (compiled):"


def title(result: Compiled) -> str:
    """Say whether it fits, in a line."""
    verdict = "refused" if result.refused else "fits" if result.fits else "does not fit"
    return f"{result.name} for {result.chip.name}: {verdict}"


def facts(result: Compiled) -> list[tuple[str, str]]:
    """Return what there is to say, as (what, it)."""
    found = [("reason", result.reason)] if result.reason else []
    if not result.refused:
        m, roof = result.memory, result.roofline
        parts = f"{units.nbytes(m.arguments)} arguments + {units.nbytes(m.outputs)} outputs - {units.nbytes(m.aliased)} aliased"
        parts += f" + {units.nbytes(m.temporaries)} temporaries + {units.nbytes(m.code)} code"
        if m.held:
            parts += f" + {units.nbytes(m.held)} held"
        found += [
            ("HBM peak", f"{units.nbytes(result.hbm_peak)} of {units.nbytes(result.limit)} (compiled)"),
            ("", parts),
        ]
        if result.flops or result.bytes_accessed:  # not of a program that no chip can hold
            moved = units.nbytes(int(result.bytes_accessed))
            found += [
                ("cost", f"{_flop(result.flops)}, {moved} read and written (compiler's model)"),
                (
                    "roofline",
                    f"at best {units.seconds(roof.seconds)}, bound by {roof.bound}: {roof.intensity:.3g} FLOP/byte, the chip's "
                    f"peaks meet at {roof.ridge:.3g} (modelled)",
                ),
            ]
    kernels = f", {units.count(len(result.fusions), 'kernel')}" if result.fusions else ""
    ops = units.count(len(result.ops), "op")
    when = f" in {units.seconds(result.seconds)} (measured)" if result.seconds else ""
    disk = ", by an earlier compile" if result.from_disk else ""
    found.append(("compiled", f"{ops}{kernels}{when}{disk}: {result.compiler}, effort {result.effort!r}"))
    return found


def largest(result: Compiled) -> Table:
    """Return the table of the largest buffers."""
    rows = [
        (
            row.role,
            row.what,
            row.op.removeprefix("aten::"),
            f"{row.line.where}: {units.cut(row.line.source, _SOURCE)}" if row.line is not None else "",
            units.nbytes(row.unpadded),
            units.nbytes(row.padded),
        )
        for row in result.largest[:_SHOWN]
    ]
    return Table(("buffer", "array", "op", "line", "bytes", "padded"), tuple(rows), words=4)


def _flop(number: float) -> str:
    """`12 FLOP`, `3.4 GFLOP`, `1.2 PFLOP`."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5:
            return f"{number:.3g} {unit}FLOP"
        number /= 1000
    return f"{number:.3g} PFLOP"
