"""Reports: what the device did, as a frozen dataclass that shows and saves itself.

`build` makes one from an event log; `sections` arranges it for reading; `to_text`, `to_html` and `to_json` write it.
"""

from torchtpu.report.difference import Difference, diff
from torchtpu.report.holdings import Holdings
from torchtpu.report.report import Report, WatchOpenError
from torchtpu.report.rows import (
    BufferRow,
    CompileRow,
    FallbackRow,
    FlushRow,
    FusionRow,
    HoldingRow,
    OpRow,
    OwnerRow,
    ProgramRow,
    Seconds,
    Storm,
    SyncRow,
)
from torchtpu.report.targets import TargetRow
from torchtpu.report.trace import Call, Trace, TraceRow

__all__ = [
    "BufferRow",
    "Call",
    "CompileRow",
    "Difference",
    "FallbackRow",
    "FlushRow",
    "FusionRow",
    "HoldingRow",
    "Holdings",
    "OpRow",
    "OwnerRow",
    "ProgramRow",
    "Report",
    "Seconds",
    "Storm",
    "SyncRow",
    "TargetRow",
    "Trace",
    "TraceRow",
    "WatchOpenError",
    "diff",
]
