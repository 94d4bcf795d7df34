"""What `%load_ext torchtpu` hangs into a shell, and how it is taken out again."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell
from IPython.core.magic import Magics

from torchtpu.notebook_ext import labels, memory, tracebacks
from torchtpu.notebook_ext.cells import Cells
from torchtpu.notebook_ext.compare import CompareMagics
from torchtpu.notebook_ext.dashboard import Dashboard
from torchtpu.notebook_ext.explain import ExplainMagics
from torchtpu.notebook_ext.first_line import first_line
from torchtpu.notebook_ext.fit_magic import FitMagics
from torchtpu.notebook_ext.magics import TPUMagics
from torchtpu.notebook_ext.profile_cell import ProfileCellMagics
from torchtpu.notebook_ext.profile_diff import ProfileDiffMagics
from torchtpu.notebook_ext.profile_view import ProfileMagics
from torchtpu.notebook_ext.target_magics import TargetMagics


class Extension:
    """One set of hooks in one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._cells = Cells(shell)
        self._dashboard = Dashboard(shell, self._cells)
        self._magics: tuple[Magics, ...] = (
            TPUMagics(shell, self._cells, self._dashboard),
            CompareMagics(shell),
            ExplainMagics(shell),
            memory.MemoryMagics(shell),
            TargetMagics(shell, self._cells.targets),
            FitMagics(shell, self._cells.targets),
            ProfileCellMagics(shell, self._cells),
            ProfileMagics(shell),
            ProfileDiffMagics(shell),
        )
        shell.register_magics(*self._magics)
        shell.input_transformers_cleanup.append(first_line)
        for event, callback in self._cells.callbacks.items():
            shell.events.register(event, callback)
        shell.events.register("post_run_cell", self._dashboard.cell_ended)
        labels.install(shell)
        memory.install(shell)
        tracebacks.install(shell)

    def remove(self) -> None:
        """Take the hooks out. A `%%tpu_mode` cell that is running ends here: it reports, and its mode is left."""
        self._cells.close_all()
        self._dashboard.close()
        self._shell.events.unregister("post_run_cell", self._dashboard.cell_ended)
        for event, callback in self._cells.callbacks.items():
            self._shell.events.unregister(event, callback)
        self._shell.input_transformers_cleanup.remove(first_line)
        for magics in self._magics:
            for kind, names in magics.magics.items():
                for name in names:
                    self._shell.magics_manager.magics[kind].pop(name, None)
            self._shell.magics_manager.registry.pop(type(magics).__name__, None)
        labels.uninstall(self._shell)
        memory.uninstall(self._shell)
        tracebacks.uninstall(self._shell)
