"""`python -m torchtpu.report FILE [FILE]`: show a saved report, or the difference of two, without a device."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from torchtpu.report import Report, diff
from torchtpu.report.to_html import page


def main(arguments: list[str] | None = None) -> int:
    """Read reports from JSON and write text, or with `--html PATH` a page. Returns the exit status."""
    parser = argparse.ArgumentParser("python -m torchtpu.report", description=main.__doc__.partition(".")[0] + ".")
    parser.add_argument("files", nargs="+", metavar="FILE", help="a report that was saved as .json; two are compared")
    parser.add_argument("--html", metavar="PATH", type=Path, help="write the report as a page of HTML instead")
    options = parser.parse_args(arguments)
    if len(options.files) > 2 or (options.html and len(options.files) > 1):
        parser.error("one report is shown, two are compared; --html is for one")
    try:
        reports = [Report.from_json(Path(file).read_text(encoding="utf-8")) for file in options.files]
    except (OSError, ValueError) as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 1
    if options.html:
        options.html.write_text(page(reports[0]), encoding="utf-8")
    elif len(reports) == 2:
        print(diff(*reports, names=tuple(options.files)).to_text())
    else:
        print(reports[0].to_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
