"""`Fit`: which sizes of a step fit into which chip, and what changes that."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torchtpu.report.rows import for_chip, measured

SCHEMA = "torchtpu.fit"
VERSION = 1  # raise it when a field changes its meaning, is renamed or goes
AS_IT_IS = "as it is"


@dataclass(frozen=True, slots=True)
class FitRow:
    """One size that was compiled.

    Attributes:
        chip: `v5e`.
        change: what was changed in the step: `as it is`, `checkpoint`, `bfloat16`, or several joined by `+`.
        size: what the step was called with.
        fits: it does.
        hbm_peak: bytes of HBM; 0 if the compiler gave no figure.
        seconds: of compiling, whenever that was.
        from_disk: the result of an earlier compile was taken.
    """

    chip: str
    change: str
    size: int
    fits: bool
    hbm_peak: int = for_chip()
    seconds: float = measured(0.0)
    from_disk: bool = False


@dataclass(frozen=True, slots=True)
class Answer:
    """The largest size that fits into a chip, with one change of the step.

    Attributes:
        chip, change: as in `FitRow`.
        detail: what exactly was changed.
        limit: bytes of HBM that a program may use on the chip.
        largest: that fits; 0 if none does.
        refused: the smallest that was tried and does not fit; 0 if all did.
        error: why nothing could be tried; else empty.
    """

    chip: str
    change: str
    detail: str
    limit: int
    largest: int = for_chip()
    refused: int = for_chip()
    error: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class Fit:
    """Which sizes of a step fit into which chip. Every size in it was compiled by the chip's compiler.

    Attributes:
        step: the function's name.
        vary: the parameter that was varied.
        most: the largest size that the search may try.
        effort: of the compiles, `memory` or `full`.
        compiler: `libtpu 0.0.42.1`.
        answers: one for each chip and change, in the order asked for.
        rows: each size that was compiled.
    """

    step: str
    vary: str
    most: int
    effort: str
    compiler: str
    answers: tuple[Answer, ...] = ()
    rows: tuple[FitRow, ...] = ()

    def largest(self, chip: str | None = None, change: str = AS_IT_IS) -> int:
        """Return the largest size that fits, 0 if none does.

        Args:
            chip: left out, the first.
            change: as in `FitRow`.

        Raises:
            KeyError: that was not asked for.
        """
        return self.answer(chip, change).largest

    def answer(self, chip: str | None = None, change: str = AS_IT_IS) -> Answer:
        """Return the answer for a chip and a change; see `largest`."""
        for answer in self.answers:
            if answer.change == change and chip in (None, answer.chip):
                return answer
        raise KeyError(
            f"no answer for {change!r} on {chip or 'any chip'}: this has {[(a.chip, a.change) for a in self.answers]}"
        )

    def peak(self, size: int, chip: str | None = None, change: str = AS_IT_IS) -> int | None:
        """Return the HBM peak of a size in bytes; None if it was not tried."""
        for row in self.rows:
            if (row.size, row.change) == (size, change) and chip in (None, row.chip):
                return row.hbm_peak
        return None

    def to_text(self) -> str:
        """Return it as plain text."""
        from torchtpu.fit.show import to_text

        return to_text(self)

    def to_html(self) -> str:
        """Return it as static HTML, with a picture of size against HBM, that also survives in an untrusted notebook."""
        from torchtpu.fit.show import to_html

        return to_html(self)

    def to_json(self) -> str:
        """Return everything as JSON, in a versioned schema that `from_json` reads."""
        return json.dumps({"schema": SCHEMA, "version": VERSION, "fit": asdict(self)})

    @classmethod
    def from_json(cls, text: str) -> Fit:
        """Read what `to_json` wrote.

        Raises:
            ValueError: it is something else, or of another version.
        """
        from torchtpu.report.to_json import decode_document

        return decode_document(cls, text, SCHEMA, VERSION, "fit")

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write it to a file, as its suffix says: .json, .html or .txt.

        Raises:
            ValueError: another suffix.
        """
        from torchtpu.report.report import check_path
        from torchtpu.report.to_html import whole

        target = check_path(path)
        match target.suffix.lower():
            case ".json":
                text = self.to_json()
            case ".html":
                text = whole(f"torchtpu fit: {self.step}", self.to_html())
            case _:
                text = self.to_text()
        target.write_text(text, encoding="utf-8")
        return target

    def __str__(self) -> str:
        return self.to_text()

    def __repr__(self) -> str:
        found = ", ".join(f"{a.chip} {a.change}: {a.largest or 'none'}" for a in self.answers)
        return f"<torchtpu fit of {self.step}, largest {self.vary}: {found or 'nothing yet'}>"

    def _repr_html_(self) -> str:
        return self.to_html()

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(self.to_text())
