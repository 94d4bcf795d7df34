"""The page docs/ops.md: which way every operator takes, from the results of a full run."""

from __future__ import annotations

from collections import Counter, defaultdict

from tests.conformance import cases, check, declared, overloads
from tests.conformance.check import Outcome

_HEAD = """\
# Operators

Written by `python -m tests.conformance`: PyTorch's own operator databases (`op_db`, `module_db`, `optim_db` of
torch.testing) on `tpu` against the CPU. Tolerances are torch.testing's and the database's own; where rounding alone exceeds
them, both results are compared with float64.

- **native**: lowered to XLA by a rule of torchtpu.
- **decomposed**: lowered by PyTorch's decomposition into other operators, inside one program.
- **CPU fallback**: runs on the CPU, with a warning, and is counted in every report.
- **refused**: raises an error.
"""
_WORDS = dict(zip(check.ROUTES, ("native", "decomposed", "CPU fallback", "refused"), strict=True))


def render(outcomes: list[Outcome], max_samples: int | None) -> str:
    """Return the page as Markdown.

    Args:
        max_samples: how many samples of a test ran at most; None: all.
    """
    covered = _covered(outcomes, max_samples)
    outcomes = [o for o in outcomes if o.test.variant != "error"]
    pairs: dict[tuple[str, str], str] = {}
    used: dict[str, set[str]] = defaultdict(set)
    for o in outcomes:
        if not o.samples:
            continue
        key = o.test.op, o.test.dtype
        pairs[key] = max(pairs.get(key, "native"), o.route, key=check.ROUTES.index)
        for name in o.fallbacks:
            used[name].add(o.test.op)
    lines = [_HEAD, *covered, *_summary(pairs), *_fallbacks(used), *_declared(), *_overloads(), "## Every operator", ""]
    for title, known in (
        ("Operators", cases.operators()),
        ("Modules", cases.modules()),
        ("Optimizers", cases.optimizers()),
    ):
        lines += [f"### {title}", "", "| name | how | dtypes |", "| --- | --- | --- |"]
        lines += [row for name in known if (row := _row(name, pairs))]
        lines.append("")
    return "\n".join(lines)


def _covered(outcomes: list[Outcome], max_samples: int | None) -> list[str]:
    """Return a table of what ran: one row for each eager mode and way of using an operator."""
    rows: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for o in outcomes:
        rows[o.test.mode, o.test.variant].append(o)
    lines = [
        f"| `{mode}` | {variant} | {', '.join(dict.fromkeys(o.test.dtype for o in group))} | {len(group)} | "
        f"{sum(o.samples for o in group)} | {sum(bool(o.failures) and declared.reason(o.test) is not None for o in group)} | "
        f"{sum(bool(o.failures) and declared.reason(o.test) is None for o in group)} |"
        for (mode, variant), group in rows.items()
    ]
    samples = "every sample" if max_samples is None else f"at most {max_samples} samples, spread evenly over the database's"
    text = f"What ran: for each test, {samples}."
    columns = ["mode", "use", "dtypes", "tests", "samples", "declared below", "failed"]
    return _section("What is tested", columns, lines, text)


def _summary(pairs: dict[tuple[str, str], str]) -> list[str]:
    counts = Counter(route for (name, _), route in pairs.items() if name in cases.operators())
    total = max(sum(counts.values()), 1)
    cells = " | ".join(f"{counts[r]} ({100 * counts[r] / total:.1f} %)" for r in check.ROUTES)
    return [
        f"Of {total} pairs of an operator and a dtype that run on the CPU:",
        "",
        "| " + " | ".join(_WORDS[r] for r in check.ROUTES) + " |",
        "| " + " | ".join("---" for _ in check.ROUTES) + " |",
        f"| {cells} |",
        "",
    ]


def _row(name: str, pairs: dict[tuple[str, str], str]) -> str | None:
    """Return an entry's row; where dtypes differ, the worst way first, with its dtypes."""
    ways: dict[str, list[str]] = defaultdict(list)
    for (op, dtype), route in pairs.items():
        if op == name:
            ways[route].append(dtype)
    if not ways:
        return None
    ordered = sorted(ways, key=check.ROUTES.index, reverse=True)
    how = "; ".join(_WORDS[r] + (f" ({', '.join(ways[r])})" if r != ordered[-1] else "") for r in ordered)
    return f"| `{name}` | {how} | {', '.join(d for ds in ways.values() for d in ds)} |"


def _fallbacks(used: dict[str, set[str]]) -> list[str]:
    rows = [
        f"| `{name}` | {', '.join(f'`{op}`' for op in sorted(ops)[:4])} | {declared.FALLBACKS.get(name, 'not explained')} |"
        for name, ops in sorted(used.items())
    ]
    return _section("On the CPU", ["ATen operator", "used by", "why"], rows)


def _declared() -> list[str]:
    rows = [f"| `{entry}` | {reason} |" for entry, reason in declared.entries()]
    return _section("Declared differences", ["test", "why"], rows)


def _overloads() -> list[str]:
    rows = [f"| `{name}` | {why} |" for name, why in declared.OVERLOADS.items()]
    counts = Counter(overloads.route(name) for name in overloads.reference())
    text = f"Of the {sum(counts.values())} ATen overloads of Google's torch_tpu 0.2.0, {counts['native']} are native and "
    text += f"{counts['decomposed']} decomposed here. The others:"
    return _section("Overloads of the reference", ["ATen overload", "why not"], rows, text)


def _section(title: str, columns: list[str], rows: list[str], text: str = "") -> list[str]:
    head = [f"## {title}", "", *([text, ""] if text else [])]
    if not rows:
        return [*head, "None.", ""]
    return [*head, "| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns), *rows, ""]
