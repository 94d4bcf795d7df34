"""A table of words and figures, as text and as static HTML."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

LINE = "rgba(128,128,128,0.3)"
BOX = f"border:1px solid {LINE};border-radius:6px;padding:10px 14px;margin:4px 0;font-size:13px;line-height:1.5;color:inherit"
PHRASE = "white-space:nowrap;margin-right:12px"
QUIET = "opacity:0.7"
WARNING = "border-left:3px solid #d9792b;padding:2px 0 2px 10px;margin:4px 0"

_CELL = "padding:3px 14px 3px 0;vertical-align:top;text-align:"


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under titles. `words` says how many of the first columns hold words; the others are aligned right."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    words: int = 1

    def to_text(self) -> str:
        """Draw it with spaces."""
        rows = [self.titles, *self.rows]
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        lines = [
            "   ".join(t.ljust(w) if k < self.words else t.rjust(w) for k, (t, w) in enumerate(zip(row, widths, strict=True)))
            for row in rows
        ]
        lines.insert(1, "\u2500" * (sum(widths) + 3 * (len(widths) - 1)))
        return "\n".join(line.rstrip() for line in lines)

    def to_html(self) -> str:
        """Draw it with what an untrusted notebook keeps."""
        sides = ["left" if k < self.words else "right" for k in range(len(self.titles))]
        head = "".join(
            f'<th style="{_CELL}{side};font-weight:normal;{QUIET}">{escape(title)}</th>'
            for title, side in zip(self.titles, sides, strict=True)
        )
        body = "".join(
            f'<tr style="background:none;border-top:1px solid {LINE}">'
            + "".join(f'<td style="{_CELL}{side}{_wrap(side)}">{escape(t)}</td>' for t, side in zip(row, sides, strict=True))
            + "</tr>"
            for row in self.rows
        )
        style = "border-collapse:collapse;border:none;margin:2px 0 4px 0;font-size:13px;color:inherit"
        return (
            f'<div style="overflow-x:auto"><table style="{style}"><thead><tr style="background:none">{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )


def _wrap(side: str) -> str:
    return ";white-space:nowrap" if side == "right" else ""
