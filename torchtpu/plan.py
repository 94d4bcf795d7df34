"""Plans: what one op does for one signature (metadata of its tensors, static arguments), worked out once.

torch decides metadata, jax computes values: the op runs on meta tensors, which gives output shapes, strides and dtypes
or raises the error the user sees; then its rule, or torch's decomposition, becomes a function over the storages' arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from torchtpu import client, errors, hbm
from torchtpu.buffer import TensorSpec
from torchtpu.dtypes import xla_dtype
from torchtpu.evaluate import NumberArg, TensorArg, cast, check_in_place, evaluator, fill_places
from torchtpu.layout import Layout, View, dense_order
from torchtpu.ops.registry import Rule
from torchtpu.precision import DTYPES as WITH_PRECISION, Setting, current, excess_allowed, lowering
from torchtpu.program import Node, NodeInfo, Program, Wires
from torchtpu.schema import Signature


@dataclass(frozen=True, slots=True)
class Replay:
    """How to call an op again on other tensors: its schema, its arguments with placeholders, and what it writes."""

    signature: Signature
    template: list[Any]
    written: tuple[int, ...]

    def run(self, tensors: Sequence[torch.Tensor], numbers: Sequence[Any]) -> Any:
        """Call the op on the CPU with these tensors and numbers in the placeholders."""
        places = [_CPU if isinstance(p, torch.device) else p for p in self.template]
        positional, named = self.signature.split([fill_places(p, tensors, numbers) for p in places])
        return self.signature.op(*positional, **named)


@dataclass(frozen=True, slots=True)
class PlanKey:
    """What tells a plan from the others of its op, beside the tensors' views: for saying why it was compiled.

    Attributes:
        names, template: the schema's arguments, with placeholders for tensors and dynamic numbers.
        types: of the numbers.
        aliases: for each tensor argument, the first one with the same storage.
        precision: of its float32 products; None where it has none.
        excess: XLA may leave out roundings to 16 bits.
    """

    names: Sequence[str]
    template: list[Any]
    types: tuple[str, ...]
    aliases: tuple[int, ...]
    precision: Setting | None
    excess: bool


_META = torch.device("meta")
_CPU = torch.device("cpu")


class Plan:
    """One op at one signature.

    Attributes:
        name: `aten::add.Tensor`.
        views: the window of each tensor argument.
        needs: positions, among the tensor arguments, of the arrays that are inputs.
        wires: wire dtype of each number.
        outputs: layout of each result array: new tensors first, then rewritten storages.
        specs: the new tensors.
        writes: positions of the tensor arguments whose storage gets a new array.
        resizes: out= tensors that must be resized first: (position, size).
        finish: builds what the kernel returns from (tensors, new tensors).
        donatable: positions in `needs` whose array may be reused by an output.
        bounds: (position, lowest, highest) of each tensor argument that holds indices, for debug mode's check.
        replay: how to run the op on the CPU, for debug mode's comparison.
        product: it is a matrix product or a convolution.
        pointwise: each element of its results comes from the same element of its inputs.
        key: what it was made for.
        program, donating, last: the op's own programs, and the one chosen for the latest launch.
    """

    __slots__ = (
        "name", "scope", "views", "needs", "all_needed", "wires", "packing", "outputs", "specs", "writes", "resizes", "finish",
        "donatable", "bounds", "replay", "_body", "program", "donating", "last", "route", "product", "pointwise", "key",
        "nbytes",
    )  # fmt: skip

    def __init__(
        self,
        name: str,
        views: Sequence[View],
        needs: Sequence[int],
        wires: Sequence[str],
        specs: Sequence[TensorSpec],
        writes: Sequence[int],
        body: Callable[[list[Any], Sequence[Any], bool], list[Any]],
        finish: Callable[..., Any],
        resizes: Sequence[tuple[int, tuple[int, ...]]] = (),
        route: str = "native",
        bounds: Sequence[tuple[int, int, int]] = (),
        replay: Replay | None = None,
        product: bool = False,
        pointwise: bool = False,
        key: PlanKey | None = None,
    ) -> None:
        self.name, self.views, self.needs, self.wires = name, tuple(views), tuple(needs), tuple(wires)
        self.scope = name.removeprefix("aten::")
        self.all_needed = self.needs == tuple(range(len(self.views)))
        self.packing = Wires(self.wires)
        self.specs, self.writes, self.resizes, self.finish = tuple(specs), tuple(writes), tuple(resizes), finish
        self.outputs = tuple(s.layout for s in specs) + tuple(written_layout(self.views[w]) for w in writes)
        self.nbytes = sum(o.nbytes for o in self.outputs)
        self.donatable = tuple(
            p for p, n in enumerate(self.needs) if n in self.writes and written_layout(self.views[n]) is self.views[n].layout
        )
        self._body = body
        self.program: Program | None = None
        self.donating: Program | None = None
        self.last: Program | None = None
        self.route = route
        self.product, self.pointwise = product, pointwise
        self.key = key
        self.bounds = tuple(bounds)
        self.replay = replay

    def lower(self, arrays: Sequence[Any], numbers: Sequence[Any], alone: bool = False) -> list[Any]:
        """Inside a trace: from the arrays of `needs` to those of `outputs`. `alone`: no other op is in the program."""
        stored: list[Any] = [None] * len(self.views)
        for position, array in zip(self.needs, arrays, strict=True):
            stored[position] = array
        with lowering(self.key.precision if self.key is not None else None):
            return self._body(stored, numbers, alone)

    def info(self) -> NodeInfo:
        """Describe the op for reports."""
        shapes = tuple(f"{str(v.dtype).removeprefix('torch.')}[{','.join(map(str, v.size))}]" for v in self.views)
        return NodeInfo(self.name, shapes, self.outputs)

    def compile(self, donate: tuple[int, ...] = ()) -> Program:
        """Compile the op alone."""

        def run(*arguments: Any) -> tuple[Any, ...]:
            count = len(self.needs)
            return tuple(self.lower(arguments[:count], self.packing.unpack(arguments[count:]), alone=True))

        inputs = tuple(self.views[n].layout for n in self.needs)
        name = "aten_" + self.scope.replace(".", "_")
        node = Node(self, tuple(-1 - p for p in range(len(inputs))))
        results = tuple(range(len(self.outputs)))
        return Program(name, (self.info(),), run, inputs, self.packing, donate, (node,), results)


def written_layout(view: View) -> Layout:
    """Layout of a storage's array after a write through `view`."""
    return storage_spec(view.size, view.stride, view.dtype).layout if view.covers else view.layout


@lru_cache(maxsize=65536)
def storage_spec(size: tuple[int, ...], stride: tuple[int, ...], dtype: torch.dtype) -> TensorSpec:
    """Describe a new tensor: dense ones are stored in memory order, others as the flat span that they address."""
    xla = xla_dtype(dtype)
    order = dense_order(size, stride)
    if order is None:
        span = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True)) if 0 not in size else 0
        return TensorSpec(size, stride, dtype, Layout((span,), xla), None)
    if order == tuple(range(len(size))):
        return TensorSpec(size, stride, dtype, Layout(size, xla), None)
    return TensorSpec(size, stride, dtype, Layout(tuple(size[d] for d in order), xla), order)


def store(spec: TensorSpec, value: Any) -> Any:
    """Inside a trace: the physical array of a new tensor from its logical value."""
    import jax.numpy as jnp
    from jax import lax

    dtype = spec.layout.dtype
    if value.dtype != dtype:
        value = cast(value, dtype)
    if value.shape != spec.size:
        raise AssertionError(f"lowering returned shape {value.shape}, torch says {spec.size}")
    if spec.order is not None:
        return lax.transpose(value, spec.order)
    if spec.layout.shape != spec.size:  # gaps between elements
        view = View(spec.size, spec.stride, 0, spec.dtype, spec.layout)
        return view.write(jnp.zeros(spec.layout.shape, dtype), value)
    return value


class Planner:
    """Builds the plans of one overload."""

    def __init__(self, signature: Signature, rule: Rule | None) -> None:
        self.signature = signature
        self.rule = rule

    def plan(self, args: Sequence[Any], kwargs: dict[str, Any], aliases: Sequence[int]) -> Plan:
        """Work out the op for these arguments.

        Args:
            args, kwargs: the call's own; tensors on `tpu`, numbers, 0-d CPU tensors, static values.
            aliases: for each tensor argument, the first tensor argument with the same storage.

        Raises:
            Whatever torch's meta kernel raises, for a user's mistake.
            NotImplementedError: no rule and no decomposition lowers this op.
        """
        bound = self.signature.bind(args, kwargs)
        given = {*range(len(args)), *map(self.signature.names.index, kwargs)}
        arguments = Arguments(self.signature, self.rule, bound, given)
        with _disable_current_modes():
            metas, results = self._run_meta(arguments)
            plan = self._build(arguments, metas, results, aliases)
        arguments.forget_tensors()
        return plan

    def _run_meta(self, arguments: Arguments) -> tuple[list[Any], Any]:
        metas = arguments.on_meta()
        self._sizes_before = [tuple(m.shape) for m in arguments.flat_tensors(metas)]
        positional, named = self.signature.split(metas)
        if self.rule is not None and self.rule.check is not None:
            self.rule.check(*metas)
        metadata = self.rule.metadata if self.rule is not None else None
        try:
            return metas, (metadata or self.signature.op)(*positional, **named)
        except RuntimeError:
            if self.rule is not None and self.rule.promotion is not None and not self.rule.each:
                errors.check_broadcast([m.shape for m in arguments.metas])
            raise

    def _build(self, arguments: Arguments, metas: list[Any], results: Any, aliases: Sequence[int]) -> Plan:
        signature, rule = self.signature, self.rule
        meta_tensors = arguments.flat_tensors(metas)
        written = arguments.written(rule.writes if rule else ())
        elementwise = rule is not None and rule.promotion is not None
        if elementwise and signature.mutated and not signature.outs and not rule.each:
            check_in_place(rule, signature, metas)
        _check_overlap(signature, arguments.views, aliases, written, elementwise or signature.name == "aten::copy_")
        resizes = [(w, tuple(meta_tensors[w].shape)) for w in written if tuple(meta_tensors[w].shape) != self._sizes_before[w]]
        for w, size in resizes:
            if any(p != w and aliases[p] == aliases[w] and v == arguments.views[w] for p, v in enumerate(arguments.views)):
                shape = list(self._sizes_before[w])
                raise RuntimeError(f"output with shape {shape} doesn't match the broadcast shape {list(size)}")
        if resizes:
            return Plan(signature.name, arguments.views, (), (), (), (), lambda *_: [], lambda t, n: None, resizes)
        returned = results if isinstance(results, (tuple, list)) else (results,)
        flat_results = returned if signature.op._schema.returns else ()
        new: list[torch.Tensor] = []
        recipe: list[Any] = []  # of what is returned: ("new", k), ("arg", position), or ("value", it) for no tensor
        for k, value in enumerate(flat_results):
            source = signature.returns_argument(k)
            if source is not None:
                recipe.append(("arg", arguments.position(source)))
            elif isinstance(value, torch.Tensor):
                recipe.append(("new", len(new)))
                new.append(value)
            elif value is None or isinstance(value, (bool, int, float)):
                recipe.append(("value", value))
            else:
                raise NotImplementedError(f"{signature.name} returns {type(value).__name__}")
        specs = [storage_spec(tuple(m.shape), tuple(m.stride()), m.dtype) for m in new]
        for spec in specs:
            if not client.nbytes_fit(spec.layout, hbm.usage.live):
                raise errors.out_of_memory(spec.nbytes, hbm.usage.live, client.memory_limit(), f"{signature.name}")

        evaluate, route = evaluator(signature, rule, arguments, metas, results)
        views = arguments.views
        ignored = arguments.ignored(rule.ignores if rule else frozenset())
        groups = sorted({aliases[w] for w in written})
        partial = {w for w in written if not views[w].covers}
        read = {p for p in range(len(views)) if p not in ignored or p in partial}
        needs = sorted({aliases[p] for p in read})

        # An elementwise op that reads the window it writes reads each element before it writes it.
        reread = {aliases[p] for p in range(len(views)) if p not in ignored and not (elementwise and p in written)}

        undefined = {k for k, (kind, _) in enumerate(recipe) if kind == "value"}

        def body(stored: list[Any], numbers: Sequence[Any], alone: bool) -> list[Any]:
            import jax.numpy as jnp

            current = list(stored)
            values = enumerate(evaluate(_Windows(views, current, aliases, ignored), numbers))
            # Without an array: results that are no tensors, and statistics that were not given (`Rule.writes`).
            outcome = (v for k, v in values if k not in undefined and v is not None)
            fresh = [store(spec, next(outcome)) for spec in specs]
            for position, value in zip(written, outcome, strict=True):
                view, group = views[position], aliases[position]
                value = cast(value, xla_dtype(view.dtype))
                if value.shape != view.size:
                    value = jnp.broadcast_to(value, view.size)
                if view.covers:
                    current[group] = store(storage_spec(view.size, view.stride, view.dtype), value)
                else:
                    current[group] = view.write(current[group], value, in_place=alone and group not in reread)
            return fresh + [current[g] for g in groups]

        as_list = signature.returns_list
        finish = _finisher(recipe, isinstance(results, (tuple, list)), as_list)
        if rule is not None and rule.each and signature.mutated and not signature.outs:
            finish = _version_bumper(written)
        bounds = [
            (_position(meta_tensors, index), -size if negative else 0, size - 1)
            for index, size, negative in (rule.indexed(*metas) if rule is not None and rule.indexed is not None else ())
        ]
        replay = None if rule is not None and rule.random else Replay(signature, arguments.template, tuple(written))
        product = rule is not None and rule.precision
        precise = product and (rule.each or views[0].dtype in WITH_PRECISION)
        key = PlanKey(
            signature.names,
            arguments.template,
            arguments.types(),
            tuple(aliases),
            current() if precise else None,
            excess_allowed(),
        )
        return Plan(
            signature.name,
            views,
            needs,
            arguments.wires,
            specs,
            groups,
            body,
            finish,
            (),
            route,
            bounds,
            replay,
            product,
            elementwise,
            key,
        )


def _position(tensors: Sequence[torch.Tensor], wanted: torch.Tensor) -> int:
    return next(p for p, t in enumerate(tensors) if t is wanted)


# Ops that may not read what they write, which elementwise ops may, element by element.
_APART = frozenset(
    f"aten::{name}"
    for name in (
        "_index_put_impl_", "cat.out", "index_add_", "index_add.out", "index_copy_", "index_copy.out", "index_put_",
        "kthvalue.values", "scatter_.src", "scatter_.value", "scatter_add_", "take.out",
    )
)  # fmt: skip


_IDEMPOTENT = frozenset({"aten::fill_.Scalar", "aten::fill_.Tensor", "aten::zero_"})


def _check_overlap(
    signature: Signature, views: Sequence[View], aliases: Sequence[int], written: Sequence[int], elementwise: bool
) -> None:
    """Raise where PyTorch refuses to write because of shared memory; not all of its meta kernels check.

    Raises:
        RuntimeError: elements of a written tensor share memory, or a written tensor overlaps one that is read.
    """
    apart = signature.name in _APART
    advice = "refer to a single memory location. Please clone() the tensor before performing the operation."
    for w in written:
        if views[w].repeats and signature.name not in _IDEMPOTENT:
            raise RuntimeError(f"unsupported operation: more than one element of the written-to tensor {advice}")
        if signature.outs or elementwise or apart:
            for p, view in enumerate(views):
                overlap = p not in written and aliases[p] == aliases[w] and views[w].overlap(view)
                if overlap == "partial" or (overlap == "full" and apart):
                    raise RuntimeError(
                        f"unsupported operation: some elements of the input tensor and the written-to tensor {advice}"
                    )


class _Windows:
    """Inside a trace: the value of each tensor argument, read from its storage's array when it is asked for.

    A foreach op asks for one element's tensors at a time: where they share storages, it sees what it has written so far.
    """

    def __init__(self, views: Sequence[View], arrays: list[Any], aliases: Sequence[int], ignored: set[int]) -> None:
        self._views, self._arrays, self._aliases, self._ignored = views, arrays, aliases, ignored

    def __getitem__(self, position: int) -> Any:
        if position in self._ignored:
            return None
        return self._views[position].read(self._arrays[self._aliases[position]])


def _finisher(recipe: list[Any], several: bool, as_list: bool) -> Callable[..., Any]:
    if recipe and not several:
        kind, k = recipe[0]
        if kind == "new":
            return lambda tensors, new: new[0]
        return (lambda tensors, new: tensors[k]) if kind == "arg" else (lambda tensors, new: k)

    def finish(tensors: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> Any:
        values = [new[k] if kind == "new" else tensors[k] if kind == "arg" else k for kind, k in recipe]
        return values if as_list else tuple(values)

    return finish if recipe else lambda tensors, new: None


def _version_bumper(written: Sequence[int]) -> Callable[..., None]:
    """Autograd leaves the version counters of a foreach op's tensors to the device's kernel."""

    def finish(tensors: Sequence[torch.Tensor], new: Sequence[torch.Tensor]) -> None:
        torch.autograd.graph.increment_version([t for p in written if not (t := tensors[p]).is_inference()])

    return finish


class Arguments:
    """A call's arguments in schema order, with its tensors and dynamic numbers found and numbered.

    Numbers that the call left to the schema's defaults (positions not in `given`) are part of the program.
    """

    def __init__(self, signature: Signature, rule: Rule | None, bound: list[Any], given: set[int]) -> None:
        self.signature, self.bound = signature, bound
        self.tensors: list[torch.Tensor] = []
        self.numbers: list[Any] = []
        self.integers: set[int] = set()  # those of `numbers` that are integers whatever the tensors are
        self.template: list[Any] = []
        self.slots: dict[int, list[int]] = {}  # schema position -> tensor positions
        for k, (kind, value) in enumerate(zip(signature.kinds, bound, strict=True)):
            self._current = self.slots.setdefault(k, [])
            self.template.append(self._place(value, k in given and signature.is_dynamic(rule, k, value), kind))
        self.views = [
            View(tuple(t.shape), tuple(t.stride()), t.storage_offset(), t.dtype, t.untyped_storage().buffer.layout)
            for t in self.tensors
        ]
        self.wires: list[str] = []

    def _place(self, value: Any, dynamic: bool, kind: str) -> Any:
        if isinstance(value, torch.Tensor):
            if value.device.type != "cpu":
                self.tensors.append(value)
                self._current.append(len(self.tensors) - 1)
                return TensorArg(len(self.tensors) - 1)
            self.numbers.append(value)
            return NumberArg(len(self.numbers) - 1)
        if isinstance(value, (list, tuple)):
            return [self._place(v, dynamic, kind) for v in value]
        if dynamic and isinstance(value, (bool, int, float, complex)):
            if kind == "I":
                self.integers.add(len(self.numbers))
            self.numbers.append(value)
            return NumberArg(len(self.numbers) - 1)
        return value

    def types(self) -> tuple[str, ...]:
        """Name the type of each dynamic number."""
        return tuple(
            f"{str(n.dtype).removeprefix('torch.')} scalar" if isinstance(n, torch.Tensor) else type(n).__name__
            for n in self.numbers
        )

    def forget_tensors(self) -> None:
        """Let go of the call's own tensors: a plan keeps its arguments, and must not keep device memory."""
        self.bound, self.tensors = [], []

    def on_meta(self) -> list[Any]:
        """Return the arguments with meta tensors for those on `tpu`; tensors that share a storage still do."""
        bases: dict[int, torch.Tensor] = {}
        metas = []
        for t, v in zip(self.tensors, self.views, strict=True):
            storage = t.untyped_storage()
            base = bases.get(storage._cdata)
            if base is None:
                base = bases[storage._cdata] = torch.empty(storage.nbytes(), dtype=torch.uint8, device="meta")
            meta = torch.empty(0, dtype=v.dtype, device="meta")
            metas.append(meta.set_(base.untyped_storage(), v.offset, v.size, v.stride))
        self.metas = metas
        return [self._meta_of(value, place) for value, place in zip(self.bound, self.template, strict=True)]

    def _meta_of(self, value: Any, place: Any) -> Any:
        if isinstance(place, TensorArg):
            return self.metas[place.index]
        if isinstance(place, list):
            return [self._meta_of(v, p) for v, p in zip(value, place, strict=True)]
        if isinstance(value, torch.device):  # of a factory
            return _META
        return None if isinstance(value, torch.Generator) else value

    def flat_tensors(self, metas: list[Any]) -> list[torch.Tensor]:
        """Return the meta tensors of the `tpu` tensors, by position."""
        return self.metas

    def written(self, undeclared: Sequence[str]) -> list[int]:
        """Return the positions of the tensors that the op changes, in schema order (undeclared ones last)."""
        names = [self.signature.names.index(n) for n in undeclared]
        return [p for k in [*self.signature.mutated, *names] for p in self.slots[k]]

    def ignored(self, names: frozenset[str]) -> set[int]:
        """Return the positions of the tensors whose old values are not read."""
        chosen = [k for k, name in enumerate(self.signature.names) if name in names or k in self.signature.outs]
        return {p for k in chosen for p in self.slots[k]}

    def position(self, schema_position: int) -> int:
        """Return the tensor position of a schema argument that is one tensor."""
        return self.slots[schema_position][0]

    def fill(self, values: Sequence[Any], numbers: Sequence[Any]) -> list[Any]:
        """Return the arguments with arrays for tensors and 0-d arrays for dynamic numbers."""

        return [fill_places(p, values, numbers) for p in self.template]
