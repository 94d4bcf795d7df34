"""The page docs/models.md: one row per architecture."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from tests.zoo import check, libraries
from tests.zoo.architecture import Architecture

_HEAD = """\
# Models

Written by `make models`: models that nobody here wrote, of {versions}, built from their configurations, small, with
random weights. Each runs forward, backward and an AdamW step on `tpu` and on the CPU, from the same weights, with the same
inputs; compared are all outputs, the loss, every gradient, and every parameter and buffer after the step. Tolerances are
torch.testing's; where float32 rounding alone exceeds them, both are compared with float64, and `tpu` may be off by four
times the CPU's own error plus 8 ulp. Models with tokens in their row also generate, greedily: every token must be the CPU's.

Dropout is off, batch norm trains, XLA's optimizations are off to compile quickly. Counts are strict / fused, of one process
that has compiled nothing before: **programs** that ran in the first step, **compiles** of the first step + of the third one,
the steady state (a program loaded from disk counts too). **Difference**: the largest one, relative to the largest magnitude
in its tensor.
"""
_COLUMNS = ("model", "strict", "fused", "programs", "compiles", "on the CPU", "tokens", "difference")


@dataclass(frozen=True, slots=True)
class Row:
    """An architecture and what came of it in each mode."""

    architecture: Architecture
    outcomes: dict[str, check.Outcome]

    def to_json(self) -> str:
        """The row as a line of JSON."""
        return json.dumps({"name": self.architecture.name} | {m: dataclasses.asdict(o) for m, o in self.outcomes.items()})

    @classmethod
    def from_json(cls, line: str, known: dict[str, Architecture]) -> Row:
        """Read a row that `to_json` wrote."""
        values = json.loads(line)
        return cls(known[values.pop("name")], {mode: check.Outcome(**fields) for mode, fields in values.items()})

    def __str__(self) -> str:
        words = [f"{mode} {'ok' if not o.error else o.error}" for mode, o in self.outcomes.items()]
        return f"{self.architecture.name}: {'; '.join(words)} [{', '.join(self._figures())}]"

    def markdown(self) -> str:
        """The row in Markdown; below the mark of a mode that failed, why."""
        marks = [f"no: {o.error.replace('|', '/')}" if o.error else "yes" for o in self.outcomes.values()]
        return f"| {' | '.join((self.architecture.name, *marks, *self._figures()))} |"

    def _figures(self) -> list[str]:
        outcomes = self.outcomes.values()
        fallbacks = Counter[str]()
        for o in outcomes:
            fallbacks |= Counter(o.fallbacks)
        return [
            " / ".join(str(o.programs) for o in outcomes),
            " / ".join(f"{first} + {third}" for first, third in (o.compiles for o in outcomes)),
            ", ".join(f"`{op.removeprefix('aten::')}` x{count}" for op, count in fallbacks.items()),
            str(self.architecture.new_tokens or ""),
            f"{max(o.difference for o in outcomes):.0e}",
        ]


def share(rows: Sequence[Row], mode: str) -> float:
    """Return the share of architectures that pass in a mode."""
    return sum(not r.outcomes[mode].error for r in rows) / max(len(rows), 1)


def summary(rows: Sequence[Row]) -> str:
    """Say in a line how many pass, and how many operators run on the CPU."""
    passed = ", ".join(f"{sum(not r.outcomes[m].error for r in rows)} of {len(rows)} in {m}" for m in check.MODES)
    fallbacks = {op for r in rows for o in r.outcomes.values() for op in o.fallbacks}
    return f"{passed} pass; {len(fallbacks)} operators run on the CPU{': ' if fallbacks else ''}{', '.join(sorted(fallbacks))}"


def render(rows: Sequence[Row], architectures: Sequence[Architecture]) -> str:
    """Return the page as Markdown; it names those of the architectures that have no row."""
    used = sorted({r.architecture.library for r in rows}, reverse=True)
    lines = [_HEAD.format(versions=" and ".join(f"{name} {libraries.load(name).__version__}" for name in used))]
    lines += [summary(rows) + ".", ""]
    missing = [a.name for a in architectures if a not in {r.architecture for r in rows}]
    if missing:
        lines += [f"Not run yet: {', '.join(missing)}.", ""]
    for family in dict.fromkeys(r.architecture.family for r in rows):
        lines += [f"## {family[0].upper()}{family[1:]}", "", f"| {' | '.join(_COLUMNS)} |", "|" + " --- |" * len(_COLUMNS)]
        lines += [r.markdown() for r in rows if r.architecture.family == family]
        lines.append("")
    return "\n".join(lines)
