"""The libraries whose models are run. They are optional: `pip install -c constraints.txt -e '.[models]'`."""

from __future__ import annotations

import functools
import importlib
import importlib.util
from types import ModuleType

import torch

INSTALL = "pip install -c constraints.txt -e '.[models]'"


def missing(library: str) -> str:
    """Say why a library's models cannot run, or return nothing."""
    return "" if importlib.util.find_spec(library) else f"{library} is not installed: {INSTALL}"


def load(library: str) -> ModuleType:
    """Import a library."""
    _declare_nms()
    return importlib.import_module(library)


@functools.cache
def _declare_nms() -> torch.library.Library | None:
    """Let torchvision be imported where its binary does not load, as a build for CUDA beside a CPU build of torch.

    Its import then fails at the first operators that it expects of the binary. Both libraries import it for image transforms;
    their models use none of its operators.
    """
    if importlib.util.find_spec("torchvision") is None:
        return None
    try:
        importlib.import_module("torchvision")
    except RuntimeError:
        library = torch.library.Library("torchvision", "DEF")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        return library
    return None
