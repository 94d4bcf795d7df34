"""Kernels: what the compiler's text says, and which ops are in them."""

import torch

from torchtpu import disk_cache
from torchtpu.graph import hlo

TEXT = """HloModule jit_p, is_scheduled=true

%fused (p.0: f32[8,128], p.1: f32[8,128]) -> f32[8,128] {
  %p.0 = f32[8,128]{1,0:T(8,128)} parameter(0)
  %p.1 = f32[8,128]{1,0:T(8,128)} parameter(1)
  %m = f32[8,128]{1,0:T(8,128)} multiply(%p.0, %p.1), metadata={op_name="jit(p)/0.mul.Tensor/mul"}
  ROOT %a = f32[8,128]{1,0:T(8,128)} add(%m, %p.1), metadata={op_name="jit(p)/1.add.Tensor/add"}
}

%halves (q: f32[8,128]) -> f32[8,2] {
  %q = f32[8,128]{1,0} parameter(0)
  ROOT %w = f32[8,2]{1,0} reduce-window(%q), window={size=1x64}
}

%body (r: (s32[], f32[8])) -> (s32[], f32[8]) {
  %r = (s32[], f32[8]{0:T(256)}) parameter(0)
  ROOT %t = (s32[], f32[8]{0:T(256)}) custom-call(%r), metadata={op_name="jit(p)/3.cumsum/while/body/add"}
}

%condition (s: (s32[], f32[8])) -> pred[] {
  ROOT %c = pred[] constant(true)
}

ENTRY %main (x: f32[8,128], y: f32[8,128]) -> f32[8] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0), metadata={op_name="arguments[0]"}
  %y = f32[8,128]{1,0:T(8,128)} parameter(1), metadata={op_name="arguments[1]"}
  %copy = f32[8,128]{1,0} copy(%x)
  %add.fusion = f32[8,128]{1,0:T(8,128)} fusion(%copy, %y), kind=kLoop, calls=%fused, metadata={op_name="jit(p)/1.add/add"}
  %first = f32[8,2]{1,0} fusion(%add.fusion), kind=kLoop, calls=%halves
  %second = f32[8]{0} reduce(%first), metadata={op_name="jit(p)/2.sum.dim_IntList/reduce_sum"}
  %zero = s32[] constant(0)
  %start = (s32[], f32[8]{0:T(256)}) tuple(%zero, %second)
  %loop = (s32[], f32[8]{0:T(256)}) while(%start), condition=%condition, body=%body
  ROOT %end = f32[8]{0} get-tuple-element(%loop), index=1
}
"""


def test_kernels_of_a_text():
    fusions = hlo.fusions(TEXT)
    assert [(f.name, f.kind, f.ops, f.root) for f in fusions] == [
        ("add.fusion", "loop fusion", (0, 1), 1),
        ("first", "loop fusion", (2,), 2),  # the first half of a reduction goes with the second, which has the name
        ("second", "reduce", (2,), 2),
        ("loop", "while", (3,), -1),
    ]
    array = 8 * 128 * 4
    assert [f.nbytes for f in fusions] == [3 * array, array + 64, 64 + 32, 2 * (4 + 32)]


def test_a_text_that_is_none():
    assert hlo.fusions("") == ()
    assert hlo.fusions("no HLO at all\n%") == ()


def test_a_fusion_holds_exactly_the_ops_that_xla_fused(graph_of):
    x, w = torch.rand(64, 64, device="tpu"), torch.rand(64, 64, device="tpu")
    graph = graph_of(lambda: ((x * 2 + 1).tanh() @ w).relu().sub(3))
    assert [op.op for op in graph.ops] == [
        "aten::mul.Tensor", "aten::add.Tensor", "aten::tanh", "aten::mm", "aten::relu", "aten::sub.Tensor",
    ]  # fmt: skip
    assert {root: box.ops for root, box in graph.boxes.items()} == {2: (0, 1, 2), 3: (3,), 5: (4, 5)}
    (before,) = graph.boxes[2].kernels
    # The matrix in and out, and the vectors of the numbers 2 and 1.
    assert 2 * 64 * 64 * 4 < before.nbytes < 2 * 64 * 64 * 4 + 64


def test_an_op_that_xla_computes_in_several_kernels_is_one_box(graph_of):
    x = torch.rand(64, 256, device="tpu")
    graph = graph_of(lambda: x.softmax(-1))
    assert len(graph.boxes[0].kernels) > 1
    assert graph.boxes[0].nbytes == sum(k.nbytes for k in graph.boxes[0].kernels)


def test_each_op_says_what_it_became(graph_of):
    x = torch.rand(64, 64, device="tpu")
    graph = graph_of(lambda: (x * 2).tanh())
    stablehlo, optimized = hlo.stablehlo_by_op(graph.text("stablehlo")), hlo.lines_by_op(graph.text("hlo"))
    assert any("stablehlo.multiply" in line for line in stablehlo[0])
    assert any("stablehlo.tanh" in line for line in stablehlo[1])
    assert any("multiply(" in line for line in optimized[0])
    assert not any("metadata" in line or "loc(" in line for line in [*stablehlo[0], *optimized[0]])


def test_texts_of_a_program_that_came_from_the_disk(tmp_path, monkeypatch, graph_of):
    monkeypatch.setattr(disk_cache, "folder", lambda: tmp_path)
    x = torch.rand(7, 11, device="tpu")

    def run():
        return (x * 2 + 1).tanh()

    first = graph_of(run)
    from torchtpu import schedule
    from torchtpu.modes import deferred

    monkeypatch.setattr(schedule, "programs", {})
    monkeypatch.setattr(deferred, "_schedules", {})
    again = graph_of(run)
    (program,) = schedule.programs.values()
    assert program.from_disk
    assert again.boxes == first.boxes
    assert again.boxes[2].ops == (0, 1, 2)
    assert "stablehlo.tanh" in again.text("stablehlo")
