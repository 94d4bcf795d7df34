"""Several sessions that compile for chips at once, with one disk cache; and what a session leaves when it ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from torchtpu import ahead, disk_cache, errors
from torchtpu.ahead import process

try:
    process.version()
except errors.CompilerMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

SESSION = """
import json, sys, time
import torch, torchtpu
from tests.ahead.test_sharing import captured
from torchtpu.ahead import process

program = captured()
print("ready", flush=True)
sys.stdin.readline()
began = time.monotonic()
result = program.compile("v6e")
ended = time.monotonic()
figures = [result.memory.arguments, result.hbm_peak, result.hlo]
told = {"figures": figures, "from_disk": result.from_disk, "pids": process.shared.pids, "began": began, "ended": ended}
print(json.dumps(told), flush=True)
sys.stdin.readline()
"""


def captured() -> ahead.Captured:
    x, w = torch.empty(1000, 1000, device="meta"), torch.empty(1000, 100, device="meta")
    return ahead.capture(lambda: torch.tanh(x @ w))


class Session:
    """A Python that is ready to compile. At its end it must have nothing to complain about."""

    def __init__(self, cache: Path) -> None:
        environment = os.environ | {"TORCHTPU_CACHE_DIR": str(cache)}
        self._popen = subprocess.Popen(
            [sys.executable, "-W", "always::ResourceWarning", "-c", SESSION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[2],
            env=environment,
            text=True,
        )

    def ready(self) -> None:
        assert self._popen.stdout.readline() == "ready\n", self._popen.stderr.read()

    def go_on(self) -> None:
        self._popen.stdin.write("\n")
        self._popen.stdin.flush()

    def told(self) -> dict[str, Any]:
        return json.loads(self._popen.stdout.readline())

    def end(self) -> str:
        """End it; return what it complained about."""
        return self._popen.communicate("\n", timeout=60)[1]


@pytest.mark.slow
def test_two_sessions_compile_at_once_and_a_third_finds_the_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sessions = [Session(tmp_path), Session(tmp_path)]
    for session in sessions:
        session.ready()
    for session in sessions:
        session.go_on()
    one, other = (session.told() for session in sessions)
    assert max(one["began"], other["began"]) < min(one["ended"], other["ended"])
    assert one["figures"] == other["figures"]
    assert (one["from_disk"], other["from_disk"]) == (False, False)
    pids = {*one["pids"], *other["pids"]}
    assert len(pids) == 2
    assert all(Path(f"/proc/{pid}").exists() for pid in pids)
    assert [session.end() for session in sessions] == ["", ""]
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)
    (file,) = tmp_path.iterdir()
    assert file.name.startswith("tpu-")
    monkeypatch.setattr(disk_cache, "folder", lambda: tmp_path)
    third = captured().compile("v6e")
    assert third.from_disk
    assert [third.memory.arguments, third.hbm_peak, third.hlo] == one["figures"]
