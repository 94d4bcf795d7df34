"""`fit`: how large a batch fits into a chip, found by compiling the training step for it."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from torchtpu.errors import did_you_mean
from torchtpu.fit.result import AS_IT_IS, Answer, Fit, FitRow
from torchtpu.fit.search import Trial, search

if TYPE_CHECKING:
    from torchtpu.ahead.captured import Captured
    from torchtpu.ahead.chips import Chip
    from torchtpu.fit.changes import Change

TRIES = ("checkpoint", "bfloat16")


def fit(
    step: Callable[..., Any],
    *,
    target: str = "v5e",
    vary: str = "batch",
    tries: tuple[str, ...] = TRIES,
    first: int = 8,
    most: int = 65_536,
    multiple: int = 1,
    effort: str = "memory",
    hbm: int | None = None,
    progress: Callable[[Fit, str, float], None] | None = None,
) -> Fit:
    """Find the largest batch with which a training step fits into a chip, and what makes room for a larger one.

    The step is called with a size, `step(batch=8)`: it makes inputs of that size (`torch.randn(batch, 64, device="tpu")`) and
    does what the loop does with a batch: forward, backward, optimizer. It is only recorded, for the compiler of the chip:
    nothing runs, and modules, optimizers and random numbers stay as they are. No chip is needed.

    Every size in the result was compiled. What fits is taken to be smaller than what does not: the search stops when it
    has a size that fits and one that does not, 1 apart up to 128 and less than 2 % apart beyond.

    Args:
        step: a function of one number. Other parameters need defaults.
        target: chips: `v5e`, `v5e,v6e` or `all`.
        vary: the parameter of `step` that gets the size.
        tries: changes to try as well: `checkpoint` (torch.utils.checkpoint on the items of each ModuleList, or on
            Sequentials), `bfloat16` (parameters, buffers and optimizer state of 16 bits), several at once
            (`checkpoint+bfloat16`). They are made for the recording alone, on the modules that the step's names lead to.
        first: the size to begin with.
        most: the largest size to try.
        multiple: only multiples of it are tried.
        effort: of the compiles: `memory` or `full`.
        hbm: bytes that a program may use, if not what the chip has.
        progress: called before each compile, and some times a second while it lasts, with what is known, what is being
            compiled, and for how many seconds.

    Raises:
        UnknownChipError: there is no such chip.
        CompilerMissingError: libtpu is not installed.
        CompileError: the chip's compiler refuses the step.
        ValueError: `step` has no such parameter, or does the same whatever the size.
        Whatever the step raises.

    Example:
        def step(batch):
            x, y = torch.randn(batch, 64, device="tpu"), torch.randint(0, 10, (batch,), device="tpu")
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()

        torchtpu.fit(step, target="v5e").largest()
    """
    from torchtpu import ahead
    from torchtpu.fit import changes

    chips = ahead.parse(target)
    changes.check(tries)
    _check(step, vary, first, most, multiple)
    name = getattr(step, "__name__", type(step).__name__)
    trying = _Trying(Fit(name, vary, most, effort, ""), step, hbm, progress)
    parts = changes.Parts.of(step)
    for wanted in (AS_IT_IS, *tries):
        try:
            change = changes.change(wanted, parts)
        except ValueError as error:
            for chip in chips:
                trying.answer(Answer(chip.name, wanted, "", hbm or chip.hbm_bytes, error=str(error)))
            continue
        for chip in chips:
            trying.find(chip, change, first, multiple)
    return trying.sorted([chip.name for chip in chips])


class _Trying:
    """A search under way.

    Attributes:
        fit: what is known.
    """

    def __init__(
        self, fit: Fit, step: Callable[..., Any], hbm: int | None, progress: Callable[[Fit, str, float], None] | None
    ) -> None:
        self.fit = fit
        self._step, self._hbm, self._progress = step, hbm, progress
        self._captured: dict[tuple[str, int], Captured] = {}  # for the next chip

    def find(self, chip: Chip, change: Change, first: int, multiple: int) -> None:
        """Search for one chip and change, and add the answer."""
        error = ""
        if change.scopes:  # begins where the step as it is has ended: what does the change save there?
            known = self.fit.answer(chip.name)
            first = known.largest or known.refused
        try:
            search(lambda size: self._try(chip, change, size), first, self.fit.most, multiple)
        except Exception as raised:
            if not change.scopes:
                raise
            error = f"{type(raised).__name__}: {raised}"
        self.answer(replace(self._so_far(chip, change), error=error))

    def answer(self, answer: Answer) -> None:
        """Add an answer."""
        self.fit = replace(self.fit, answers=(*self.fit.answers, answer))

    def sorted(self, chips: list[str]) -> Fit:
        """Return the result with the chips in the order asked for."""
        return replace(self.fit, answers=tuple(sorted(self.fit.answers, key=lambda a: chips.index(a.chip))))

    def _so_far(self, chip: Chip, change: Change) -> Answer:
        rows = [r for r in self.fit.rows if (r.chip, r.change) == (chip.name, change.name)]
        largest = max((r.size for r in rows if r.fits), default=0)
        refused = min((r.size for r in rows if not r.fits), default=0)
        return Answer(chip.name, change.name, change.detail, self._hbm or chip.hbm_bytes, largest, refused)

    def _try(self, chip: Chip, change: Change, size: int) -> Trial:
        what = f"{chip.name}, {change.name}: {self.fit.vary} {size:,}"

        def waiting(_: str, seconds: float) -> None:
            if self._progress is not None:
                so_far = replace(self.fit, answers=(*self.fit.answers, self._so_far(chip, change)))
                self._progress(so_far, what, seconds)

        waiting("", 0.0)
        captured = self._record(change, size)
        result = captured.compile(chip.name, effort=self.fit.effort, hbm=self._hbm, progress=waiting)
        row = FitRow(chip.name, change.name, size, result.fits, result.hbm_peak, result.seconds, result.from_disk)
        self.fit = replace(self.fit, compiler=result.compiler, rows=(*self.fit.rows, row))
        return Trial(result.fits, result.limit - result.hbm_peak if result.hbm_peak else None)

    def _record(self, change: Change, size: int) -> Captured:
        from torchtpu.ahead.captured import capture

        captured = self._captured.get((change.name, size))
        if captured is None:
            captured = capture(change.of(self._step), **{self.fit.vary: size})
            for (name, other), known in self._captured.items():
                if name == change.name and known.inputs == captured.inputs and known.ops == captured.ops:
                    raise ValueError(
                        f"{self.fit.step} does the same for {self.fit.vary}={other} and {self.fit.vary}={size}: it has to make "
                        f"inputs of the size that it is given, as in torch.randn({self.fit.vary}, 64, device='tpu')"
                    )
            self._captured[change.name, size] = captured
        return captured


def _check(step: Callable[..., Any], vary: str, first: int, most: int, multiple: int) -> None:
    """Check that a step can be called with a size.

    Raises:
        TypeError: it is no function.
        ValueError: it has no such parameter, or needs others; or a number is none to begin with.
    """
    if not callable(step):
        raise TypeError(f"fit takes a function that makes a training step of a size, not a {type(step).__name__}")
    for what, number in (("first", first), ("most", most), ("multiple", multiple)):
        if number < 1:
            raise ValueError(f"{what}={number}: it must be at least 1")
    parameters = inspect.signature(step).parameters
    names = [n for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)]
    name = getattr(step, "__name__", type(step).__name__)
    if vary not in names:
        has = f"has {', '.join(names)}" if names else "has none"
        raise ValueError(f"{name} has no parameter {vary!r} to vary: it {has}.{did_you_mean(vary, names)}")
    missing = [n for n in names if n != vary and parameters[n].default is inspect.Parameter.empty]
    if missing:
        raise ValueError(f"{name} is called with {vary} alone, but needs {', '.join(missing)} too: give it a default")
