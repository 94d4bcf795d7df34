"""How large graphs are cut into programs, and which inputs give their memory to an output."""

import gc

import pytest
import torch

import torchtpu
from torchtpu import modes, program, schedule

SIZE = 256
NBYTES = SIZE * SIZE * 4


@pytest.fixture
def large(monkeypatch):
    """Let graphs count as large from a few matrices on."""
    monkeypatch.setattr(schedule, "LARGE", 4 * NBYTES)


def training_step():
    torch.manual_seed(0)
    layers = [m for _ in range(4) for m in (torch.nn.Linear(SIZE, SIZE), torch.nn.GELU())]
    model = torch.nn.Sequential(*layers).to("tpu")
    x = torch.randn(SIZE, SIZE).to("tpu")

    def step():
        model.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        return loss

    return model, step


def test_a_large_forward_pass_runs_while_the_backward_pass_is_recorded(large):
    _, step = training_step()
    with modes.scope("defer_and_fuse"):
        with torchtpu.watch() as report:
            step()
        assert [f.reason for f in report.flushes] == ["start of backward", "end of backward"]
        with torchtpu.watch() as report:
            step()
        assert report.compile_events == ()


def test_a_small_one_does_not():
    _, step = training_step()
    with modes.scope("defer_and_fuse"), torchtpu.watch() as report:
        step()
    assert [f.reason for f in report.flushes] == ["end of backward"]


def test_parts_compute_what_one_program_computes(large):
    model, step = training_step()
    expected = step().item(), [p.grad.tolist() for p in model.parameters()]
    with modes.scope("defer_and_fuse"):
        loss = step().item()
    assert loss == pytest.approx(expected[0], rel=1e-6)
    for p, grad in zip(model.parameters(), expected[1], strict=True):
        torch.testing.assert_close(p.grad.cpu(), torch.tensor(grad))


def test_parts_need_no_more_memory_than_op_by_op(large):
    _, step = training_step()
    peaks = {}
    for mode in ("strict", "defer_and_fuse"):
        with modes.scope(mode):
            for _ in range(2):  # the first step makes the gradients
                with torchtpu.watch() as report:
                    step()
            peaks[mode] = report.hbm_peak - report.hbm_before
    assert peaks["defer_and_fuse"] <= peaks["strict"]


def only_program(make):
    """Return the one fused program of a graph whose inputs die with it."""
    with modes.scope("defer_and_fuse"):
        inputs = [torch.randn(SIZE, SIZE, device="tpu") for _ in range(2)]
        modes.flush("test")
        with torchtpu.watch() as report:
            results = make(inputs)
            inputs.clear()
            modes.flush("test")
        assert all(r.isfinite().all() for r in results)
    (program,) = report.programs[:1]
    return program


def test_an_elementwise_op_writes_over_an_input_that_dies():
    program = only_program(lambda x: [torch.relu(x[0]) * x[1] + 1])
    assert (program.alias_bytes, program.temp_bytes) == (NBYTES, 0)


def test_an_input_that_another_op_may_still_read_is_not_written_over():
    # XLA could run the two in any order, and would copy the matrix to be able to.
    program = only_program(lambda x: [x[0] @ x[0], x[0] * 2])
    assert (program.alias_bytes, program.temp_bytes) == (0, 0)


def test_a_product_does_not_write_over_what_it_reads():
    program = only_program(lambda x: [x[0] @ x[1]])
    assert (program.alias_bytes, program.temp_bytes) == (0, 0)


def test_an_input_read_only_before_the_output_is_made_gives_its_memory():
    program = only_program(lambda x: [(x[0] @ x[1]).relu() @ x[1]])
    assert program.alias_bytes == NBYTES


def test_each_output_takes_the_memory_that_it_was_matched_with(mode):
    """The parameter comes first among AdamW's inputs, and last among its results."""
    model = torch.nn.Linear(SIZE, SIZE).to("tpu")
    optimizer = torch.optim.AdamW(model.parameters())
    with modes.scope(mode):
        for _ in range(2):
            optimizer.zero_grad()
            (model(torch.ones(SIZE, SIZE, device="tpu")) ** 2).mean().backward()
            modes.flush("test")
            with torchtpu.watch() as report:
                optimizer.step()
    assert sum(p.alias_bytes for p in report.programs) > 3 * NBYTES
    assert max(p.temp_bytes for p in report.programs) < NBYTES


def test_programs_are_forgotten_before_they_are_too_many(mode, monkeypatch):
    before = alive()
    monkeypatch.setattr(program, "MAX_PROGRAMS", 20)
    x = torch.arange(100, device="tpu")
    for n in range(1, 60):
        assert (x[:n] + 1).sum().item() == n * (n + 1) // 2
    assert alive() < before + 60


def test_no_graph_keeps_the_programs_of_its_last_run(monkeypatch):
    before = alive()
    monkeypatch.setattr(program, "MAX_PROGRAMS", 20)
    x = torch.arange(7.0, device="tpu")
    with modes.scope("defer_and_fuse"):
        for n in range(1, 60):  # each a graph of other ops, not only of other shapes
            y = x
            for _ in range(n):
                y = y + 1
            assert y[0].item() == n
    assert alive() < before + 30


def alive() -> int:
    gc.collect()
    return sum(type(o) is program.Program for o in gc.get_objects())
