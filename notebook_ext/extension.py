"""What `%load_ext torchtpu` hangs into a shell, and how it is taken out again."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell

from torchtpu.notebook_ext import labels
from torchtpu.notebook_ext.cells import Cells
from torchtpu.notebook_ext.first_line import first_line
from torchtpu.notebook_ext.magics import TPUMagics


class Extension:
    """One set of hooks in one shell."""

    def __init__(self, shell: InteractiveShell) -> None:
        self._shell = shell
        self._cells = Cells(shell)
        self._magics = TPUMagics(shell, self._cells)
        shell.register_magics(self._magics)
        shell.input_transformers_cleanup.append(first_line)
        for event, callback in self._cells.callbacks.items():
            shell.events.register(event, callback)
        labels.install(shell)

    def remove(self) -> None:
        """Take the hooks out. A `%%tpu_mode` cell that is running ends here: it reports, and its mode is left."""
        self._cells.close_all()
        for event, callback in self._cells.callbacks.items():
            self._shell.events.unregister(event, callback)
        self._shell.input_transformers_cleanup.remove(first_line)
        for kind, names in self._magics.magics.items():
            for name in names:
                self._shell.magics_manager.magics[kind].pop(name, None)
        self._shell.magics_manager.registry.pop(TPUMagics.__name__, None)
        labels.uninstall(self._shell)
