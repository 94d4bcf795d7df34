"""Profiles as static HTML for notebooks, of what an untrusted notebook keeps: see `torchtpu.report.to_html`."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from torchtpu.profiler.figures import device_label
from torchtpu.profiler.sections import COLOURS, headline, sections, source, times, warnings
from torchtpu.report import units
from torchtpu.report.table import BOX, PHRASE, QUIET
from torchtpu.report.to_html import folded, time_bar, warning_html

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

_OPEN = 3  # steps, idle time and ops by time are seen at once


def to_html(profile: Profile) -> str:
    """Draw a profile as one HTML fragment."""
    parts = "".join(folded(section, "open " if k < _OPEN else "") for k, section in enumerate(sections(profile)))
    return f'<div style="{BOX}">{head(profile)}{parts}</div>'


def head(profile: Profile) -> str:
    """Draw the headline, the device's time and the warnings."""
    # The spaces between the phrases are where the line may break.
    figures = " ".join(f'<span style="{PHRASE}">{escape(phrase)}</span>' for phrase in headline(profile))
    whole = f"of {units.seconds(profile.elapsed)} elapsed, {device_label(profile)}"
    return (
        f'<div><b style="{PHRASE}">profile {escape(profile.run)}</b> {figures} '
        f'<span style="{QUIET}">{escape(source(profile))}</span></div>'
        f"{time_bar(times(profile), whole, COLOURS)}{''.join(map(warning_html, warnings(profile)))}"
    )
