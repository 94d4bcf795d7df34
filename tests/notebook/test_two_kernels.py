"""Two notebooks that compile for a chip at once, with one disk cache."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from jupyter_client.blocking import BlockingKernelClient
from jupyter_client.manager import KernelManager

from torchtpu import errors
from torchtpu.ahead import process
from torchtpu.report import Report

try:
    process.version()
except errors.CompilerMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

SETUP = "%load_ext torchtpu\nimport torch, torchtpu"
CELL = """%%tpu_mode defer_and_fuse --target v6e --save report.json
x = torch.ones(8, 256, device="tpu")
(x * 3).tanh().sum().item()
"""


@pytest.fixture
def kernels(tmp_path: Path) -> Iterator[list[BlockingKernelClient]]:
    """Two kernels, in the folders `0` and `1`."""
    managers, clients = [], []
    environment = os.environ | {"TORCHTPU_CACHE_DIR": str(tmp_path / "cache")}
    try:
        for k in range(2):
            (tmp_path / str(k)).mkdir()
            managers.append(KernelManager(kernel_name="python3"))
            managers[-1].start_kernel(cwd=str(tmp_path / str(k)), env=environment)
        for manager in managers:
            clients.append(manager.blocking_client())
            clients[-1].start_channels()
            clients[-1].wait_for_ready(60)
        yield clients
    finally:
        for client in clients:
            client.stop_channels()
        for manager in managers:
            manager.shutdown_kernel(now=True)


def run(clients: list[BlockingKernelClient], code: str) -> None:
    """Run a cell in all of them at once."""
    asked = {client: client.execute(code) for client in clients}
    for client, identity in asked.items():
        reply: dict[str, Any] = {"parent_header": {}}
        while reply["parent_header"].get("msg_id") != identity:
            reply = client.get_shell_msg(timeout=120)
        assert reply["content"]["status"] == "ok", reply["content"].get("traceback")


@pytest.mark.slow
def test_two_notebooks_compile_at_once_and_find_each_others_results(
    kernels: list[BlockingKernelClient], tmp_path: Path
) -> None:
    def targets() -> list[Any]:
        return [Report.from_json((tmp_path / str(k) / "report.json").read_text()).targets for k in range(2)]

    def figures(rows: tuple[Any, ...]) -> list[tuple[Any, ...]]:
        return [(r.program, r.peak - r.held, r.temp_bytes, r.code_bytes) for r in rows]

    run(kernels, SETUP)
    run(kernels, CELL)
    run(kernels, "%tpu_target wait")
    ones, others = targets()
    assert ones
    assert figures(ones) == figures(others)
    assert all(row.fits for row in ones)
    assert not list((tmp_path / "cache").glob("tmp*"))
    run(kernels, CELL)
    run(kernels, "%tpu_target wait")
    assert all(row.from_disk for rows in targets() for row in rows)
    assert [figures(rows) for rows in targets()] == [figures(ones)] * 2
