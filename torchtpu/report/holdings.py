"""Who holds device memory now, to look at: what `%tpu_free` shows and an out-of-memory error carries."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torchtpu import client, hbm
from torchtpu.report import memory, units
from torchtpu.report.rows import HoldingRow, measured

_LINES = 10
_WIDTH = 120
_NAME = 64


@dataclass(frozen=True, slots=True, repr=False)
class Holdings:
    """Who holds device memory. It holds none itself.

    Attributes:
        rows: the holders, largest first; they add up to `live`.
        live, peak: bytes in use, and their highest since the start or the last reset.
        limit: bytes that tensors may use; 0 if the device was never started.
    """

    rows: tuple[HoldingRow, ...]
    live: int = measured()
    peak: int = measured(label="measured, temporaries compiled")
    limit: int = measured()

    @classmethod
    def now(cls) -> Holdings:
        """Look who holds what. Runs nothing and starts no device."""
        limit = client.memory_limit() if client.started() else 0
        return cls(memory.holdings(), hbm.usage.live, hbm.usage.peak, limit)

    @property
    def title(self) -> str:
        """The figures in words."""
        live, peak, limit = (units.nbytes(n) for n in (self.live, self.peak, self.limit))
        return f"HBM in use: {live}{f' of {limit}' if self.limit else ''}, peak {peak}"

    def lines(self, count: int = _LINES) -> str:
        """Return the largest holders as plain text, a line each."""
        from torchtpu.report.memory_sections import holder
        from torchtpu.report.sections import one_line

        shown, rest = self.rows[:count], self.rows[count:]
        names = [one_line(holder(r), _NAME) for r in shown]
        width = max(map(len, names), default=0)
        text = [
            f"{units.nbytes(r.nbytes):>10}  {name:<{width}}  {r.what}"
            f"{f', made at {r.line.where}' if r.line else ''}{f'; frees it: {r.free}' if r.free else ''}"
            for name, r in zip(names, shown, strict=True)
        ]
        if rest:
            text.append(f"{units.nbytes(sum(r.nbytes for r in rest)):>10}  {units.count(len(rest), 'more holder')}")
        return "\n".join(text)

    def to_text(self, width: int = _WIDTH) -> str:
        """Draw it as text, `width` columns wide."""
        from torchtpu.report.memory_sections import held
        from torchtpu.report.to_text import section_text

        return section_text(held(self.title, self.rows), width)

    def to_html(self) -> str:
        """Draw it as an HTML fragment that survives an untrusted notebook."""
        from torchtpu.report.memory_sections import held
        from torchtpu.report.to_html import section_html

        return section_html(held(self.title, self.rows))

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        return f"<{self.title}, {units.count(len(self.rows), 'holder')}>"

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))  # IPython, where it shows text

    def _repr_html_(self) -> str:
        return self.to_html()
