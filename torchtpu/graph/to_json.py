"""Graphs as JSON: the dataclasses' own field names, under a schema name and version."""

from __future__ import annotations

import json
from dataclasses import asdict

from torchtpu.graph.model import ProgramGraph
from torchtpu.report.rows import FusionRow, OpRow
from torchtpu.report.to_json import decode

SCHEMA = "torchtpu.graph"
VERSION = 1  # raise it when a field changes its meaning, is renamed or goes


def to_json(graph: ProgramGraph) -> str:
    """Write a graph, with its Python text where it has one."""
    return json.dumps(
        {
            "schema": SCHEMA,
            "version": VERSION,
            "name": graph.name,
            "ops": [asdict(op) for op in graph.ops],
            "inputs": graph.inputs,
            "results": graph.results,
            "fusions": [asdict(f) for f in graph.fusions],
            "compiler": graph.compiler,
            "seconds": graph.seconds,
            "python": graph.to_python() if "python" in graph.texts else "",
        }
    )


def from_json(text: str) -> ProgramGraph:
    """Read a graph.

    Raises:
        ValueError: not a graph, or one of another version of the schema.
    """
    data = json.loads(text)
    if not isinstance(data, dict) or data.get("schema") != SCHEMA:
        raise ValueError(f"this JSON is not a {SCHEMA}")
    if data.get("version") != VERSION:
        raise ValueError(f"this graph has version {data.get('version')!r} of the schema; this torchtpu reads {VERSION}")
    try:
        python = data["python"]
        return ProgramGraph(
            data["name"],
            decode(tuple[OpRow, ...], data["ops"]),
            tuple(data["inputs"]),
            tuple(data["results"]),
            decode(tuple[FusionRow, ...], data["fusions"]),
            data["compiler"],
            tuple(data["seconds"]),
            texts={"python": lambda: python} if python else {},
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"this JSON is not a complete {SCHEMA}: {error!r}") from error
