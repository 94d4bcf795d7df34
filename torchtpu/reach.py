"""Walks from a named object to the tensors that it keeps alive, without running any code of the user's.

It follows what Python itself would follow to keep something alive: items of builtin containers, instance dictionaries and
slots, closures, frames of tracebacks and generators, a module's parameters, gradients, an optimizer's state, and what
autograd saved for a backward pass. It calls no method of a user's object and triggers no hook.
"""

from __future__ import annotations

import contextlib
import inspect
import sys
from collections import deque
from collections.abc import Iterator
from itertools import islice
from types import (
    AsyncGeneratorType,
    CellType,
    CodeType,
    CoroutineType,
    FrameType,
    FunctionType,
    GeneratorType,
    GetSetDescriptorType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    TracebackType,
)
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

if TYPE_CHECKING:  # loads ml_dtypes, which takes longer than all of `import torchtpu`
    from torchtpu.buffer import Buffer

# What a tensor is to the object that leads to it.
PARAMETER, GRADIENT, STATE, PLAIN, SAVED = range(5)


class Reached(NamedTuple):
    """A buffer that was come upon: under which name, as what, how many steps from the start, and whose module it is in."""

    buffer: Buffer
    name: str
    role: int
    depth: int
    owner: str


_DEPTH = 12
_ITEMS = 20_000  # of a list
_KEY = 40  # characters of a dictionary key that is part of a name
_OPAQUE = ("torchtpu", "IPython", "ipykernel", "ipywidgets", "traitlets", "jax", "jaxlib", "numpy", "matplotlib", "asyncio")
_LEAVES = {int, float, complex, bool, str, bytes, bytearray, range, slice, type(None), type(...), CodeType, ModuleType}
_GENERATORS = {GeneratorType: "gi_frame", CoroutineType: "cr_frame", AsyncGeneratorType: "ag_frame"}
_MODULE_PARTS = ("_parameters", "_buffers", "_modules")

_mro = type.__dict__["__mro__"].__get__
_class_dict = type.__dict__["__dict__"].__get__
_traceback_of = BaseException.__dict__["__traceback__"].__get__
_storage_of = torch._C.TensorBase.untyped_storage
_grad_of = torch._C.TensorBase.__dict__["grad"].__get__
_grad_fn_of = torch._C.TensorBase.__dict__["grad_fn"].__get__
_is_leaf = torch._C.TensorBase.__dict__["is_leaf"].__get__
_retains_grad = torch._C.TensorBase.__dict__["retains_grad"].__get__
_SavedTensor = torch._C._autograd.SavedTensor


class Walk:
    """Walks that answer one question: they share what they know of parameters' names, and how far they may go.

    Args:
        budget: how many objects to look at, in all walks together.
    """

    def __init__(self, budget: int) -> None:
        self.left = budget
        self._shapes: dict[type, Any] = {}
        self._raw_names: dict[type, list[str]] = {}
        self._parameter_names: dict[int, str] = {}
        self._start_over()

    def _start_over(self) -> None:
        self._queue: deque[tuple[Any, str, int, int, str]] = deque()
        self._optimizers: deque[tuple[Any, str, int, int, str]] = deque()  # later: when the parameters' names are known
        self._nodes: deque[tuple[Any, str]] = deque()
        self._seen: dict[int, Any] = {}  # holds what it has seen: an id is not used twice

    def run(self, start: Any, name: str) -> Iterator[Reached]:
        """Yield the buffers that an object keeps alive, the nearest first; a buffer once for each way that leads to it.

        Args:
            start: where to begin.
            name: what to call it, and what the names of the buffers begin with.
        """
        self._start_over()
        with torch._C.DisableTorchFunctionSubclass():
            self._add(start, name, PLAIN, 0, "")
            while self.left > 0 and (self._queue or self._optimizers or self._nodes):
                self.left -= 1
                if self._queue:
                    yield from self._visit(*self._queue.popleft())
                elif self._optimizers:
                    _optimizer(self, *self._optimizers.popleft())
                else:
                    self._visit_node(*self._nodes.popleft())
        self._start_over()

    def _add(self, value: Any, name: str, role: int, depth: int, owner: str) -> None:
        cls = type(value)
        if cls in _LEAVES or depth > _DEPTH:
            return
        shape = self._shapes.get(cls)
        if shape is None:
            shape = self._shapes[cls] = _shape(cls)
        if shape is not _nothing:
            self._queue.append((value, name, role, depth, owner))

    def _visit(self, value: Any, name: str, role: int, depth: int, owner: str) -> Iterator[Reached]:
        shape = self._shapes[type(value)]
        if shape is _tensor:
            buffer = _buffer(value)
            if buffer is not None:
                yield Reached(buffer, name, role, depth, owner)
        if id(value) not in self._seen:
            self._seen[id(value)] = value
            if type(shape) is _Fields:
                shape.expand(self, value, name, role, depth + 1, owner)
            elif shape is _optimizer:
                self._optimizers.append((value, name, role, depth + 1, owner))
            else:
                shape(self, value, name, role, depth + 1, owner)

    def _visit_node(self, node: Any, name: str) -> None:
        """Look at what a node of autograd's graph saved, as it was saved: unpacking it could call a user's hook."""
        if node is None or id(node) in self._seen:
            return
        self._seen[id(node)] = node
        cls = type(node)
        names = self._raw_names.get(cls)
        if names is None:
            names = self._raw_names[cls] = [a for a in dir(cls) if a.startswith("_raw_saved_")]
        for attribute in names:
            saved = getattr(node, attribute)
            for one in saved if isinstance(saved, (list, tuple)) else (saved,):
                if type(one) is _SavedTensor and one.data is not None:
                    self._add(one.data, f"{name} ({cls.__name__})", SAVED, 1, "")
        if torch._C._FunctionBase in _mro(cls):
            for key, value in list(vars(node).items()):
                self._add(value, f"{name} ({cls.__name__}.{key})", SAVED, 1, "")
        for following, _ in node.next_functions:
            if following is not None:
                self._nodes.append((following, name))


# What leads on from each kind of object. All have the same arguments: the walk, the object, its name, role and so on.


def _nothing(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    """Lead nowhere."""


def _tensor(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    node = _grad_fn_of(value)
    if node is not None:
        walk._nodes.append((node, name))
    if _is_leaf(value) or _retains_grad(value):
        grad = _grad_of(value)
        if grad is not None:
            walk._add(grad, f"{name}.grad", GRADIENT, depth, owner)
    attributes = value.__dict__
    for key in list(attributes) if attributes else ():
        walk._add(attributes[key], f"{name}.{key}", PLAIN, depth, "")


def _module(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    parts = object.__getattribute__(value, "__dict__")
    owner = owner or name
    for part in _MODULE_PARTS[:2]:
        for key, tensor in list((parts.get(part) or {}).items()):
            if tensor is not None:
                full = f"{name}.{key}"
                walk._parameter_names.setdefault(id(tensor), full[len(owner) + 1 :])
                walk._add(tensor, full, PARAMETER, depth, owner)
    for key, child in list((parts.get("_modules") or {}).items()):
        walk._add(child, f"{name}.{key}", role, depth - 1, owner)  # models may be deep
    for key, other in list(parts.items()):
        if key not in _MODULE_PARTS:
            walk._add(other, f"{name}.{key}", PLAIN, depth, "")


def _optimizer(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    parts = object.__getattribute__(value, "__dict__")
    position = 0
    for g, group in enumerate(parts.get("param_groups") or ()):
        for k, parameter in enumerate(group.get("params") or ()):
            walk._add(parameter, f"{name}.param_groups[{g}]['params'][{k}]", PARAMETER, depth + 4, name)
            called = walk._parameter_names.get(id(parameter), str(position))
            position += 1
            for key, state in list(((parts.get("state") or {}).get(parameter) or {}).items()):
                walk._add(state, f"{name}.state[{called}].{key}", STATE, depth, name)


def _mapping(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    for key, item in list(dict.items(value)):
        walk._add(item, f"{name}[{_key(key)}]", role, depth, "")


def _sequence(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    for k, item in enumerate(list(islice(_iterator(value), _ITEMS))):
        if type(item) not in _LEAVES:
            walk._add(item, f"{name}[{k}]", role, depth, "")


def _set(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    for item in list((set if set in _mro(type(value)) else frozenset).__iter__(value)):
        walk._add(item, f"an item of {name}", role, depth, "")


def _function(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    for free, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=False):
        walk._add(cell, f"{name}.<closure>.{free}", PLAIN, depth, "")
    for default in value.__defaults__ or ():
        walk._add(default, f"a default of {name}()", PLAIN, depth, "")
    for key, default in list((value.__kwdefaults__ or {}).items()):
        walk._add(default, f"the default of {key} of {name}()", PLAIN, depth, "")
    for key, attribute in list(value.__dict__.items()):
        walk._add(attribute, f"{name}.{key}", PLAIN, depth, "")


def _cell(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    try:
        walk._add(value.cell_contents, name, role, depth, owner)
    except ValueError:  # empty
        return


def _method(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    walk._add(value.__self__, f"{name}.__self__", PLAIN, depth, "")
    walk._add(value.__func__, name, PLAIN, depth, "")


def _generator(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    frame = getattr(value, _GENERATORS[type(value)])
    for key, local in variables(frame).items() if frame is not None else ():
        walk._add(local, f"{name}.<locals>.{key}", PLAIN, depth, "")


def _exception(walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
    _instance_of(type(value)).expand(walk, value, name, role, depth, owner)
    for k, argument in enumerate(value.args):
        walk._add(argument, f"{name}.args[{k}]", PLAIN, depth, "")
    for linked in (value.__cause__, value.__context__):
        if linked is not None:
            walk._add(linked, name, PLAIN, depth, "")
    for frame in frames_of(_traceback_of(value)):
        for key, local in variables(frame).items():
            if local is not value:
                walk._add(local, f"{name}: {frame.f_code.co_name}() -> {key}", PLAIN, depth, "")


class _Fields:
    """Instances with a dictionary, slots, or both."""

    def __init__(self, dictionary: Any, slots: list[tuple[str, Any]]) -> None:
        self._dictionary, self._slots = dictionary, slots

    def expand(self, walk: Walk, value: Any, name: str, role: int, depth: int, owner: str) -> None:
        if self._dictionary is not None:
            for key, item in list(self._dictionary(value).items()):
                walk._add(item, f"{name}.{key}", PLAIN, depth, "")
        for key, slot in self._slots:
            try:
                item = slot(value)
            except AttributeError:  # not set
                continue
            walk._add(item, f"{name}.{key}", PLAIN, depth, "")


_BUILTIN = (
    (torch.Tensor, _tensor), (torch.nn.Module, _module), (torch.optim.Optimizer, _optimizer), (dict, _mapping),
    (list, _sequence), (tuple, _sequence), (deque, _sequence), (set, _set), (frozenset, _set), (BaseException, _exception),
    (FunctionType, _function), (MethodType, _method), (CellType, _cell), *((g, _generator) for g in _GENERATORS),
)  # fmt: skip


def _shape(cls: type) -> Any:
    """Return what leads on from the instances of a class."""
    bases = _mro(cls)
    for base, shape in _BUILTIN:
        if base in bases:
            return shape
    module = _class_dict(cls).get("__module__")
    if type in bases or (type(module) is str and module.partition(".")[0] in _OPAQUE):
        return _nothing
    fields = _instance_of(cls)
    return fields if fields._dictionary is not None or fields._slots else _nothing


def _instance_of(cls: type) -> _Fields:
    dictionary, slots = None, []
    for base in _mro(cls):
        for key, value in list(_class_dict(base).items()):
            if key == "__dict__" and dictionary is None and type(value) in (GetSetDescriptorType, MemberDescriptorType):
                dictionary = value.__get__
            elif type(value) is MemberDescriptorType and not key.startswith("__"):
                slots.append((key, value.__get__))
    return _Fields(dictionary, slots)


def _iterator(value: Any) -> Iterator[Any]:
    return next(base for base in (list, tuple, deque) if base in _mro(type(value))).__iter__(value)


def _key(key: Any) -> str:
    text = repr(key) if type(key) in (str, int, float, bool, type(None)) else "..."
    return text if len(text) <= _KEY else text[: _KEY - 1] + "\u2026"


def _buffer(tensor: torch.Tensor) -> Buffer | None:
    try:
        return getattr(_storage_of(tensor), "buffer", None)
    except (RuntimeError, NotImplementedError):  # a tensor without a storage: sparse, a wrapper of a subclass
        return None


def frames_of(traceback: TracebackType | None) -> list[FrameType]:
    """Return the frames of a traceback, the outermost first."""
    frames = []
    while traceback is not None:
        frames.append(traceback.tb_frame)
        traceback = traceback.tb_next
    return frames


def variables(frame: FrameType) -> dict[str, Any]:
    """Return a copy of a frame's local variables; nothing at module level, where they are globals."""
    if not frame.f_code.co_flags & inspect.CO_OPTIMIZED:
        return {}
    found = frame.f_locals
    copy = dict(found)
    # Until Python 3.13 the frame keeps the dictionary that it hands out, and so every value in it: emptied again, unless
    # somebody else has it (`locals()`) or a debugger is going to write it back.
    if type(found) is dict and sys.gettrace() is None and sys.getrefcount(found) == 3:
        found.clear()
    return copy


def globals_of(function: Any) -> Iterator[tuple[str, Any]]:
    """Yield the global variables that a Python function's code names, with those of the functions of its file among them."""
    seen: set[int] = set()
    waiting = [function]
    while waiting:
        function = waiting.pop()
        function = function.__func__ if type(function) is MethodType else function
        if type(function) is not FunctionType or id(function) in seen:
            continue
        seen.add(id(function))
        for name in _names(function.__code__):
            if name in function.__globals__:
                value = function.__globals__[name]
                if type(value) is FunctionType and value.__module__ == function.__module__:
                    waiting.append(value)
                yield name, value
        for cell in function.__closure__ or ():
            with contextlib.suppress(ValueError):  # empty
                waiting.append(cell.cell_contents)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if type(constant) is CodeType:
            yield from _names(constant)
