"""Reports as JSON: the dataclasses' own field names, under a schema name and version."""

from __future__ import annotations

import json
from dataclasses import asdict, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Union, get_args, get_origin, get_type_hints

from torchtpu.report.report import Report
from torchtpu.report.rows import COMPILED

SCHEMA = "torchtpu.report"
VERSION = 2  # raise it when a field changes its meaning, is renamed or goes


def to_json(report: Report) -> str:
    """Write a report."""
    report.complete()
    return json.dumps({"schema": SCHEMA, "version": VERSION, "labels": labels(report), "report": asdict(report)})


def from_json(text: str) -> Report:
    """Read a report.

    Raises:
        ValueError: not a report, or one of another version of the schema.
    """
    return decode_document(Report, text, SCHEMA, VERSION, "report")


def labels(report: Report) -> dict[str, str]:
    """Return the label of each figure by its path."""
    return labels_of(Report, report.compiler)


def labels_of(cls: type, compiler: str) -> dict[str, str]:
    """Return the labels of a dataclass's figures, and of those in it; `compiler`: whose the compiled ones are."""
    platform = f"{COMPILED} ({compiler})"
    return {
        path: label.removesuffix(COMPILED) + platform if label.endswith(COMPILED) else label
        for path, label in _labelled(cls).items()
    }


@cache
def _hints(cls: type) -> dict[str, Any]:
    return get_type_hints(cls)


@cache
def _labelled(cls: type) -> dict[str, str]:
    found = {}
    for f in fields(cls):
        if "label" in f.metadata:
            found[f.name] = f.metadata["label"]
        for inner in (_hints(cls)[f.name], *get_args(_hints(cls)[f.name])):
            if is_dataclass(inner):
                found |= {f"{f.name}.{path}": label for path, label in _labelled(inner).items()}
    return found


def decode_document(
    cls: Any, text: str, schema: str, version: int, key: str, again: str = "run the code again for a new one"
) -> Any:
    """Read a value from JSON of a versioned schema, in which it stands under a key.

    Args:
        again: how to come by another one, where this is of an older version.

    Raises:
        ValueError: it is something else, of another version, or not complete.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != schema:
        raise ValueError(f"this JSON is not a {schema}")
    found = data.get("version")
    if found != version:
        older = isinstance(found, int) and found < version
        advice = again if older else "a newer torchtpu may read it"
        raise ValueError(f"this {key} has version {found!r} of the schema, this torchtpu reads {version}: {advice}")
    try:
        return decode(cls, data[key])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this JSON is not a complete {schema}: {error!r}") from error


def decode(hint: Any, value: Any) -> Any:
    """Rebuild a value of a report's type from what JSON made of it."""
    kind, arguments = get_origin(hint), get_args(hint)
    if kind in (UnionType, Union):  # only `X | None` occurs
        return None if value is None else decode(next(a for a in arguments if a is not NoneType), value)
    if kind is tuple:
        if arguments[0] in (int, str, float):  # a profile has hundreds of thousands
            return tuple(map(float, value)) if arguments[0] is float else tuple(value)
        return tuple(decode(arguments[0], v) for v in value)
    if is_dataclass(hint):
        return hint(**{name: decode(h, value[name]) for name, h in _hints(hint).items()})
    if hint is float:
        return float(value)
    return value
