"""Fixtures of the device tests."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture
def script() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a new Python process: what it prints, and how it ends, can then be checked."""

    def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
        variables = {k: v for k, v in os.environ.items() if not k.startswith("TORCHTPU_")}
        variables |= {"PYTHONPATH": str(ROOT), **environment}
        return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables, timeout=120)

    return run
