"""Compiles that are seen while they happen, and that Ctrl-C does not lose."""

import os
import signal
import threading
from collections.abc import Iterator

import pytest
import torch

from torchtpu import compiler, config, modes
from torchtpu.modes import deferred


class Lowered:
    """What jax would compile; it takes until `go` is set."""

    def __init__(self, text: str, error: Exception | None = None) -> None:
        self.text, self.error = text, error
        self.go = threading.Event()
        self.compiles = 0

    def as_text(self, debug_info: bool) -> str:
        return self.text

    def compile(self, compiler_options: dict) -> object:
        self.compiles += 1
        assert self.go.wait(30)
        if self.error is not None:
            raise self.error
        return f"compiled {self.text}"


@pytest.fixture(autouse=True)
def nothing_on_disk(monkeypatch) -> None:
    monkeypatch.setattr(compiler.disk_cache, "folder", lambda: None)


def press_ctrl_c_when(condition) -> threading.Thread:
    """Send SIGINT to this process as soon as a condition holds."""

    def press() -> None:
        for _ in range(4000):
            if condition():
                os.kill(os.getpid(), signal.SIGINT)
                return
            threading.Event().wait(0.01)

    thread = threading.Thread(target=press)
    thread.start()
    return thread


def compile(lowered: Lowered) -> tuple[object, bool]:
    with compiler.announce("fused_3_ops#1", 3) as about:
        return compiler.compile(about, lowered, {})


def test_a_compile_is_seen_by_other_threads():
    lowered, seen = Lowered("seen"), []
    timer = threading.Timer(0.05, lambda: (seen.extend(compiler.underway()), lowered.go.set()))
    timer.start()
    assert compile(lowered) == ("compiled seen", False)
    (about,) = seen
    assert (about.program, about.ops) == ("fused_3_ops#1", 3)
    assert about.seconds > 0
    assert compiler.underway() == []


def test_an_interrupted_compile_goes_on_and_its_result_is_used():
    lowered = Lowered("interrupted")
    with pytest.raises(KeyboardInterrupt, match=r"fused_3_ops#1 is still being compiled, in the background"):
        press_ctrl_c_when(lambda: lowered.compiles)
        compile(lowered)
    assert [c.program for c in compiler.underway()] == ["fused_3_ops#1"]
    lowered.go.set()
    assert compile(lowered) == ("compiled interrupted", False)
    assert lowered.compiles == 1
    assert not compiler.busy()


def test_an_error_of_the_compiler_is_raised_where_it_was_asked():
    lowered = Lowered("wrong", ValueError("no such thing"))
    lowered.go.set()
    for _ in range(2):  # it is not remembered
        with pytest.raises(ValueError, match="no such thing"):
            compile(lowered)
    assert lowered.compiles == 2


class Slow:
    """Real compiles that begin only when `go` is set; `waiting` is set while one waits for that."""

    def __init__(self) -> None:
        self.go, self.waiting = threading.Event(), threading.Event()

    def interrupt(self, work) -> None:
        """Press Ctrl-C while XLA is at what some work needs."""
        self.go.clear()
        self.waiting.clear()
        pressed = press_ctrl_c_when(self.waiting.is_set)
        with pytest.raises(KeyboardInterrupt):
            work()
        pressed.join()


@pytest.fixture
def slow(monkeypatch) -> Iterator[Slow]:
    slow, real = Slow(), compiler._Job._run
    slow.go.set()

    def run(job, *arguments) -> None:
        slow.waiting.set()
        slow.go.wait(20)  # no longer: a test that fails must not hang
        real(job, *arguments)

    monkeypatch.setattr(compiler._Job, "_run", run)
    yield slow
    slow.go.set()


def test_a_graph_stays_pending_when_its_compile_is_interrupted(slow):
    with modes.scope("defer_and_fuse"):
        x = torch.arange(37.0, device="tpu")
        y = (x * 3 + 1).sin()
        slow.interrupt(y.cpu)
        pending = modes.pending()
        assert pending >= 3
        modes.flush("end of cell")  # does not wait
        assert modes.pending() == pending
        slow.go.set()
        programs = len(deferred.programs())
        torch.testing.assert_close(y.cpu(), (torch.arange(37.0) * 3 + 1).sin())
        assert len(deferred.programs()) == programs + 1
        assert modes.pending() == 0


def test_ops_after_an_interrupt_do_not_change_what_is_compiled(slow):
    with modes.scope("defer_and_fuse"):
        x = torch.arange(41.0, device="tpu")
        y = (x * 5 + 1).cos()
        slow.interrupt(y.cpu)
        slow.go.set()
        z = (y + 1).cpu()  # runs what was interrupted first, then this
        torch.testing.assert_close(z, (torch.arange(41.0) * 5 + 1).cos() + 1)
        assert compiler._jobs == {}


def test_a_mode_can_be_left_while_an_interrupted_compile_goes_on(slow):
    with modes.scope("defer_and_fuse"):
        y = torch.arange(43.0, device="tpu") * 7
        slow.interrupt(y.cpu)
    slow.go.set()
    assert modes.current().label == "strict"
    assert (y + 1).sum().item() == sum(7.0 * k + 1 for k in range(43))


@pytest.mark.parametrize("other", ["strict", "debug"])
def test_an_op_that_was_interrupted_can_run_again(slow, other):
    with modes.scope(other):
        slow.go.set()
        x = torch.arange(47.0, device="tpu")
        exponent = 3 if other == "strict" else 4
        slow.interrupt(lambda: torch.pow(x, exponent))
        slow.go.set()
        assert torch.pow(x, exponent)[2].item() == 2.0**exponent


def test_ctrl_c_ends_the_wait_at_the_end_of_a_backward_pass(slow):
    assert compiler.interrupts.listen()
    try:
        with modes.scope("defer_and_fuse"):
            slow.go.set()
            w = torch.ones(53, device="tpu", requires_grad=True)
            x = torch.arange(53.0, device="tpu")
            modes.flush("test")
            loss = (w * x).square().sum()
            slow.interrupt(loss.backward)
            assert modes.pending() > 0
            slow.go.set()
            torch.testing.assert_close(w.grad.cpu(), 2 * torch.arange(53.0).square())
            assert compiler._jobs == {}
    finally:
        compiler.interrupts.stop()


def test_op_by_op_graphs_stay_pending_too(slow):
    """Churn: graphs that differ only in shapes are run op by op from the fourth on."""
    slow.go.set()
    with modes.scope("defer_and_fuse"), config.options(churn_limit=1):
        for n in (5, 6):
            (torch.ones(n, device="tpu").tanh() * 9).cpu()
        y = torch.ones(7, device="tpu").tanh() * 9
        slow.interrupt(y.cpu)
        slow.go.set()
        torch.testing.assert_close(y.cpu(), torch.ones(7).tanh() * 9)


def test_listening_leaves_another_library_its_wakeup_descriptor():
    sockets = compiler.socket.socketpair()
    for s in sockets:
        s.setblocking(False)
    signal.set_wakeup_fd(sockets[1].fileno())
    try:
        assert not compiler.interrupts.listen()
        compiler.interrupts.stop()
    finally:
        assert signal.set_wakeup_fd(-1) == sockets[1].fileno()
        for s in sockets:
            s.close()
