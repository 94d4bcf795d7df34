"""`%tpu_tensorboard`: the profiles of a log directory in TensorBoard, below the cell and in a tab of its own.

What is saved says which run was shown, and where: static HTML, with a link. A script puts TensorBoard itself below that
while the page is open; a notebook that is opened later has a button there, and never a frame of a server that is gone.
"""

from __future__ import annotations

import json
import shlex
import time
import uuid
from html import escape
from pathlib import Path
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from torchtpu.report import units
from torchtpu.report.table import BOX, PHRASE, QUIET

_HEIGHT = 800  # pixels


@magics_class
class ProfileMagics(Magics):
    """`%tpu_tensorboard`."""

    def __init__(self, shell: InteractiveShell) -> None:
        super().__init__(shell)

    @magic_arguments()
    @argument("logdir", nargs="?", help="The folder that plugins/profile is in. Left out: that of the last profile.")
    @argument("--port", type=int, help="To listen at, on 127.0.0.1. Left out: the first free one from 6006.")
    @argument("--height", type=int, default=_HEIGHT, metavar="PX", help=f"Of the frame; {_HEIGHT} if left out.")
    @argument("--stop", action="store_true", help="End the TensorBoard of this log directory; without one, all of this kernel.")
    @line_magic
    def tpu_tensorboard(self, line: str) -> None:
        """Show the profiles of a log directory in TensorBoard, which this kernel starts, and which ends with it."""
        from torchtpu.profiler import tensorboard
        from torchtpu.profiler.logdir import look

        arguments = parse_argstring(self.tpu_tensorboard, line)
        logdir = arguments.logdir.strip("'\"") if arguments.logdir else None  # IPython keeps quotes
        if arguments.stop:
            print(f"{units.count(tensorboard.stop(logdir), 'TensorBoard')} ended")
            return
        if arguments.height < 100:
            raise UsageError(f"--height is in pixels, 100 or more: {arguments.height}")
        try:
            server = tensorboard.start(logdir or _last(), arguments.port)
            run = look(server.logdir).newest
            data = bundle(server, run.name if run else "", arguments.height)
        except (tensorboard.TensorBoardError, tensorboard.NoProfileError, ValueError) as error:
            raise UsageError(str(error)) from None
        self.shell.display_pub.publish(data=data, metadata={})


def _last() -> str:
    """Return the log directory of the last capture, or of the server that was started last."""
    from torchtpu import profiler
    from torchtpu.profiler import tensorboard

    last: Any = getattr(profiler, "last_logdir", None)
    if last is not None and (captured := last()) is not None:
        return str(captured)
    if servers := tensorboard.running():
        return str(servers[-1].logdir)
    raise UsageError("nothing was profiled in this session: name the log directory, as in %tpu_tensorboard logs")


def bundle(server: Any, run: str, height: int = _HEIGHT) -> dict[str, str]:
    """Return what shows a server, by MIME type.

    Args:
        server: a `torchtpu.profiler.tensorboard.Server`.
        run: the one to open at, as TensorBoard lists it.
        height: of the frame, in pixels.
    """
    from torchtpu.profiler.links import profile_url

    url = server.profile_url(run)
    others = units.count(len(server.runs()) - 1, "other")
    what = f"run {run}{'' if others.startswith('0') else f' and {others}'} of {server.logdir}"
    again = f"%tpu_tensorboard {shlex.quote(str(server.logdir))}"
    until = f"port {server.port} of the kernel's machine, while the kernel runs; again:"
    needs = f"It needs {server.route.needs}." if server.route.needs else ""
    about = {
        "id": f"torchtpu-{uuid.uuid4().hex}",
        "port": server.port,
        "url": server.url,
        "direct": server.route.direct,
        "page": profile_url("", run),
        "logdir": str(server.logdir),
        "made": time.time() * 1000,
        "height": height,
    }
    wrap = "overflow-wrap:anywhere"
    html = (
        f'<div id="{about["id"]}" style="{BOX}">'
        f'<div><b style="{PHRASE}">TensorBoard</b> <span style="margin-right:12px;{wrap}">{escape(what)}</span> '
        f'<a href="{escape(url)}" target="_blank" rel="noopener">open in a new tab</a></div>'
        f'<div style="{QUIET};{wrap}">{escape(until)} <code>{escape(again)}</code>. {escape(needs)}</div>'
        f"<div></div></div>{_script(about)}"
    )
    return {"text/html": html, "text/plain": f"torchtpu TensorBoard: {what}\n{url}\n{until} {again}\n{needs}".rstrip()}


def _script(about: dict[str, Any]) -> str:
    source = Path(__file__).with_suffix(".js").read_text(encoding="utf-8")
    values = json.dumps(about).replace("<", "\\u003c")  # a folder named `</script>` ends no script
    return f"<script>{source.replace('__ABOUT__', values)}</script>"
