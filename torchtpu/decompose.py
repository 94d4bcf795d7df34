"""Operators without a rule: torch's own decomposition, traced once and lowered inside the same program."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch.fx.experimental.proxy_tensor import make_fx

from torchtpu.dtypes import xla_dtype
from torchtpu.evaluate import NumberArg, TensorArg, call, cast, computation_dtype
from torchtpu.ops.registry import RULES
from torchtpu.schema import Signature, functional_of

if TYPE_CHECKING:
    from torchtpu.plan import Arguments


def decomposition(signature: Signature, arguments: Arguments, metas: Sequence[Any]) -> Callable[[Sequence[Any]], list[Any]]:
    """Trace torch's decomposition of an op on meta tensors and return it as a function over jax arrays.

    Raises:
        NotImplementedError: torch has none, it has no meta kernels, or an op of it has no rule.
    """
    from torch._decomp import decomposition_table

    name = signature.name
    functional = functional_of(signature.op) if signature.mutated else signature.op
    table = decomposition_table.get(functional) if functional is not None else None
    if table is None:
        raise NotImplementedError(f"{name} has neither a lowering to XLA nor a usable decomposition")
    target = Signature(functional)
    flat: list[torch.Tensor] = list(arguments.metas)
    host = {k: n for k, n in enumerate(arguments.numbers) if isinstance(n, torch.Tensor)}

    def rebuild(place: Any, tensors: Sequence[torch.Tensor]) -> Any:
        if isinstance(place, TensorArg):
            return tensors[place.index]
        if isinstance(place, NumberArg):
            return tensors[len(flat) + list(host).index(place.index)]
        return [rebuild(p, tensors) for p in place] if isinstance(place, list) else place

    def traced(*tensors: torch.Tensor) -> Any:
        given = [rebuild(p, tensors) for k, p in enumerate(arguments.template) if k not in signature.outs]
        positional, named = target.split(given)
        return table(*positional, **named)

    inputs = flat + [torch.empty((), dtype=n.dtype, device="meta") for n in host.values()]
    try:
        graph = make_fx(torch.func.functionalize(traced, remove="mutations"))(*inputs)
    except NotImplementedError:
        raise
    except Exception as error:
        raise NotImplementedError(f"{name}: torch's decomposition cannot be traced: {error}") from error
    lowering = _Lowering(graph)

    def body(args: Sequence[Any]) -> list[Any]:
        tensors: list[Any] = [None] * len(inputs)

        def collect(place: Any, value: Any) -> None:
            if isinstance(place, TensorArg):
                tensors[place.index] = value
            elif isinstance(place, NumberArg):
                k = list(host).index(place.index)
                tensors[len(flat) + k] = cast(value, xla_dtype(host[place.index].dtype))
            elif isinstance(place, list):
                for p, v in zip(place, value, strict=True):
                    collect(p, v)

        for place, value in zip(arguments.template, args, strict=True):
            collect(place, value)
        return lowering.run(tensors, inputs)

    return body


class _Lowering:
    """Runs an FX graph of ATen calls on jax arrays, beside meta tensors that give dtypes and shapes."""

    def __init__(self, graph: torch.fx.GraphModule) -> None:
        self.nodes = list(graph.graph.nodes)
        self.constants = graph
        for node in self.nodes:
            if node.op == "call_function" and isinstance(node.target, torch._ops.OpOverload):
                name = Signature(node.target).name
                if name not in RULES:
                    raise NotImplementedError(f"{name}, which the decomposition uses, has no lowering to XLA")

    def run(self, arrays: Sequence[Any], metas: Sequence[torch.Tensor]) -> list[Any]:
        env: dict[torch.fx.Node, tuple[Any, Any]] = {}
        inputs = iter(zip(arrays, metas, strict=True))
        for node in self.nodes:
            if node.op == "placeholder":
                env[node] = next(inputs)
            elif node.op == "call_function":
                values = torch.fx.map_arg(node.args, lambda n: env[n][0])
                kwvalues = torch.fx.map_arg(node.kwargs, lambda n: env[n][0])
                shadow = torch.fx.map_arg(node.args, lambda n: env[n][1])
                kwshadow = torch.fx.map_arg(node.kwargs, lambda n: env[n][1])
                env[node] = self._call(node.target, values, kwvalues, shadow, kwshadow)
            elif node.op == "get_attr":
                constant = getattr(self.constants, node.target)
                env[node] = (constant.numpy(), constant.to("meta"))
            elif node.op == "output":
                results = node.args[0] if isinstance(node.args[0], (tuple, list)) else (node.args[0],)
                return [env[r][0] if r is not None else None for r in results]
        raise AssertionError("an FX graph without output")

    def _call(self, target: Any, args: tuple, kwargs: dict, metas: tuple, kwmetas: dict) -> tuple[Any, Any]:
        if not isinstance(target, torch._ops.OpOverload):
            return target(*args, **kwargs), target(*metas, **kwmetas)  # operator.getitem
        signature = Signature(target)
        rule = RULES[signature.name]
        meta_args = signature.bind(metas, kwmetas)
        result = target(*metas, **kwmetas)
        outs = list(result) if isinstance(result, (tuple, list)) else [result]
        dtype = computation_dtype(rule, signature, meta_args) if rule.promotion else None
        values = call(rule, signature, _arrays(signature.bind(args, kwargs)), outs, None, dtype)
        values = [
            cast(v, xla_dtype(o.dtype)) if isinstance(o, torch.Tensor) else None for v, o in zip(values, outs, strict=True)
        ]
        return (values if isinstance(result, (tuple, list)) else values[0]), result


def _arrays(args: list[Any]) -> list[Any]:
    return args
