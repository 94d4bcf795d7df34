"""What a real kernel sends while a cell runs, and Ctrl-C while it compiles. One kernel for all of it."""

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from jupyter_client.manager import KernelManager

pytestmark = pytest.mark.slow

# Takes seconds to compile, milliseconds to run.
SETUP = """
%load_ext torchtpu
import time, torch, torchtpu
from torchtpu import compiler, modes, schedule
x = torch.linspace(0, 1, 64).reshape(8, 8).to("tpu")

def chain(y, matrix, n):
    for k in range(n):
        y = torch.sin(y) @ matrix * 0.25 + k / 100
    return y

def check(value, n):
    m = torch.linspace(0, 1, 64).reshape(8, 8)
    torch.testing.assert_close(value.cpu(), chain(m, m, n), rtol=1e-3, atol=1e-3)
"""


class Run:
    """A cell that has run: what the kernel sent, in order, and when."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []
        self.times: list[float] = []

    def shown(self) -> list[tuple[float, bool, str, dict[str, str]]]:
        """(time, whether it replaced something, display id, what) of each display."""
        displays = []
        for t, message in zip(self.times, self.messages, strict=True):
            kind, content = message["msg_type"], message["content"]
            if kind in ("display_data", "update_display_data"):
                identity = content.get("transient", {}).get("display_id")
                displays.append((t, kind == "update_display_data", identity, content["data"]))
        return displays

    @property
    def printed(self) -> str:
        return "".join(m["content"]["text"] for m in self.messages if m["msg_type"] == "stream")

    @property
    def error(self) -> str | None:
        return next((m["content"]["ename"] for m in self.messages if m["msg_type"] == "error"), None)


class Kernel:
    """A kernel that has loaded torchtpu."""

    def __init__(self, manager: KernelManager) -> None:
        self.manager = manager
        self.client = manager.blocking_client()
        self.client.start_channels()
        self.client.wait_for_ready(60)

    def run(self, code: str, interrupt: Callable[[dict[str, Any]], bool] | None = None) -> Run:
        """Run a cell, and interrupt it at the first message for which `interrupt` holds."""
        run = Run()
        started = time.perf_counter()
        identity = self.client.execute(code)
        while True:
            message = self.client.get_iopub_msg(timeout=60)
            if message["parent_header"].get("msg_id") != identity:
                continue
            run.messages.append(message)
            run.times.append(time.perf_counter() - started)
            if message["msg_type"] == "status" and message["content"]["execution_state"] == "idle":
                return run
            if interrupt is not None and interrupt(message):
                self.manager.interrupt_kernel()
                interrupt = None


@pytest.fixture(scope="module")
def kernel(tmp_path_factory) -> Iterator[Kernel]:
    import os

    manager = KernelManager(kernel_name="python3")
    environment = os.environ | {"TORCHTPU_CACHE_DIR": "off"}
    manager.start_kernel(cwd=str(tmp_path_factory.mktemp("kernel")), env=environment)
    kernel = Kernel(manager)
    assert kernel.run(SETUP).error is None
    # A process traces its first program slowly, and a compile can only be interrupted once it has begun.
    kernel.run("with modes.scope('defer_and_fuse'): chain(x, x.clone().requires_grad_(), 2).sum().backward()")
    yield kernel
    kernel.client.stop_channels()
    manager.shutdown_kernel(now=True)


def says(text: str) -> Callable[[dict[str, Any]], bool]:
    return lambda message: text in str(message["content"].get("data", {}).get("text/plain", ""))


def test_UP_130_a_line_is_shown_while_xla_compiles_and_the_report_takes_its_place(kernel):
    run = kernel.run("%%tpu_mode defer_and_fuse\nprint('before')\nchain(x, x, 120).sum().item()")
    *live, (_, _, _, report) = shown = run.shown()
    lines = [data["text/plain"] for *_, data in live]
    assert any("compiling" in line and "program 1: 48" in line for line in lines)
    assert all(line.startswith("defer_and_fuse is running: ") for line in lines)
    assert any("ops pending" in line for line in lines)
    assert report["text/plain"].startswith("torchtpu defer_and_fuse: ")
    assert len({identity for _, _, identity, _ in shown}) == 1
    assert [replaced for _, replaced, _, _ in shown] == [False] + [True] * len(live)
    times = [t for t, *_ in live]
    assert times[0] >= 0.5
    assert len(times) <= 1 + 5 * (times[-1] - times[0])
    assert set(report) == {"text/html", "text/plain"}
    types = [m["msg_type"] for m in run.messages]
    assert types.index("display_data") > types.index("stream")


@pytest.mark.parametrize(
    ("cell", "shown"),
    [
        ("%%tpu_mode strict\n(x + 1).sum().item()", 1),
        ("%%tpu_mode strict --quiet\ntime.sleep(0.8)", 0),
        ("time.sleep(0.8)", 0),
    ],
    ids=["fast", "quiet", "not watched"],
)
def test_no_line(kernel, cell, shown):
    assert len(kernel.run(cell).shown()) == shown


@pytest.mark.parametrize("mode", ["strict", "debug", "defer_and_fuse"])
def test_a_cell_that_fails_leaves_its_report_and_nothing_after_it(kernel, mode):
    run = kernel.run(f"%%tpu_mode {mode}\ny = (x + 1).sum()\ntime.sleep(0.8)\n1 / 0")
    assert run.error == "ZeroDivisionError"
    (*live, last) = [data["text/plain"] for *_, data in run.shown()]
    assert live
    assert "! Ended by ZeroDivisionError" in last
    assert not kernel.run("time.sleep(0.6)").shown()


def test_lines_and_prints_do_not_mix(kernel):
    run = kernel.run("%%tpu_mode strict\nfor k in range(400):\n    print(k)\n    time.sleep(0.002)")
    assert run.printed.split() == [str(k) for k in range(400)]


def test_ctrl_c_while_xla_compiles(kernel):
    cell = "%%tpu_mode defer_and_fuse\ny = chain(x, x, 120)\ny[0, 0].item()"
    run = kernel.run(cell, interrupt=says("compiling"))
    assert run.error == "CompileInterrupted"
    assert "! Ended by CompileInterrupted: fused_" in run.shown()[-1][-1]["text/plain"]
    before = kernel.run("print(modes.pending(), modes.current().label)")
    assert before.printed.split()[1] == "strict"
    assert int(before.printed.split()[0]) >= 160
    after = kernel.run("check(y, 120); print(modes.pending(), len(compiler._jobs))")
    assert after.error is None
    assert after.printed.split() == ["0", "0"]


def test_ctrl_c_while_a_backward_pass_compiles(kernel):
    cell = """%%tpu_mode defer_and_fuse
w = x.clone().requires_grad_()
torch.tpu.synchronize()
loss = chain(x, w, 70).sum()
loss.backward()"""
    run = kernel.run(cell, interrupt=says("compiling"))
    assert run.error == "KeyboardInterrupt"
    assert int(kernel.run("print(modes.pending())").printed) > 0
    check = """m = torch.linspace(0, 1, 64).reshape(8, 8)
v = m.clone().requires_grad_()
chain(m, v, 70).sum().backward()
torch.testing.assert_close(w.grad.cpu(), v.grad, rtol=1e-3, atol=1e-3)
print(modes.pending(), len(compiler._jobs))"""
    after = kernel.run(check)
    assert after.error is None
    assert after.printed.split() == ["0", "0"]
