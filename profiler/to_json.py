"""Profiles as JSON: the dataclasses' own field names, under a schema name and version."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from torchtpu.report.rows import MEASURED, MODELLED
from torchtpu.report.to_json import decode_document, labels_of

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

SCHEMA = "torchtpu.profile"
VERSION = 1  # raise it when a field changes its meaning, is renamed or goes

# What is a model's in a profile whose device is modelled.
_OF_DEVICE = (
    "busy", "elapsed", "steps.at", "steps.seconds", "steps.busy", "programs.seconds", "kernels.seconds", "ops.seconds",
    "idle.seconds", "idle.count",
)  # fmt: skip


def to_json(profile: Profile) -> str:
    """Write a profile."""
    profile.report.complete()
    # Not `asdict`: it copies each of hundreds of thousands of numbers by itself.
    return json.dumps({"schema": SCHEMA, "version": VERSION, "labels": labels(profile), "profile": profile}, default=_fields)


def _fields(row: Any) -> dict[str, Any]:
    return {f.name: getattr(row, f.name) for f in fields(row)}


def from_json(text: str) -> Profile:
    """Read a profile.

    Raises:
        ValueError: not a profile, or one of another version of the schema.
    """
    from torchtpu.profiler.result import Profile

    return decode_document(Profile, text, SCHEMA, VERSION, "profile", "capture the run again")


def labels(profile: Profile) -> dict[str, str]:
    """Return the label of each figure by its path."""
    from torchtpu.profiler.result import Profile

    found = labels_of(Profile, profile.compiler)
    if profile.modelled:
        found |= dict.fromkeys(_OF_DEVICE, MODELLED)
    # A chip's peaks are published, and not measured here.
    peaks = profile.peaks_from or ("not known" if not profile.peak_flops else MEASURED)
    return found | {"peak_flops": peaks, "peak_bandwidth": peaks}
