"""`%tpu_fit`: how large a batch fits into a chip."""

from __future__ import annotations

import re
import time
import uuid
from html import escape
from typing import Any

from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from torchtpu.errors import CompilerMissingError, UnknownChipError
from torchtpu.fit import Fit, fit
from torchtpu.notebook_ext.live import FRAME, Bundle, can_update
from torchtpu.notebook_ext.targets import EFFORTS, Targets
from torchtpu.report import units
from torchtpu.report.table import PHRASE, QUIET

_EVERY = 0.25  # seconds between two lines
_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*([KMG]i?B?|B)?", re.IGNORECASE)


@magics_class
class FitMagics(Magics):
    """`%tpu_fit`."""

    def __init__(self, shell: Any, targets: Targets) -> None:
        super().__init__(shell)
        self._targets = targets

    @magic_arguments()
    @argument("step", help="A function that does a training step with a batch of a size: step(batch=8).")
    @argument("--target", metavar="CHIPS", help="v5e (default), v5e,v6e or all. Left out: those of %%tpu_target, if set.")
    @argument(
        "--vary", default="batch", metavar="NAME", help="The parameter of the function that gets the size (default: batch)."
    )
    @argument(
        "--try",
        dest="tries",
        default="checkpoint,bfloat16",
        metavar="CHANGES",
        help="Changes to try: checkpoint, bfloat16, checkpoint+bfloat16, separated by commas; none.",
    )
    @argument("--first", type=int, default=8, help="The size to begin with (default: 8).")
    @argument("--most", type=int, default=65_536, help="The largest size to try (default: 65536).")
    @argument("--multiple", type=int, default=1, help="Try multiples of this number only.")
    @argument("--hbm", metavar="SIZE", help="HBM that a program may use, if not what the chip has: 8GiB.")
    @argument("--effort", choices=EFFORTS, default=EFFORTS[0], help="Of the compiles (default: memory, a fast one).")
    @line_magic
    def tpu_fit(self, line: str) -> Fit:
        """Find the largest batch of a training step that fits into a TPU chip, and what makes room for a larger one.

        The function is only recorded, and compiled by the chip's compiler: nothing runs, nothing changes, no chip is needed.
        """
        arguments = parse_argstring(self.tpu_fit, line)
        step = self.shell.ev(arguments.step)
        line_shown = _Line(self.shell)
        target = arguments.target or ",".join(self._targets.target.chips) or "v5e"
        try:
            found = fit(
                step,
                target=target.strip("'\""),
                vary=arguments.vary,
                tries=tuple(t.strip() for t in arguments.tries.split(",") if t.strip() not in ("", "none")),
                first=arguments.first,
                most=arguments.most,
                multiple=arguments.multiple,
                effort=arguments.effort,
                hbm=_bytes(arguments.hbm) if arguments.hbm else None,
                progress=line_shown.show,
            )
        except (UnknownChipError, CompilerMissingError) as error:
            raise UsageError(str(error)) from None
        except BaseException as error:
            line_shown.stop(error)
            raise
        line_shown.done(found)
        return found


class _Line:
    """What `%tpu_fit` does now; in the end, what it took, or what it had found when it was stopped."""

    def __init__(self, shell: Any) -> None:
        self._publisher = shell.display_pub
        self._update = can_update(shell)
        self._display_id = uuid.uuid4().hex
        self._started = time.perf_counter()
        self._shown = 0.0
        self._fit: Fit | None = None

    def show(self, fit: Fit, what: str, seconds: float) -> None:
        """Show what is being compiled."""
        self._fit = fit
        now = time.perf_counter()
        if self._update and now - self._shown >= _EVERY:
            compiling = f"compiling {seconds:.0f} s" if seconds >= 1 else "compiling"
            self._publish(_line(fit, [what, compiling, *self._figures(fit)]), update=self._shown > 0)
            self._shown = now

    def done(self, fit: Fit) -> None:
        """Leave a line that says what it took; the result is shown as the cell's."""
        if self._shown:
            self._publish(_line(fit, self._figures(fit)), update=True)

    def stop(self, error: BaseException) -> None:
        """Show what is known, where there is something."""
        if self._fit is None or not self._fit.rows:
            return
        how = "interrupted" if isinstance(error, KeyboardInterrupt) else f"ended by {type(error).__name__}"
        line, fit = _line(self._fit, [how, *self._figures(self._fit)]), self._fit
        html, text = line["text/html"] + fit.to_html(), f"{line['text/plain']}\n{fit.to_text()}"
        self._publish({"text/html": html, "text/plain": text}, update=self._shown > 0)

    def _figures(self, fit: Fit) -> list[str]:
        return [units.count(len(fit.rows), "program"), units.seconds(time.perf_counter() - self._started)]

    def _publish(self, bundle: Bundle, update: bool) -> None:
        options: dict[str, Any] = {"transient": {"display_id": self._display_id}, "update": update} if self._update else {}
        self._publisher.publish(data=bundle, metadata={}, **options)


def _line(fit: Fit, phrases: list[str]) -> Bundle:
    figures = " ".join(f'<span style="{PHRASE}">{escape(p)}</span>' for p in phrases)
    html = f'<b style="{PHRASE}">fit of {escape(fit.step)}</b> {figures} <span style="{QUIET}">measured</span>'
    return {
        "text/html": f'<div style="{FRAME}">{html}</div>',
        "text/plain": f"fit of {fit.step}: {', '.join(phrases)} (measured)",
    }


def _bytes(text: str) -> int:
    match = _BYTES.fullmatch(text.strip("'\" "))
    if match is None:
        raise UsageError(f"--hbm takes a size, as in --hbm 8GiB, not {text}")
    number, unit = match.groups()
    power = "BKMG".index((unit or "B")[0].upper())
    return int(float(number) * 1024**power)
