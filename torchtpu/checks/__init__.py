"""Debug mode's checks of one op: indices in range, NaN or Inf appearing, agreement with the CPU, and stops before it."""

from torchtpu.checks.breakpoints import before_op
from torchtpu.checks.cpu import Difference, against_cpu
from torchtpu.checks.finding import Finding, Input, Statistics
from torchtpu.checks.finite import finite
from torchtpu.checks.indices import indices

__all__ = ["Difference", "Finding", "Input", "Statistics", "against_cpu", "before_op", "finite", "indices"]
