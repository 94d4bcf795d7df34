"""`%tpu_free`: who holds device memory, and letting go of it."""

from __future__ import annotations

import gc
import re
import sys
import traceback
from collections.abc import Callable
from typing import Any

from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring

from torchtpu import errors, hbm, holders, reach
from torchtpu.report import units
from torchtpu.report.holdings import Holdings

_NUMBERED = re.compile(r"_\d+")
_PARTS = ("Out", "traceback", "pending")  # what --all frees


def install(shell: InteractiveShell) -> None:
    """Let torchtpu look for holders among a shell's variables and outputs. Nothing is held between two looks."""

    holders.session = lambda: holders.Session(shell.user_ns, _outputs(shell))


def uninstall(shell: InteractiveShell) -> None:
    """Let torchtpu look in `__main__` again."""
    holders.session = holders.no_session


def _outputs(shell: InteractiveShell) -> dict[int, Any]:
    # IPython keeps each output under its name in a second place, also when it is gone from Out.
    hidden = {int(name[1:]): value for name, value in shell.user_ns_hidden.items() if _NUMBERED.fullmatch(name)}
    return hidden | shell.user_ns.get("_oh", {})


@magics_class
class MemoryMagics(Magics):
    """`%tpu_free`."""

    @magic_arguments()
    @argument(
        "what",
        nargs="*",
        help="Out: outputs that hold device memory. traceback: variables of the functions of the last error. pending: run "
        "what waits, which lets go of its inputs. peak: start the peak anew. Or names of variables.",
    )
    @argument("--all", action="store_true", help="Out, traceback and pending, and what waits for the garbage collector.")
    @line_magic
    def tpu_free(self, line: str) -> None:
        """Show who holds device memory and what frees it; or free some of it."""
        arguments = parse_argstring(self.tpu_free, line)
        wanted = dict.fromkeys([*arguments.what, *(_PARTS if arguments.all else ())])
        for name in wanted:
            self._check(name)
        for name in wanted:
            self._free(name)
        if arguments.all:
            _freed("garbage", gc.collect)
        if not wanted:
            found = Holdings.now()
            self.shell.display_pub.publish(data={"text/html": found.to_html(), "text/plain": found.to_text()}, metadata={})

    def _check(self, name: str) -> None:
        if name in (*_PARTS, "peak") or name in self.shell.user_ns:
            return
        if not name.isidentifier():
            raise UsageError(f"%tpu_free takes names of variables; for a part of one, type `del {name}`")
        variables = [n for n in self.shell.user_ns if not n.startswith("_")]
        close = errors.did_you_mean(name, [*_PARTS, *variables])
        raise UsageError(f"no variable {name!r}: %tpu_free takes names of variables, Out, traceback, pending or peak.{close}")

    def _free(self, name: str) -> None:
        match name:
            case "Out":
                _freed("Out", self._drop_outputs)
            case "traceback":
                _freed("last traceback", _clear_traceback)
            case "pending":
                _freed("pending graph", _run_pending)
            case "peak":
                hbm.reset_peak()
                print(f"the HBM peak starts anew at {units.nbytes(hbm.usage.peak)}")
            case _:
                self._delete(name)

    def _drop_outputs(self) -> None:
        """Forget the outputs that hold device memory, and leave the others."""
        shell = self.shell
        spaces = (shell.user_ns, shell.user_ns_hidden)
        outputs = _outputs(shell)
        for root in {h.root for _, found in holders.everything() for h in found}:
            if root in holders.UNDERSCORES:
                value = shell.user_ns[root]
            elif root.startswith("Out["):
                number = int(root[4:-1])
                value = outputs.pop(number)
                shell.user_ns["_oh"].pop(number, None)
                for space in spaces:
                    space.pop(f"_{number}", None)
            else:
                continue
            for name in holders.UNDERSCORES:
                for space in spaces:
                    if space.get(name) is value:
                        space[name] = ""
                if getattr(shell.displayhook, name, None) is value:
                    setattr(shell.displayhook, name, "")
            if shell.last_execution_result is not None and shell.last_execution_result.result is value:
                shell.last_execution_result.result = None

    def _delete(self, name: str) -> None:
        held, roots = 0, []
        for buffer, found in holders.everything():
            # A graph that saved a parameter shares it, and is not what keeps it.
            if any(h.root == name and (h.kind != holders.AUTOGRAD or h is found[0]) for h in found):
                held += buffer.nbytes
                roots += [h.root for h in found]
        buffer = None  # it would be kept
        freed = _freed(name, lambda: self.shell.user_ns.pop(name))
        others = ", ".join(dict.fromkeys(root for root in roots if root != name))
        if others and freed < held:
            print(f"  {units.nbytes(held - freed)} of it is still held by {others}")


def _freed(name: str, act: Callable[[], Any]) -> int:
    """Do something, and say and return how many bytes that freed."""
    before = hbm.usage.live
    act()
    freed = before - hbm.usage.live
    print(f"{name}: freed {units.nbytes(freed)}" if freed > 0 else f"{name}: freed nothing")
    return freed


def _clear_traceback() -> None:
    """Clear the variables in the frames of the last error; it can still be shown."""
    error = getattr(sys, "last_exc", None) or getattr(sys, "last_value", None)
    seen: set[int] = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        traceback.clear_frames(error.__traceback__)
        for frame in reach.frames_of(error.__traceback__):
            reach.variables(frame)  # until Python 3.13, whoever looked at them left a copy in the frame: now an empty one
        error = error.__cause__ or error.__context__


def _run_pending() -> None:
    from torchtpu import modes

    modes.flush("%tpu_free")
