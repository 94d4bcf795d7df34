"""What every test may use."""

from __future__ import annotations

import gc
import shutil
import signal
import sys
from collections.abc import Iterator

import pytest

import torchtpu  # noqa: F401  (registers the device)
from torchtpu import config, modes


def pytest_configure() -> None:
    """Let tests press Ctrl-C: a shell that starts a job in the background has it ignore that, and its children too."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="module", autouse=True)
def nothing_left_of_other_files() -> None:
    """Free what earlier files left to the garbage collector: tests of memory count every tensor of the process."""
    for name in ("last_exc", "last_type", "last_value", "last_traceback"):
        sys.__dict__.pop(name, None)
    gc.collect()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip browser tests where there is no Chromium. `make setup` installs it where it can."""
    if shutil.which("chromium") is None:
        for item in items:
            if item.get_closest_marker("browser"):
                item.add_marker(pytest.mark.skip(reason="no chromium on PATH"))


MODES = ("strict", "debug", "defer_and_fuse")


@pytest.fixture(params=MODES)
def mode(request: pytest.FixtureRequest) -> Iterator[str]:
    """Run the test once in each eager mode."""
    with modes.scope(request.param):
        yield request.param


@pytest.fixture
def no_fallback() -> Iterator[None]:
    """Make an operator that would run on the CPU an error."""
    with config.options(cpu_fallback="error"):
        yield


@pytest.fixture(scope="module")  # a session's would keep its event loop running under everybody else's tests
def browser() -> Iterator:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        yield chromium
        chromium.close()
