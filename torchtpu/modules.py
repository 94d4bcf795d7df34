"""Which nn.Module runs now: the path of the innermost one, while somebody watches.

PyTorch calls global hooks around every module's forward. They are installed with the first watch and taken out with the
last one, so that a module called while nobody watches runs no code of ours.
"""

from __future__ import annotations

import threading
import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as hooks
from torch.utils.hooks import RemovableHandle


class _Calls(threading.local):
    """The module calls under way in this thread.

    Attributes:
        paths: of the calls, outermost first; prefixes: how the names of each one's own modules begin.
        root: the outermost module of the latest calls, not kept alive; names: its `named_modules()`, by identity.
    """

    def __init__(self) -> None:
        self.paths: list[str] = []
        self.prefixes: list[str] = []
        self.root: weakref.ref[nn.Module] | None = None
        self.names: dict[int, str] = {}


_calls = _Calls()
_handles: list[RemovableHandle] = []


def path() -> str:
    """Return the calls of modules under way in this thread: `GPT/blocks.0/mlp`; empty outside of any.

    The first is the class of the outermost module called, the others are the names by which that module knows them.
    """
    paths = _calls.paths
    return paths[-1] if paths else ""


def watch() -> None:
    """Begin to follow module calls. Doing so twice is the same as once."""
    if not _handles:
        _calls.paths.clear()  # an interrupt leaves calls without the hook at their end
        _calls.prefixes.clear()
        _handles.append(hooks.register_module_forward_pre_hook(_entered))
        _handles.append(hooks.register_module_forward_hook(_left, always_call=True))


def unwatch() -> None:
    """Stop following."""
    for handle in _handles:
        handle.remove()
    _handles.clear()


def _entered(module: nn.Module, inputs: Any) -> None:
    if torch.compiler.is_dynamo_compiling():
        return
    calls = _calls
    if calls.paths:
        # A module that the outermost one does not know (passed in or made during the call) is named by its class.
        name = calls.names.get(id(module)) or type(module).__name__
        calls.paths.append(f"{calls.paths[-1]}/{name.removeprefix(calls.prefixes[-1])}")
        calls.prefixes.append(f"{name}.")
        return
    if calls.root is None or calls.root() is not module:
        calls.root = weakref.ref(module)
        calls.names = {id(m): name for name, m in module.named_modules()}
    calls.paths.append(type(module).__name__)
    calls.prefixes.append("")


def _left(module: nn.Module, inputs: Any, output: Any) -> None:
    if not torch.compiler.is_dynamo_compiling() and _calls.paths:  # none if the watch began inside this call
        _calls.paths.pop()
        _calls.prefixes.pop()
