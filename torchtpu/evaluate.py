"""From an op's rule (or torch's decomposition of it) to a function over jax arrays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND, elementwise_dtypes

from torchtpu.dtypes import spoken, xla_dtype
from torchtpu.ops.registry import Rule
from torchtpu.schema import Signature

if TYPE_CHECKING:
    from torchtpu.plan import Arguments

# From the tensors' values (read on demand, by position) and the numbers to the results, in order.
Evaluate = Callable[[Any, Sequence[Any]], Iterable[Any]]

# Numbers in these positions take part in type promotion; others (alpha, eps, negative_slope) are only cast.
_PROMOTING = frozenset({"self", "other", "min", "max", "exponent", "scalar", "scalars"})


@dataclass(frozen=True, slots=True)
class TensorArg:
    """A placeholder for the tensor at `index` among an op's tensors."""

    index: int


@dataclass(frozen=True, slots=True)
class NumberArg:
    """A placeholder for the number at `index` among an op's program inputs."""

    index: int


def fill_places(place: Any, tensors: Sequence[Any], numbers: Sequence[Any]) -> Any:
    """Replace the placeholders of one argument by their tensors and numbers."""
    if isinstance(place, TensorArg):
        return tensors[place.index]
    if isinstance(place, NumberArg):
        return numbers[place.index]
    return [fill_places(p, tensors, numbers) for p in place] if isinstance(place, list) else place


def cast(value: Any, dtype: np.dtype) -> Any:
    """Inside a trace: convert as PyTorch does (complex to real drops the imaginary part)."""
    if value.dtype == dtype:
        return value
    if value.dtype.kind == "c" and dtype.kind != "c":
        value = value.real if dtype.kind != "b" else value != 0
    if dtype.kind in "iu" and dtype.itemsize < 4 and value.dtype.kind not in "iub":
        value = value.astype(np.int32)  # -1.0 becomes 255: XLA's own conversion saturates
    return value.astype(dtype)


def evaluator(
    signature: Signature, rule: Rule | None, arguments: Arguments, metas: Sequence[Any], results: Any
) -> tuple[Evaluate, str]:
    """Return the function from (values of the tensors, numbers) to the results, and its route (native or decomposed).

    Sets `arguments.wires`, the dtype in which each number travels.
    """
    if rule is None:
        from torchtpu.decompose import decomposition

        arguments.wires = [wire_of(n, [m.dtype for m in arguments.metas]) for n in arguments.numbers]
        body = decomposition(signature, arguments, metas)
        return (lambda values, numbers: body(arguments.fill(values, numbers))), "decomposed"

    elements = _elements(rule, metas) if rule.each else [metas]
    dtypes = [computation_dtype(rule, signature, e) if rule.promotion else None for e in elements]
    shared = [_narrow(rule, signature, e) if rule.promotion else None for e in elements]
    computed = [d for d in dtypes if d is not None] or [m.dtype for m in arguments.metas]
    if rule.wide:
        computed = [torch.float64]
    arguments.wires = ["i8" if k in arguments.integers else wire_of(n, computed) for k, n in enumerate(arguments.numbers)]
    if rule.random:
        arguments.wires += ["u4"] * 4
    host = {k: xla_dtype(n.dtype) for k, n in enumerate(arguments.numbers) if isinstance(n, torch.Tensor)}
    returned = results if signature.op._schema.returns else [metas[k] for k in signature.mutated]
    outs = [r for r in _flat(returned) if isinstance(r, torch.Tensor)]

    def evaluate(values: Any, numbers: Sequence[Any]) -> Iterator[Any]:
        numbers = [cast(n, host[k]) if k in host else n for k, n in enumerate(numbers)]
        key = random_key(numbers[-4:]) if rule.random else None
        places = _elements(rule, arguments.template) if rule.each else [arguments.template]
        for k, (element, dtype, narrow) in enumerate(zip(places, dtypes, shared, strict=True)):
            args = [fill_places(p, values, numbers) for p in element]
            if narrow is not None:
                args = [cast(a, narrow) if getattr(a, "ndim", 0) and a.dtype.kind in "iu" else a for a in args]
            yield from call(rule, signature, args, outs[k : k + 1] if rule.each else outs, key, dtype)

    return evaluate, "native"


def call(
    rule: Rule, signature: Signature, args: Sequence[Any], outs: Sequence[torch.Tensor], key: Any, dtype: torch.dtype | None
) -> list[Any]:
    """Inside a trace: apply a rule to arguments in schema order and return its results as a list."""
    if dtype is not None:
        args = [_computed(rule, signature, k, a, xla_dtype(dtype)) for k, a in enumerate(args)]
    given = [a for k, a in enumerate(args) if signature.kinds[k] != "G" and k not in signature.outs]
    options: dict[str, Any] = {}
    if rule.meta:
        options["out"] = outs
    if rule.random:
        options["key"] = key
    result = rule.fn(*given, **options)
    return list(result) if isinstance(result, (tuple, list)) else [result]


def _computed(rule: Rule, signature: Signature, position: int, value: Any, dtype: np.dtype) -> Any:
    """Return an argument of an elementwise rule in its computation dtype (inside decompositions, numbers are Python's)."""
    if hasattr(value, "dtype") and not isinstance(value, torch.dtype):
        return cast(value, dtype)
    if isinstance(value, (bool, int, float, complex)) and signature.is_dynamic(rule, position, value):
        return cast(np.asarray(value), dtype)
    return value


def _flat(values: Any) -> list[Any]:
    return [v for value in values for v in _flat(value)] if isinstance(values, (tuple, list)) else [values]


def _elements(rule: Rule, args: Sequence[Any]) -> list[list[Any]]:
    """Split the list arguments of a foreach op into the arguments of each element."""
    count = next(len(a) for a in args if isinstance(a, (list, tuple)))
    return [[a[i] if isinstance(a, (list, tuple)) else a for a in args] for i in range(count)]


def computation_dtype(rule: Rule, signature: Signature, metas: Sequence[Any]) -> torch.dtype:
    """Return the dtype in which PyTorch computes an elementwise op: float32 for bfloat16 and float16."""
    return _promoted(rule, signature, metas)[0]


def _narrow(rule: Rule, signature: Signature, metas: Sequence[Any]) -> np.dtype | None:
    """Return the 16-bit dtype to which PyTorch rounds an elementwise op's integers before it computes in float32."""
    common = _promoted(rule, signature, metas, KIND.NO_OPMATH)[0]
    return xla_dtype(common) if common in (torch.bfloat16, torch.float16) else None


def check_in_place(rule: Rule, signature: Signature, metas: Sequence[Any]) -> None:
    """Check that an in-place elementwise op's result fits the tensor; not all of torch's meta kernels do.

    Raises:
        RuntimeError: with PyTorch's own words.
    """
    result, kept = _promoted(rule, signature, metas)[1], metas[signature.mutated[0]].dtype
    if not torch.can_cast(result, kept):
        raise RuntimeError(f"result type {spoken(result)} can't be cast to the desired output type {spoken(kept)}")


def _promoted(
    rule: Rule, signature: Signature, metas: Sequence[Any], kind: KIND | None = None
) -> tuple[torch.dtype, torch.dtype]:
    """Return the dtypes in which PyTorch computes an elementwise op, and of its result."""
    assert rule.promotion is not None
    promoting: list[Any] = []
    for k, value in enumerate(metas):
        if k in signature.outs:
            continue
        if isinstance(value, torch.Tensor):
            promoting.append(value)
        elif isinstance(value, (list, tuple)):
            promoting += [v for v in value if isinstance(v, torch.Tensor)]
        elif isinstance(value, (bool, int, float, complex)) and (
            signature.kinds[k] == "T" or (signature.kinds[k] in "NM" and signature.names[k] in _PROMOTING)
        ):
            promoting.append(value)
    return elementwise_dtypes(*promoting, type_promotion_kind=kind or rule.promotion.value)


def wire_of(number: Any, dtypes: Sequence[torch.dtype]) -> str:
    """Return the numpy dtype in which a number travels into a program whose ops compute in `dtypes`."""
    wide = any(d in (torch.float64, torch.complex128) for d in dtypes)
    if isinstance(number, torch.Tensor):
        d = number.dtype
        kind = "c" if d.is_complex else "f" if d.is_floating_point else "i"
        wide = wide or d in (torch.float64, torch.complex128)
    else:
        kind = "c" if isinstance(number, complex) else "f" if isinstance(number, float) else "i"
        if kind == "i" and any(d.is_floating_point or d.is_complex for d in dtypes):
            kind = "f"
    return {"c": "c16" if wide else "c8", "f": "f8" if wide else "f4", "i": "i8"}[kind]


def random_key(words: Sequence[Any]) -> Any:
    """Inside a trace: the state of a random stream from a generator's (seed low, seed high, offset low, offset high).

    It is (key, counter) for XLA's Threefry: the seed is the key, the offset the counter's upper half, so that the draws of
    one offset are apart from those of the next.
    """
    import jax.numpy as jnp

    seed_low, seed_high, offset_low, offset_high = words
    return jnp.stack([seed_low, seed_high ^ offset_high, jnp.zeros_like(offset_low), offset_low])
