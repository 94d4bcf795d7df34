"""A profile made by hand: all its sums are known. Its report is that of a real watch.

Ten steps of 0.1 s, the first one of 1.1 s, which compiled for 1 s; 2 s in all, of which the device was busy for 0.6 s.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import torch

import torchtpu
from torchtpu.lines import Line
from torchtpu.profiler.result import Profile
from torchtpu.profiler.rows import IdleRow, KernelTime, OpTime, ProgramTime, Span, Spans, StepRow
from torchtpu.report import Report

SOURCES = {3: "h = torch.relu(x @ w1 + b1)", 4: "y = h @ w2", 6: "loss.backward()", 7: "print(loss.item())", 8: "opt.step()"}


def line(number: int, cell: int = 4) -> Line:
    """A line of a cell that only exists here."""
    return Line(f"/tmp/ipykernel_1/{cell}.py", number, f"In[{cell}], line {number}", SOURCES[number], "<module>")


@cache
def report() -> Report:
    """What a small computation did."""
    with torch.tpu.set_eager_mode("defer_and_fuse"), torchtpu.watch() as watched:
        x = torch.linspace(0, 1, 64 * 64, device="tpu").reshape(64, 64)
        for _ in range(3):
            x = torch.tanh(x @ x) * 0.5
        x.sum().item()
    return watched


def profile(**changes: object) -> Profile:
    """The profile; changes: fields with other values."""
    made = Profile(
        run="2026_12_02_10_00_00",
        folder="/tmp/logs/plugins/profile/2026_12_02_10_00_00",
        host="laptop",
        began=1.8e9,
        modelled=False,
        report=report(),
        steps=tuple(steps()),
        programs=(
            ProgramTime("fused_12_ops#3", 1, 12, line(3), "item", 10, 0.5, 5e9, 4e9, 1 << 20),
            ProgramTime("aten_add", 2, 1, line(8), "end of cell", 20, 0.1, 1e6, 12e6, 0),
        ),
        kernels=(
            KernelTime("fused_12_ops#3", "dot.4", "dot", ("aten::mm",), line(3), "MLP/fc1", False, 10, 0.3, 4.5e9, 1e9),
            KernelTime(
                "fused_12_ops#3",
                "fusion.1",
                "loop fusion",
                ("aten::relu", "aten::add.Tensor"),
                line(3),
                "MLP/act",
                False,
                10,
                0.125,
                4e8,
                2.5e9,
            ),
            KernelTime(
                "fused_12_ops#3",
                "fusion.2",
                "loop fusion",
                ("aten::threshold_backward",),
                line(3),
                "MLP/act",
                True,
                10,
                0.075,
                1e8,
                5e8,
            ),
            KernelTime("aten_add", "add.1", "add", ("aten::add.Tensor",), line(8), "", False, 20, 0.1, 1e6, 12e6),
        ),
        ops=(
            OpTime("aten::mm", line(3), "MLP/fc1", False, 10, (), 0.3, 4.5e9, 1e9),
            OpTime("aten::relu", line(3), "MLP/act", False, 10, ("aten::add.Tensor",), 0.125, 4e8, 2.5e9),
            OpTime("aten::add.Tensor", line(8), "", False, 20, (), 0.1, 1e6, 12e6),
            OpTime("aten::threshold_backward", line(3), "MLP/act", True, 10, (), 0.075, 1e8, 5e8),
        ),
        idle=(
            IdleRow("compile", line(3), 1, 1.0),
            IdleRow("wait", line(7), 10, 0.2),
            IdleRow("Python in load_batch", line(3), 10, 0.15),
            IdleRow("dispatch", line(8), 30, 0.05),
        ),
        spans=Spans.of(list(spans())),
        elapsed=2.0,
        busy=0.6,
        peak_flops=50e9,
        peak_bandwidth=25e9,
        peaks_from="measured here: one product and one copy",
        dropped=0,
    )
    return replace(made, **changes)


def steps() -> list[StepRow]:
    """The first one compiles; all have 60 ms of the device and 20 ms of waiting."""
    rows = [StepRow(0, 0.0, 1.1, 0.06, 1.0, 0.02, 3, 2)]
    return [*rows, *(StepRow(k, 1.0 + 0.1 * k, 0.1, 0.06, 0.0, 0.02, 3, 0) for k in range(1, 10))]


def spans() -> list[Span]:
    """Of each step: a program with two kernels, the host's launch and its wait. Two annotations overlap in part."""
    found = [Span("annotations", "first", 0.0, 0.5, None, ""), Span("annotations", "second", 0.4, 0.5, None, "")]
    for s in steps():
        found += [
            Span("steps", f"step {s.number}", s.at, s.seconds, None, ""),
            Span("flushes", "item", s.at + 0.01, 0.03, line(7), "12 ops, 1 program"),
            Span("launches", "fused_12_ops#3", s.at + 0.02, 0.01, line(3), "12 ops, run at item"),
            Span("waits", "item", s.at + 0.07, 0.02, line(7), "4 bytes"),
            Span("programs", "fused_12_ops#3", s.at + 0.03, 0.06, line(3), "12 ops"),
            Span("device thread 0", "dot.4", s.at + 0.03, 0.04, line(3), "fused_12_ops#3, dot: aten::mm"),
            Span("device thread 0", "fusion.1", s.at + 0.07, 0.02, line(3), "fused_12_ops#3, loop fusion: aten::relu"),
        ]
    return sorted(found, key=lambda s: s.at)


def empty() -> Profile:
    """A capture in which nothing happened, whatever other tests have left in memory."""
    with torchtpu.watch() as watched:
        pass
    nothing = replace(watched, hbm_peak=0, hbm_peak_owners=(), hbm_peak_buffers=())
    return profile(report=nothing, steps=(), programs=(), kernels=(), ops=(), idle=(), spans=Spans(), busy=0.0)
