"""How Hypothesis runs the state machine: a fixed part in `make test`, numbered parts in the long run."""

from __future__ import annotations

from hypothesis import HealthCheck, seed, settings
from hypothesis.stateful import run_state_machine_as_test

from tests.views.machine import Views

# The same programs on every run: the test fails for everybody or for nobody.
FIXED = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=500,
    stateful_step_count=16,
    print_blob=False,
    report_multiple_bugs=False,
    suppress_health_check=list(HealthCheck),
)


def run_part(number: int) -> str | None:
    """Run 500 longer programs, which follow from the part's number. Returns how the first failure reads."""
    machine = seed(number)(type("Views", (Views,), {}))
    try:
        run_state_machine_as_test(machine, settings=settings(FIXED, derandomize=False, stateful_step_count=24))
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None
