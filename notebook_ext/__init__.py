"""torchtpu in notebooks and IPython: `%load_ext torchtpu`.

It has the magics `%tpu`, `%tpu_mode`, `%%tpu_mode` and more, runs pending work at the end of each cell, and gives lines of
cells their names (`In[7], line 3`). All of it is a thin client of `torchtpu.watch` and `torchtpu.modes`.
"""

from __future__ import annotations

import weakref

from IPython.core.interactiveshell import InteractiveShell

from torchtpu.notebook_ext.extension import Extension

_loaded: weakref.WeakKeyDictionary[InteractiveShell, Extension] = weakref.WeakKeyDictionary()


def load(shell: InteractiveShell) -> None:
    """Add torchtpu to a shell. Loading again replaces what was there, so that there is never more than one of a hook."""
    unload(shell)
    _loaded[shell] = Extension(shell)


def unload(shell: InteractiveShell) -> None:
    """Take everything out of a shell again. The device and its tensors stay."""
    extension = _loaded.pop(shell, None)
    if extension is not None:
        extension.remove()
