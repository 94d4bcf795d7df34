"""A profile as one HTML file: the numbers need neither network nor script, and the trace is in it.

The script sorts tables, and hands the trace to Perfetto (https://perfetto.dev/docs/visualization/deep-linking-to-perfetto-ui)
when the reader asks for that. It runs by its digest only, so that no name in a profile can become one, and the page's policy
lets it load nothing.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from torchtpu.profiler.sections import sections
from torchtpu.profiler.to_html import head
from torchtpu.report import units
from torchtpu.report.sections import Section
from torchtpu.report.table import QUIET
from torchtpu.report.to_html import folded

if TYPE_CHECKING:
    from torchtpu.profiler.result import Profile

ROWS = 50  # of a table
EMBEDDED = 8 << 20  # bytes of a trace that a page holds; a larger one is a file beside it


def page(profile: Profile, trace: bytes, beside: str = "") -> str:
    """Write the page.

    Args:
        trace: the Chrome trace, compressed.
        beside: name of the file beside the page that has the trace; left out, the page holds it.
    """
    tables = sections(profile, ROWS, wide=True)
    script = _file("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return (
        '<!DOCTYPE html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="color-scheme" content="light dark">'
        f"<title>torchtpu profile {escape(profile.run)}</title><style>{_file('page.css')}</style></head><body>"
        f"<header>{head(profile)}{_trace(profile, trace, beside)}{_contents(tables)}</header>"
        f"<main>{''.join(_section(k, section) for k, section in enumerate(tables))}</main>"
        f"<script>{script}</script></body></html>\n"
    )


def _trace(profile: Profile, trace: bytes, beside: str) -> str:
    """Offer the trace: as a file, and in Perfetto."""
    name = f"{profile.run}.trace.json.gz"
    spans = f"{units.count(len(profile.spans), 'span')}, {units.nbytes(len(trace))}"
    if beside:
        where = f'<a href="{escape(beside)}">{escape(beside)}</a>, beside this page ({spans}; too large to stand in it)'
        return f'<p class="trace">Timeline: {where}. ui.perfetto.dev and chrome://tracing open it.</p>'
    source = f"data:application/gzip;base64,{base64.b64encode(trace).decode()}"
    return (
        f'<p class="trace">Timeline: <a id="trace" download="{escape(name)}" href="{source}">Chrome trace</a> ({spans}) '
        '<button id="perfetto" hidden>Open in Perfetto</button> '
        f'<span id="said" role="status" style="{QUIET}">Download it for ui.perfetto.dev or chrome://tracing.</span></p>'
    )


def _contents(tables: Sequence[Section]) -> str:
    links = (f'<a href="#s{k}">{escape(_name(section))}</a>' for k, section in enumerate(tables))
    return f'<nav aria-label="Contents">{" ".join(links)}</nav>'


def _name(section: Section) -> str:
    return section.title.partition(":")[0]


def _section(number: int, section: Section) -> str:
    return f'<section id="s{number}">{folded(section, "open ")}</section>'


@cache
def _file(name: str) -> str:
    return (Path(__file__).parent / name).read_text(encoding="utf-8")
