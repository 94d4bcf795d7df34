"""Changes of a training step that make it need less memory: made for the time of one recording, and undone.

The user's modules stay the objects that they are; what a change does to parameters and states, `capture` puts back.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

from torchtpu.errors import did_you_mean
from torchtpu.fit.result import AS_IT_IS
from torchtpu.reach import Walk, globals_of

_BUDGET = 1_000_000  # objects to look at
_NAMED = 3  # modules that a detail names


class _Search(Walk):
    """Finds the outermost modules, and the optimizers, that a function leads to."""

    def __init__(self) -> None:
        super().__init__(_BUDGET)
        self.modules: dict[str, nn.Module] = {}
        self.optimizers: list[torch.optim.Optimizer] = []

    def _add(self, value: Any, name: str, role: int, depth: int, owner: str) -> None:
        if isinstance(value, nn.Module):
            if all(value is not m for m in self.modules.values()):
                self.modules[name.rpartition("<closure>.")[2]] = value
            return
        if isinstance(value, torch.optim.Optimizer) and all(value is not o for o in self.optimizers):
            self.optimizers.append(value)
        super()._add(value, name, role, depth, owner)


@dataclass(frozen=True)
class Parts:
    """What a step works with: its modules by name, without those inside others, and its optimizers."""

    modules: dict[str, nn.Module] = field(default_factory=dict)
    optimizers: tuple[torch.optim.Optimizer, ...] = ()

    @classmethod
    def of(cls, step: Callable[..., Any]) -> Parts:
        """Follow the names in a step's code, its closure and its attributes."""
        search = _Search()
        for name, value in [*globals_of(step), ("step", step)]:
            for _ in search.run(value, name):
                pass
        # A loss or a part of a model may be reached before the model itself.
        inside = {id(part) for module in search.modules.values() for part in list(module.modules())[1:]}
        roots = {name: m for name, m in search.modules.items() if id(m) not in inside and any(True for _ in m.parameters())}
        return cls(roots, tuple(search.optimizers))


@dataclass(frozen=True)
class Change:
    """A change of a step.

    Attributes:
        name: `as it is`, `checkpoint`, `bfloat16`, or several joined by `+`.
        detail: what it changes.
        scopes: contexts in which the step is recorded.
    """

    name: str
    detail: str = ""
    scopes: tuple[Callable[[], contextlib.AbstractContextManager[Any]], ...] = ()

    def of(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Return the step with the change."""
        if not self.scopes:
            return step

        def changed(*args: Any, **kwargs: Any) -> Any:
            with contextlib.ExitStack() as stack:
                for scope in self.scopes:
                    stack.enter_context(scope())
                return step(*args, **kwargs)

        changed.__name__ = getattr(step, "__name__", "step")
        return changed


def change(name: str, parts: Parts) -> Change:
    """Return a change by its name.

    Raises:
        ValueError: there is nothing that it could change, in words.
    """
    if name == AS_IT_IS:
        return Change(name)
    single = [_KINDS[kind](parts) for kind in name.split("+")]
    return Change(name, ", ".join(detail for detail, _ in single), tuple(scope for _, scope in single))


def check(names: tuple[str, ...]) -> None:
    """Raise a ValueError if one of the names is no change."""
    for kind in (kind for name in names for kind in name.split("+")):
        if kind not in _KINDS:
            raise ValueError(f"no change is called {kind!r}: there are {', '.join(_KINDS)}.{did_you_mean(kind, _KINDS)}")


def _checkpoint(parts: Parts) -> tuple[str, Callable[[], Any]]:
    blocks = {name: m for root, module in parts.modules.items() for name, m in _blocks(root, module)}
    if not blocks:
        raise ValueError(
            "the step's modules have no ModuleList and no Sequential of three or more, whose parts could be checkpointed"
            if parts.modules
            else _NO_MODULES
        )
    names = [f"{name} in {_segments(m)} segments" if isinstance(m, nn.Sequential) else name for name, m in blocks.items()]
    detail = f"torch.utils.checkpoint on {_some(names)}"
    return detail, lambda: _checkpointed(list(blocks.values()))


def _blocks(name: str, module: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """Yield what repeats in a model: the items of its outermost lists, else its outermost Sequentials as a whole."""
    lists = list(_outermost(name, module, lambda m: isinstance(m, nn.ModuleList) and len(m) > 0))
    if lists:
        for path, items in lists:
            yield from ((f"{path}.{k}", item) for k, item in enumerate(items))
    else:
        yield from _outermost(name, module, lambda m: isinstance(m, nn.Sequential) and len(m) > 2)


def _outermost(name: str, module: nn.Module, wanted: Callable[[nn.Module], bool]) -> Iterator[tuple[str, nn.Module]]:
    if wanted(module):
        yield name, module
        return
    for key, child in module.named_children():
        yield from _outermost(f"{name}.{key}", child, wanted)


def _segments(module: nn.Sequential) -> int:
    return math.isqrt(len(module))


@contextlib.contextmanager
def _checkpointed(modules: list[nn.Module]) -> Iterator[None]:
    for module in modules:
        module.forward = _without_activations(module, module.forward)
    try:
        yield
    finally:
        for module in modules:
            del module.forward


def _without_activations(module: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    if isinstance(module, nn.Sequential):
        # The class's own forward, under the module: `checkpoint_sequential` calls the parts, not the whole.
        return lambda x: checkpoint_sequential(module, _segments(module), x, use_reentrant=False)
    return lambda *args, **kwargs: checkpoint(forward, *args, use_reentrant=False, **kwargs)


def _bfloat16(parts: Parts) -> tuple[str, Callable[[], Any]]:
    tensors = [t for module in parts.modules.values() for t in (*module.parameters(), *module.buffers())]
    wide = [t for t in tensors if t.is_floating_point() and t.itemsize > 2]
    if not wide:
        raise ValueError("the step's modules have no parameters of more than 16 bits" if parts.modules else _NO_MODULES)
    states = " and their optimizer's state" if parts.optimizers else ""
    detail = f"{_some(list(parts.modules))}.to(torch.bfloat16){states}; floating inputs are cast"
    # Made before the step is recorded, so that they are its inputs. An empty tensor takes no memory until it is read.
    halves = {id(t): torch.empty(t.shape, dtype=torch.bfloat16, device="tpu") for t in wide}
    return detail, lambda: _halved(parts, wide, halves)


@contextlib.contextmanager
def _halved(parts: Parts, wide: list[torch.Tensor], halves: dict[int, torch.Tensor]) -> Iterator[None]:
    """Give parameters, buffers, gradients and states 16 bits. `capture` puts the old ones back."""
    for tensor in wide:
        had_gradient, tensor.grad = tensor.grad is not None, None
        tensor.data = halves[id(tensor)]
        if had_gradient:
            tensor.grad = torch.empty_like(tensor)
    for state in (s for optimizer in parts.optimizers for s in optimizer.state.values()):
        for key, value in state.items():
            if isinstance(value, torch.Tensor) and value.dim() and value.is_floating_point():
                state[key] = torch.empty_like(value, dtype=torch.bfloat16)
    hooks = [m.register_forward_pre_hook(_cast, with_kwargs=True) for m in parts.modules.values()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def _cast(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def half(value: Any) -> Any:
        return value.bfloat16() if isinstance(value, torch.Tensor) and value.is_floating_point() else value

    return tuple(map(half, args)), {name: half(value) for name, value in kwargs.items()}


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more


_NO_MODULES = "the names in the step's code lead to no module with parameters"
_KINDS: dict[str, Callable[[Parts], tuple[str, Callable[[], Any]]]] = {"checkpoint": _checkpoint, "bfloat16": _bfloat16}
