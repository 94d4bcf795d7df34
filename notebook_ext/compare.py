"""`%%tpu_compare`: runs a cell in several modes from the same state. `%tpu_diff` and `%tpu_report`: saved reports."""

from __future__ import annotations

import ast
import contextlib
import time
from dataclasses import replace
from pathlib import Path
from types import CodeType
from typing import Any

import torch
from IPython.core.error import UsageError
from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics, cell_magic, line_magic, magics_class
from IPython.core.magic_arguments import argument, magic_arguments, parse_argstring
from IPython.display import display
from IPython.utils.capture import capture_output

from torchtpu import modes
from torchtpu.notebook_ext import on_cpu
from torchtpu.notebook_ext.comparison import Column, Comparison
from torchtpu.notebook_ext.snapshot import Snapshot, names_of
from torchtpu.notebook_ext.values import collect, distance
from torchtpu.report import Report, diff
from torchtpu.watch import watch

_RESULT = "_tpu_compare_result"  # the name of the cell's last expression, while it runs


@magics_class
class CompareMagics(Magics):
    """`%%tpu_compare`, `%tpu_diff` and `%tpu_report`."""

    @magic_arguments()
    @argument(
        "modes",
        nargs="*",
        help="strict, debug, defer_and_fuse; cpu: PyTorch on copies on the host's CPU; compile: the same with torch.compile of "
        "the cell's modules. Left out: strict and defer_and_fuse.",
    )
    @argument("--runs", type=int, default=2, help="how many runs to time, after the first two of each mode (default: 2).")
    @cell_magic
    def tpu_compare(self, line: str, cell: str) -> Comparison:
        """Run this cell in several modes from the same state, and show time, compiles, HBM and numerical difference.

        Before each run, what the cell's names lead to is put back as it was: variables, containers, parameters and their
        gradients, optimizers, schedulers, random generators. After the last run too: the cell leaves nothing behind.
        In each mode the first run compiles; the second is watched; then come those that are timed. What the cell prints is
        shown once.
        """
        arguments = parse_argstring(self.tpu_compare, line)
        try:
            wanted = [_label(mode) for mode in arguments.modes or ("strict", "defer_and_fuse")]
        except ValueError as error:
            raise UsageError(str(error)) from None
        if len(set(wanted)) < len(wanted) or len(wanted) < 2:
            raise UsageError("%%tpu_compare takes two or more different modes: %%tpu_compare strict defer_and_fuse")
        if arguments.runs < 1:
            raise UsageError("--runs takes a number of at least 1")
        cell_run = _Cell(self.shell, cell)
        try:
            snapshot = Snapshot(self.shell.user_ns, cell_run.names)
        except ValueError as error:
            raise UsageError(str(error)) from None
        return compare(cell_run, snapshot, wanted, arguments.runs)

    @line_magic
    def tpu_report(self, line: str) -> Report:
        """Show a report that was saved as JSON: `%tpu_report step.json`. It needs no device."""
        if not line.strip():
            raise UsageError("%tpu_report takes a file: %tpu_report step.json")
        return _read(line.strip().strip("'\""))

    @magic_arguments()
    @argument("before", help="a report, saved as .json")
    @argument("after", help="another")
    @line_magic
    def tpu_diff(self, line: str) -> None:
        """Show what differs between two saved reports: times, counts, HBM, and programs that only one of them ran."""
        arguments = parse_argstring(self.tpu_diff, line)
        names = [name.strip("'\"") for name in (arguments.before, arguments.after)]
        before, after = map(_read, names)
        display(diff(before, after, (Path(names[0]).name, Path(names[1]).name)))


class _Cell:
    """A cell's code, to be run any number of times."""

    def __init__(self, shell: InteractiveShell, text: str) -> None:
        source = "\n" + shell.transform_cell(text)  # line 1 is the magic's
        number = max(1, shell.execution_count - 1)
        name = shell.compile.cache(source, number, raw_code=text)
        tree = ast.parse(source, name)
        if tree.body and isinstance(tree.body[-1], ast.Expr):
            last = tree.body[-1]
            tree.body[-1] = ast.copy_location(ast.Assign([ast.Name(_RESULT, ast.Store())], last.value), last)
        self._code: CodeType = compile(ast.fix_missing_locations(tree), name, "exec", shell.compile.flags)
        self._shell = shell
        self.names = set(names_of(self._code))

    def value(self, name: str) -> Any:
        """Return what the user's namespace has under a name; None if nothing."""
        return self._shell.user_ns.get(name)

    def run(self) -> None:
        """Run it in the user's namespace."""
        exec(self._code, self._shell.user_global_ns, self._shell.user_ns)

    def results(self, names: set[str]) -> dict[str, torch.Tensor]:
        """The numbers that these names and its own lead to, on the host."""
        found = collect(self._shell.user_ns, sorted(self.names | names))
        return {name.replace(_RESULT, "the last expression"): value for name, value in found.items()}


def compare(cell: _Cell, snapshot: Snapshot, wanted: list[str], timed: int) -> Comparison:
    """Run a cell in each mode and put the state back after each run.

    Args:
        wanted: labels of eager modes, "cpu" or "compile".
        timed: how many runs to time, after the first two.

    Raises:
        What the cell raises, if it does in every mode.
    """
    columns: list[Column] = []
    base: dict[str, torch.Tensor] | None = None
    failure: Exception | None = None
    for k, label in enumerate(wanted):
        runs = _OnCPU(cell, snapshot, label == "compile") if label in on_cpu.LABELS else _OnDevice(cell, snapshot, label)
        try:
            column, results = runs.column(timed, shown=k == 0)
        except Exception as error:
            failure = failure or error
            columns.append(Column(runs.label, error=f"{type(error).__name__}: {error}"))
        else:
            columns.append(replace(column, distance=None if base is None else distance(base, results)))
            base = base if base is not None else results
        finally:
            snapshot.restore()
    if failure is not None and all(c.error for c in columns):
        raise failure
    return Comparison(tuple(columns), timed, tuple(snapshot.lost))


class _OnDevice:
    """A cell's runs in an eager mode."""

    def __init__(self, cell: _Cell, snapshot: Snapshot, label: str) -> None:
        self._cell, self._snapshot, self.label = cell, snapshot, label

    def column(self, timed: int, shown: bool) -> tuple[Column, dict[str, torch.Tensor]]:
        with modes.scope(self.label):
            first = self._watched(shown)
            results = self._cell.results(self._snapshot.names)
            self._snapshot.restore()
            second = self._watched(False)
            self._snapshot.restore()
            steady = min(self._timed() for _ in range(timed))
        return Column(self.label, first.seconds.elapsed, first, second, steady), results

    def _watched(self, shown: bool) -> Report:
        with _printing(shown), watch() as report:
            self._cell.run()
        return report

    def _timed(self) -> float:
        with _printing(False):
            torch.tpu.synchronize()
            start = time.perf_counter()
            self._cell.run()
            torch.tpu.synchronize()
            seconds = time.perf_counter() - start
        self._snapshot.restore()
        return seconds


class _OnCPU:
    """A cell's runs by PyTorch alone, on copies of its tensors."""

    def __init__(self, cell: _Cell, snapshot: Snapshot, compiled: bool) -> None:
        self._cell, self._snapshot = cell, snapshot
        self.label = on_cpu.LABELS["compile" if compiled else "cpu"]
        values = map(cell.value, sorted(snapshot.names)) if compiled else ()
        self._compiled = on_cpu.Compiled(v for v in values if isinstance(v, torch.nn.Module))

    def column(self, timed: int, shown: bool) -> tuple[Column, dict[str, torch.Tensor]]:
        first, results = self._run(shown)
        steady = min(self._run(False)[0] for _ in range(1 + timed))
        return Column(self.label, first, steady=steady), results

    def _run(self, shown: bool) -> tuple[float, dict[str, torch.Tensor]]:
        self._compiled.install()
        with on_cpu.on_cpu(self._snapshot.tensors), _printing(shown):
            start = time.perf_counter()
            self._cell.run()
            seconds = time.perf_counter() - start
            results = self._cell.results(self._snapshot.names)
        self._snapshot.restore()
        return seconds, results


def _printing(shown: bool) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if shown else capture_output()


def _label(mode: str) -> str:
    word = mode.lower()
    return word if word in on_cpu.LABELS else modes.EagerMode.parse(mode).label


def _read(name: str) -> Report:
    try:
        return Report.from_json(Path(name).expanduser().read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from None
    except ValueError as error:
        raise UsageError(f"{name}: {error}") from None
