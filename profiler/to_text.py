"""Profiles as plain text."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

from torchtpu.profiler.sections import headline, sections, source, times, warnings
from torchtpu.report import units
from torchtpu.report.to_text import section_text

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile


def to_text(profile: Profile, width: int) -> str:
    """Draw a profile, `width` columns wide, without colours."""
    shown = ", ".join(f"{name} {units.seconds(s)}" for name, s in times(profile) if s > 0)
    lines = [
        f"torchtpu profile {profile.run}: {', '.join(headline(profile))} ({source(profile)})",
        f"elapsed {units.seconds(profile.elapsed)}: {shown}",
        *(f"! {f'{place.where} ' if place and place.where else ''}{text}" for text, place in warnings(profile)),
    ]
    head = [part for line in lines for part in textwrap.wrap(line, width, subsequent_indent="  ")]
    return "\n\n".join(["\n".join(head), *(section_text(section, width) for section in sections(profile))])
