"""The state that a cell can change, taken before it runs and put back after it, so that it can run again from the same start.

From the names in the cell's code the snapshot follows containers, instances, closures and functions of the notebook to
tensors, modules, optimizers, schedulers and random generators. Every object stays the object that it is; its content is
put back. Tensors are kept on the host, so that HBM holds what it would hold without a snapshot.
"""

from __future__ import annotations

import random
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from types import CellType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

import numpy as np
import torch

from torchtpu import client, modes
from torchtpu.buffer import Buffer

Restore = Callable[[], object]

_ATOMS = (int, float, complex, bool, str, bytes, type(None), type(...), range, slice, type, ModuleType, np.generic)
# Their objects belong to a front end or to a library with state outside Python, or never change.
_FOREIGN = frozenset(sys.stdlib_module_names) - {"collections", "types"} | {
    "IPython", "ipykernel", "ipywidgets", "traitlets", "matplotlib", "jax", "jaxlib", "numpy", "pandas", "PIL", "torchtpu",
}  # fmt: skip
_LIMIT = 200_000  # objects


class Snapshot:
    """What a namespace's names led to when it was made.

    Attributes:
        lost: what cannot be put back, one phrase each.
        names: those given, and those that the functions behind them use.
        tensors: all that the names lead to.
    """

    def __init__(self, namespace: dict[str, Any], names: Iterable[str]) -> None:
        modes.flush("snapshot")
        self._namespace = namespace
        self._bindings = dict(namespace)
        self._seen: dict[int, Any] = {}  # the objects, so that none goes and its id is used again
        self._restores: list[Restore] = []
        self._queue: deque[tuple[Any, str]] = deque()
        self.lost: list[str] = []
        self.tensors: list[torch.Tensor] = []
        self.names = set(names)
        self._take_random()
        for name in sorted(self.names):
            if name in namespace:
                self._queue.append((namespace[name], name))
        while self._queue:
            value, path = self._queue.popleft()
            if isinstance(value, _ATOMS) or id(value) in self._seen:
                continue
            if len(self._seen) > _LIMIT:
                raise ValueError(f"the cell's names lead to more than {_LIMIT:,} objects: it cannot be run from the same state")
            self._seen[id(value)] = value
            self._take(value, path)

    def restore(self) -> None:
        """Put everything back. What is pending then is computed for nobody, and so is not."""
        for name in [n for n in self._namespace if n not in self._bindings]:
            del self._namespace[name]
        for name, value in self._bindings.items():
            if self._namespace.get(name, self) is not value:
                self._namespace[name] = value
        for restore in self._restores:
            restore()

    def _take(self, value: Any, path: str) -> None:
        match value:
            case torch.Tensor():
                self._take_tensor(value, path)
            case dict():
                self._take_items(value, list(value.items()), value.update)
                self._follow(value.items(), lambda key: f"{path}[{key!r}]" if isinstance(key, (str, int)) else path)
                self._take_attributes(value, path)
            case list() | deque():
                self._take_items(value, list(value), value.extend)
                self._follow(enumerate(value), lambda k: f"{path}[{k}]")
                self._take_attributes(value, path)
            case set():
                self._take_items(value, list(value), value.update)
            case tuple() | frozenset():
                self._follow(enumerate(value), lambda k: f"{path}[{k}]")
            case np.ndarray():
                if value.flags.writeable and not value.dtype.hasobject:
                    self._restores.append(partial(np.copyto, value, value.copy()))
            case torch.Generator():
                self._restores.append(partial(value.set_state, value.get_state()))
            case np.random.Generator():
                self._restores.append(partial(setattr, value.bit_generator, "state", value.bit_generator.state))
            case random.Random():
                self._restores.append(partial(value.setstate, value.getstate()))
            case FunctionType():
                self._take_function(value, path)
            case MethodType():
                self._queue += [(value.__self__, path), (value.__func__, path)]
            case CellType():
                self._take_closure(value, path)
            case _ if hasattr(type(value), "__next__"):
                self.lost.append(f"{path}: {type(value).__name__}, which goes on from where the last run left it")
            case _ if type(value).__module__.partition(".")[0] not in _FOREIGN:
                self._take_attributes(value, path)

    def _follow(self, items: Iterable[tuple[Any, Any]], path_of: Callable[[Any], str]) -> None:
        self._queue += [(value, path_of(key)) for key, value in items if not isinstance(value, _ATOMS)]

    def _take_items(self, container: Any, saved: list[Any], fill: Callable[[list[Any]], Any]) -> None:
        def restore() -> None:
            container.clear()
            fill(saved)

        self._restores.append(restore)

    def _take_attributes(self, value: Any, path: str) -> None:
        attributes = getattr(value, "__dict__", None)
        if type(attributes) is dict and attributes:
            self._take_items(attributes, list(attributes.items()), attributes.update)
            self._follow(attributes.items(), lambda key: f"{path}.{key}")

    def _take_function(self, function: FunctionType, path: str) -> None:
        self._queue += [(cell, path) for cell in function.__closure__ or ()]
        if function.__globals__ is self._namespace:
            names = set(names_of(function.__code__)) & self._namespace.keys()
            self.names |= names
            self._queue += [(self._namespace[name], name) for name in sorted(names)]

    def _take_closure(self, cell: CellType, path: str) -> None:
        try:
            content = cell.cell_contents
        except ValueError:  # empty
            return
        self._restores.append(partial(setattr, cell, "cell_contents", content))
        self._queue.append((content, path))

    def _take_tensor(self, tensor: torch.Tensor, path: str) -> None:
        if tensor.layout is not torch.strided or tensor.device.type not in ("tpu", "cpu"):
            self.lost.append(f"{path}: a tensor that is {tensor.layout} on {tensor.device}")
            return
        if tensor.grad_fn is not None:
            self.lost.append(f"{path}: what autograd noted of it before this cell; the first backward() uses it up")
        else:
            self._restores.append(partial(tensor.requires_grad_, tensor.requires_grad))
            self._restores.append(partial(setattr, tensor, "grad", tensor.grad))
            if tensor.grad is not None:
                self._queue.append((tensor.grad, f"{path}.grad"))
        self.tensors.append(tensor)
        same = tensor.detach()

        def restore_place() -> None:
            moved = tensor.untyped_storage()._cdata != same.untyped_storage()._cdata
            if moved or tensor.shape != same.shape or tensor.stride() != same.stride():
                tensor.data = same

        self._restores.append(restore_place)
        storage = same.untyped_storage()
        if storage._cdata not in self._seen:
            self._seen[storage._cdata] = storage
            self._restores.append(_content(storage))
        self._take_attributes(tensor, path)

    def _take_random(self) -> None:
        self._restores += [
            partial(torch.set_rng_state, torch.get_rng_state()),
            partial(torch.tpu.set_rng_state, torch.tpu.get_rng_state()),
            partial(random.setstate, random.getstate()),
            partial(np.random.set_state, np.random.get_state()),
        ]


def _content(storage: torch.UntypedStorage) -> Restore:
    """Copy a storage's content to the host, and return what puts it back."""
    if storage.device.type == "cpu":
        return partial(storage.copy_, storage.clone())
    before: Buffer = storage.buffer
    layout, error = before.layout, before.error
    host = None if before.array is None else np.array(before.array)

    def restore() -> None:
        # A copy: on XLA:CPU the device works in the memory that it is given.
        storage.buffer = Buffer(layout, None if host is None else client.put(host.copy()))
        storage.buffer.error = error

    return restore


def names_of(code: CodeType) -> Iterator[str]:
    """Yield the names that code and the functions in it use."""
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from names_of(constant)
