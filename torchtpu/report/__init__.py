"""Reports: what the device did, as a frozen dataclass that shows and saves itself.

`build` makes one from an event log; `sections` arranges it for reading; `to_text`, `to_html` and `to_json` write it.
"""

from torchtpu.report.report import Report, WatchOpenError
from torchtpu.report.rows import (
    BufferRow,
    CompileRow,
    FallbackRow,
    FlushRow,
    OpRow,
    ProgramRow,
    Seconds,
    Storm,
    SyncRow,
)

__all__ = [
    "BufferRow",
    "CompileRow",
    "FallbackRow",
    "FlushRow",
    "OpRow",
    "ProgramRow",
    "Report",
    "Seconds",
    "Storm",
    "SyncRow",
    "WatchOpenError",
]
