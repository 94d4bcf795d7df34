"""A state machine that runs one random line after the other on both devices and compares what they left behind."""

from __future__ import annotations

import contextlib
import copy
import warnings
from typing import Any

import torch
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, initialize, multiple, rule

from tests.views import lines
from torchtpu import config, modes
from torchtpu.modes import deferred

Names = dict[str, Any]


class Views(RuleBasedStateMachine):
    """Two sets of variables, one on each device, that every line must leave alike."""

    tensors = Bundle("tensors")

    def __init__(self) -> None:
        super().__init__()
        self.cpu: Names = {"torch": torch, "copy": copy, "D": "cpu"}
        self.tpu: Names = {"torch": torch, "copy": copy, "D": "tpu"}
        self.program: list[str] = []
        self.made = 0
        self.differs = False
        self.scope = contextlib.ExitStack()
        self.scope.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")
        self.scope.enter_context(modes.scope("strict"))
        self.scope.enter_context(config.options(cpu_fallback="error"))
        torch.set_flush_denormal(True)  # as XLA:CPU does

    # Rules: each runs a line

    @initialize(target=tensors, base=st.sampled_from(lines.BASES))
    def first(self, base: str) -> MultipleResults[str]:
        return self.assign(base)

    @rule(target=tensors, base=st.sampled_from(lines.BASES))
    def base(self, base: str) -> MultipleResults[str]:
        return self.assign(base)

    @rule(target=tensors, t=tensors, view=st.sampled_from(lines.VIEWS))
    def view(self, t: str, view: str) -> MultipleResults[str]:
        return self.assign(view, t)

    @rule(target=tensors, t=tensors, view=st.sampled_from(lines.VIEWS), then=st.sampled_from(lines.VIEWS))
    def view_of_view(self, t: str, view: str, then: str) -> MultipleResults[str]:
        return self.assign(then, view.format(t=t))

    @rule(target=tensors, t=tensors, pieces=st.sampled_from(lines.PIECES))
    def pieces(self, t: str, pieces: str) -> MultipleResults[str]:
        return self.assign(pieces, t, count=2)

    @rule(target=tensors, t=tensors, u=tensors, function=st.sampled_from(lines.COPIES))
    def copies(self, t: str, u: str, function: str) -> MultipleResults[str]:
        return self.assign(function, t, u)

    @rule(t=tensors, u=tensors, write=st.sampled_from(lines.WRITES))
    def write(self, t: str, u: str, write: str) -> None:
        self.write_line(write, t, u)

    @rule(t=tensors, u=tensors, write=st.sampled_from(lines.WRITES), view=st.sampled_from(lines.VIEWS))
    def write_through_view(self, t: str, u: str, write: str, view: str) -> None:
        self.write_line(write, view.format(t=t), u)

    @rule(
        t=tensors,
        u=tensors,
        write=st.sampled_from(lines.WRITES),
        view=st.sampled_from(lines.VIEWS),
        then=st.sampled_from(lines.VIEWS),
    )
    def write_through_views(self, t: str, u: str, write: str, view: str, then: str) -> None:
        self.write_line(write, then.format(t=view.format(t=t)), u)

    @rule(t=tensors, u=tensors, change=st.sampled_from(lines.CHANGES))
    def change(self, t: str, u: str, change: str) -> None:
        if ".data =" in change and (lazy(self.cpu[t]) or lazy(self.cpu[u])):
            return  # PyTorch compares the bits, except on devices that it lists by name
        if change.endswith("set_({u}.untyped_storage())") and self.cpu[t].dim() == 1 and not self.cpu[t].is_contiguous():
            return  # the CPU may keep the strides, and then reads outside the storage
        self.run(change.format(t=t, u=u))

    @rule(t=consumes(tensors))
    def delete(self, t: str) -> None:
        self.run(f"del {t}")

    @rule(what=st.sampled_from(("defer_and_fuse", "synchronize", "debug", "strict")))
    def control(self, what: str) -> None:
        self.program.append(f"# {what}")
        torch.tpu.synchronize() if what == "synchronize" else modes.set(what)

    @rule(t=tensors)
    def read(self, t: str) -> None:
        self.compare_values(t)

    # What they do

    def assign(self, template: str, t: str = "", u: str = "", count: int = 1) -> MultipleResults[str]:
        """Run a line that makes `count` tensors; they have no names if it raised."""
        new = [f"t{self.made + k}" for k in range(count)]
        if not self.run(f"{', '.join(new)} = {template.format(t=t, u=u)}"):
            return multiple()
        self.made += count
        return multiple(*new)

    def write_line(self, template: str, t: str, u: str) -> None:
        """Run a line that writes, as PyTorch defines it: what is read is read before anything is written.

        Where windows overlap in a way that its CPU kernels do not notice, they read what they have just written; there the
        CPU gets copies.
        """
        line = template.format(t=t, u=u)
        on_cpu = line.replace(".cpu()", ".cpu().clone()")  # there `cpu` is no copy
        with contextlib.suppress(RuntimeError, IndexError, TypeError):  # no such view: the line raises on both
            target, source = eval(t, dict(self.cpu)), self.cpu[u]
            if not defined(template, target, source):
                return
            error = raised(template, target, source)
            if error is not None and ("out=" in template or "_foreach" in template):
                # On the CPU, `out` may be resized by then, and the first tensors of a list be written.
                self.refused(template, t, u, error)
                return
            if "{u}" in template and error is None and shares(target, source):
                on_cpu = template.format(t=t, u=f"{u}.clone()")
        self.run(line, on_cpu)

    def run(self, line: str, on_cpu: str | None = None) -> bool:
        """Run a line on both devices and compare. Returns whether it came to its end."""
        self.program.append(line)
        before = sizes_of_storages(self.cpu)
        expected = attempt(on_cpu or line, self.cpu)
        if "resize" in line or "set_(" in line:
            clear_new_memory(self.cpu, before)
        actual = attempt(line, self.tpu)
        if kind(actual) is not kind(expected):
            self.differ(f"the CPU: {expected!r}\ntpu: {actual!r}", actual)
        self.compare()
        return expected is None

    def refused(self, template: str, t: str, u: str, expected: Exception) -> None:
        """Compare what a write raises, on copies."""
        actual = raised(template, eval(t, dict(self.tpu)), self.tpu[u])
        if kind(actual) is not kind(expected):
            self.program.append(template.format(t=t, u=u))
            self.differ(f"the CPU: {expected!r}\ntpu: {actual!r}", actual)

    def compare(self) -> None:
        names = self.names()
        assert names == [n for n in self.tpu if n[0] == "t" and n[1:].isdigit()]
        for k, name in enumerate(names):
            a, b = self.cpu[name], self.tpu[name]
            if (expected := described(a)) != (actual := described(b)):
                self.differ(f"{name}\nthe CPU: {expected}\ntpu: {actual}")
            for other in names[:k]:
                if shares(a, self.cpu[other]) != shares(b, self.tpu[other]):
                    self.differ(f"{name} and {other} share memory on the CPU: {shares(a, self.cpu[other])}, on tpu not so")
        if modes.current() is not modes.EagerMode.DEFER_AND_FUSE:
            self.compare_values(*names)

    def compare_values(self, *names: str) -> None:
        for name in names:
            if not history(self.cpu[name]):
                continue
            a, b = self.cpu[name].detach(), self.tpu[name].detach().cpu()
            if not same(a, b):
                self.differ(f"{name}\nthe CPU: {a}\ntpu: {b}")
            grad = self.cpu[name].grad if self.cpu[name].is_leaf else None
            if grad is not None and not same(grad, self.tpu[name].grad.cpu()):
                self.differ(f"{name}.grad\nthe CPU: {grad}\ntpu: {self.tpu[name].grad.cpu()}")

    def differ(self, what: str, cause: Exception | None = None) -> None:
        self.differs = True
        raise AssertionError("\n".join(["", *self.program, what])) from cause

    def names(self) -> list[str]:
        return [n for n in self.cpu if n[0] == "t" and n[1:].isdigit()]

    def teardown(self) -> None:
        try:
            if not self.differs:
                self.compare_values(*self.names())
        finally:
            torch.set_flush_denormal(False)
            self.cpu.clear()
            self.tpu.clear()
            deferred.forget()  # what failed must not fail again in the next program
            self.scope.close()


def attempt(line: str, names: Names) -> Exception | None:
    """Run a line; return what it raises."""
    try:
        exec(line, names)
    except Exception as error:
        return error.with_traceback(None)
    return None


def kind(error: Exception | None) -> type | None:
    """The type of an error. What a CPU kernel does not implement for a dtype may be no more than a RuntimeError.

    Lines with several errors (of dtype, of shape, of shared memory) may raise another one first; an IndexError among them.
    """
    return RuntimeError if isinstance(error, (RuntimeError, IndexError)) else type(error)


def described(t: torch.Tensor) -> dict[str, Any]:
    """What can be asked of a tensor without its values."""
    return {
        "shape": tuple(t.shape),
        # That of a dimension of size 1 says nothing, and PyTorch's CPU kernels and meta kernels differ in it; where it is
        # split into nothing and itself, so do strides and offset of the former.
        "stride": [stride for size, stride in zip(t.shape, t.stride(), strict=True) if size != 1 and t.numel()],
        "offset": t.storage_offset() if t.numel() else 0,
        "dtype": t.dtype,
        "contiguous": t.is_contiguous(),
        "bytes": t.untyped_storage().nbytes(),
        "version": t._version,
        "view": t._is_view(),
        "lazy": (t.is_conj(), t.is_neg()),
        "grad": history(t),
    }


def history(t: torch.Tensor) -> tuple[Any, ...]:
    """What autograd knows of a tensor; PyTorch refuses to say for one of several views whose base has changed."""
    try:
        return t.requires_grad, t.is_leaf, type(t.grad_fn).__name__, t.is_leaf and t.grad is not None
    except RuntimeError:
        return ()


def lazy(t: torch.Tensor) -> bool:
    """Whether a conjugation or a negation is left to whoever reads the tensor."""
    return t.is_conj() or t.is_neg()


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether the values are equal, NaN being NaN."""
    return a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=0, equal_nan=True)


def shares(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.untyped_storage()._cdata == b.untyped_storage()._cdata


def places(t: torch.Tensor) -> list[int]:
    """The byte offsets of a tensor's elements in its storage."""
    found = [t.storage_offset()]
    for size, stride in zip(t.shape, t.stride(), strict=True):
        found = [start + k * stride for start in found for k in range(size)]
    return [t.element_size() * place for place in found]


# Writes whose result does not depend on the order of elements that share memory.
_CONSTANT = ("{t}.fill_(7)", "{t}.zero_()", "{t}[..., ::2] = 3")
_BY_ELEMENT = ("torch.add", "torch.neg")


def defined(template: str, target: torch.Tensor, source: torch.Tensor) -> bool:
    """Whether PyTorch says what a write does: it raises, or no two elements that it writes share memory."""
    written = [target, source] if "[{t}, {u}]" in template else [target]
    if shares(target, source) and len(written) == 2:
        return False
    if shares(target, source) and template == "{t}[0] = {u}[-1]" and source.dim() == 1:
        return False  # the CPU fills with a number, where other devices check for overlap
    if shares(target, source) and "out=" in template and (target.shape != source.shape or not template.startswith(_BY_ELEMENT)):
        return False  # an `out` is resized before some kernels check for overlap, and after others
    if template.startswith("torch.neg") and target.dtype != source.dtype:
        return False  # alone among such ops, it casts to no other dtype on the CPU
    if "out=" in template and target.shape != source.shape and not source.is_contiguous():
        return False  # an `out` that is resized follows the strides of the inputs on the CPU alone
    if "index" in template and 0 in (target.numel(), source.numel()):
        return False  # an index out of range is an error on the CPU, and in debug mode's checks
    if any(len(set(p := places(t))) < len(p) for t in written) and template not in _CONSTANT:
        return raised(template, target, source) is not None
    if target.dtype.is_floating_point or target.dtype.is_complex or not source.dtype.is_floating_point:
        return True
    # Conversion to an integer that cannot hold the number is C++'s undefined behaviour.
    return "{u}" not in template or bool((source.abs() <= 1e4).all())


def raised(template: str, target: torch.Tensor, source: torch.Tensor) -> Exception | None:
    """What a write raises on copies of its tensors that share memory as they do."""
    t = target.detach()
    t, u = copy.deepcopy([t, t if target is source else source.detach()])
    return attempt(template.format(t="t", u="u"), {"torch": torch, "copy": copy, "D": t.device, "t": t, "u": u})


def storages(names: Names) -> dict[int, torch.UntypedStorage]:
    tensors = [v for v in names.values() if isinstance(v, torch.Tensor)]
    return {t.untyped_storage()._cdata: t.untyped_storage() for t in tensors}


def sizes_of_storages(names: Names) -> dict[int, int]:
    return {key: storage.nbytes() for key, storage in storages(names).items()}


def clear_new_memory(names: Names, before: dict[int, int]) -> None:
    """Fill what `resize_` or `set_` has added to CPU storages with zeros, as it is on `tpu`."""
    for key, storage in storages(names).items():
        if storage.nbytes() > (old := before.get(key, storage.nbytes())):
            torch.empty(0, dtype=torch.uint8).set_(storage, old, (storage.nbytes() - old,), (1,)).zero_()
