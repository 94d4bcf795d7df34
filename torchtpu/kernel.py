"""Kernels: what PyTorch's dispatcher calls for one ATen overload.

A call is reduced to a key (metadata of its tensors, static arguments); the key finds the plan; the eager mode runs or
records it. Ops of one or two tensors have a short way through that does nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from torchtpu import fallback, random
from torchtpu.buffer import Buffer, new_tensor
from torchtpu.modes import state
from torchtpu.ops.registry import Rule
from torchtpu.plan import Plan, Planner
from torchtpu.precision import DTYPES as _WITH_PRECISION, current as _precision
from torchtpu.schema import Signature

_kernels: list[Kernel] = []


class Kernel:
    """One overload: its schema, its rule, and the plans of the signatures seen so far."""

    def __init__(self, op: torch._ops.OpOverload, rule: Rule | None) -> None:
        self.op = op
        self.rule = rule
        self.signature = Signature(op)
        self.name = self.signature.name
        self.plans: dict[Any, Plan | None] = {}  # None: runs on the CPU
        self._other_plans: dict[Any, Plan | None] = {}
        self._planner = Planner(self.signature, rule)
        self._mutates = bool(self.signature.mutated or (rule is not None and rule.writes))
        self._random = rule is not None and rule.random
        self._precision = rule is not None and rule.precision
        self._each = rule is not None and rule.each
        self._dynamic = [self._number_handling(k) for k in range(len(self.signature.names))]
        _kernels.append(self)

    def _number_handling(self, k: int) -> str:
        """How a Python number in argument k enters the key: by `type`, by `value`, or `unit`: by value if 0 or 1."""
        if self.rule is not None and self.signature.names[k] in self.rule.unit:
            return "unit"
        return "type" if self.signature.is_dynamic(self.rule, k, 2.0) else "value"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the op."""
        call = Call()
        for k, value in enumerate(args):
            self._add(call, k, value)
        for name, value in kwargs.items():
            k = self.signature.names.index(name)
            call.key.append(k)
            self._add(call, k, value)
        tensors, inputs = call.tensors, call.buffers
        aliases: Sequence[int] = range(len(tensors))
        if self._mutates and len(inputs) > 1:
            aliases = _aliases(inputs)
            call.key.append(aliases)
        if self._random:
            call.numbers += random.draw(call.generator)
        # PyTorch tells nobody when its precision changes. So ops with products ask, and none of those takes a fast entry.
        if self._precision and (self._each or tensors[0].dtype in _WITH_PRECISION):
            call.key.append(_precision())
        key = tuple(call.key)
        try:
            plan = self.plans[key]
        except KeyError:
            plan = self.plans[key] = self._plan(args, kwargs, aliases)
        if plan is None:
            return fallback.run(self.signature, args, kwargs)
        if plan.resizes:
            for position, size in plan.resizes:
                tensors[position].resize_(size)
            return self(*args, **kwargs)
        if not plan.all_needed:
            inputs = call.buffers = [inputs[n] for n in plan.needs]
        return commit(plan, tensors, state.execute(plan, inputs, call.numbers))

    def _add(self, call: Call, k: int, value: Any) -> None:
        """Put one argument into the key and the lists."""
        if isinstance(value, torch.Tensor):
            buffer = getattr(value.untyped_storage(), "buffer", None)
            if buffer is not None:
                call.tensors.append(value)
                call.buffers.append(buffer)
                call.key.append((value.dtype, value.shape, value.stride(), value.storage_offset(), buffer.layout))
            elif value.dim() == 0 and value.device.type == "cpu":
                call.key.append((value.dtype, "host"))
                call.numbers.append(value.item())
            else:
                raise mixed_devices(self.name, value)
        elif value is None:
            call.key.append(None)
        elif isinstance(value, (bool, int, float, complex)):
            handling = self._dynamic[k]
            if handling == "type" or (handling == "unit" and value != 0 and value != 1):
                call.key.append(type(value))
                call.numbers.append(value)
            else:
                call.key.append((type(value), value))
        elif isinstance(value, (list, tuple)):
            call.key.append(len(value))
            for item in value:
                self._add(call, k, item)
        elif isinstance(value, torch.Generator):
            call.generator = value
        else:
            call.key.append(value)

    def _plan(self, args: Sequence[Any], kwargs: dict[str, Any], aliases: Sequence[int]) -> Plan | None:
        try:
            return self._planner.plan(args, kwargs, aliases)
        except NotImplementedError as error:
            fallback.check(self.name, error)
            return None
        except AssertionError as error:
            # Some of torch's meta kernels assert what its CPU kernels check.
            raise RuntimeError(f"{self.name}: {error}") from None
        except Exception as error:
            # The user's line first: our frames and torch's meta kernels say nothing about the mistake.
            raise error.with_traceback(None) from None


def swap_plans() -> None:
    """Change between the plans made with excess precision and those without. The fast entries hold `plans`, and ask nobody."""
    for kernel in _kernels:
        plans = dict(kernel.plans)
        kernel.plans.clear()
        kernel.plans.update(kernel._other_plans)
        kernel._other_plans = plans


class Call:
    """The parts of one call."""

    __slots__ = ("key", "tensors", "buffers", "numbers", "generator")

    def __init__(self) -> None:
        self.key: list[Any] = []
        self.tensors: list[torch.Tensor] = []
        self.buffers: list[Buffer] = []
        self.numbers: list[Any] = []
        self.generator: torch.Generator | None = None


def commit(plan: Plan, tensors: Sequence[torch.Tensor], results: list[Buffer]) -> Any:
    """Make the new tensors, give the written storages their new buffers, and return what the op returns."""
    new = [new_tensor(spec, buffer) for spec, buffer in zip(plan.specs, results, strict=False)]
    for position, buffer in zip(plan.writes, results[len(new) :], strict=True):
        tensors[position].untyped_storage().buffer = buffer
    return plan.finish(tensors, new)


def _aliases(buffers: Sequence[Buffer]) -> tuple[int, ...]:
    """For each buffer, the first position that holds the same one."""
    first: dict[int, int] = {}
    return tuple(first.setdefault(id(b), k) for k, b in enumerate(buffers))


def mixed_devices(name: str, stray: torch.Tensor) -> RuntimeError:
    """Build torch's own error for an op on two devices."""
    return RuntimeError(
        f"Expected all tensors to be on the same device, but found at least two devices, tpu:0 and {stray.device}! "
        f"({name}: move the tensor of shape {tuple(stray.shape)} with .to('tpu'))"
    )


def unary(kernel: Kernel) -> Callable[..., Any]:
    """Return the entry of an op that is nearly always called with one tensor and nothing else."""
    plans = kernel.plans

    def entry(x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return kernel(x, *args, **kwargs)
        try:
            b = x.untyped_storage().buffer
            plan = plans[((x.dtype, x.shape, x.stride(), x.storage_offset(), b.layout),)]
            spec = plan.specs[0]
        except (AttributeError, KeyError):
            return kernel(x)
        return new_tensor(spec, state.execute(plan, [b], ())[0])

    return entry


def binary(kernel: Kernel) -> Callable[..., Any]:
    """Return the entry of an op that is nearly always called with two tensors and nothing else."""
    plans = kernel.plans

    def entry(x: torch.Tensor, y: Any, *args: Any, **kwargs: Any) -> Any:
        if args or kwargs:
            return kernel(x, y, *args, **kwargs)
        try:
            bx = x.untyped_storage().buffer
            by = y.untyped_storage().buffer
            plan = plans[
                (x.dtype, x.shape, x.stride(), x.storage_offset(), bx.layout),
                (y.dtype, y.shape, y.stride(), y.storage_offset(), by.layout),
            ]
            spec = plan.specs[0]
        except (AttributeError, KeyError):
            return kernel(x, y)
        return new_tensor(spec, state.execute(plan, [bx, by], ())[0])

    return entry


def entry(kernel: Kernel) -> Callable[..., Any]:
    """Return the fastest entry that fits the schema: functional, one new tensor, no number inputs of its own."""
    s = kernel.signature
    plain = (
        not kernel._mutates and not kernel._random and not kernel._precision and len(s._returned) == 1 and not s.returns_list
    )
    if plain and s.kinds[:2] == ["T", "T"] and not s.op._schema.arguments[1].has_default_value():
        return binary(kernel)
    if plain and s.kinds[:1] == ["T"]:
        return unary(kernel)
    return kernel
