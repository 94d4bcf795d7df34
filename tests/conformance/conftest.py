"""Fixtures of the conformance tests."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """Free what a test's errors keep alive in reference cycles: later tests account for device memory to the byte."""
    yield
    gc.collect()
