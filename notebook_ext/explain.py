"""`%tpu_explain`: how a tensor came to be."""

from __future__ import annotations

import torch
from IPython.core.error import UsageError
from IPython.core.magic import Magics, line_magic, magics_class
from IPython.display import display

from torchtpu.explain import explain


@magics_class
class ExplainMagics(Magics):
    """`%tpu_explain`."""

    @line_magic
    def tpu_explain(self, line: str) -> None:
        """Say how a tensor came to be: its ops and their lines, pending or computed, its bytes, and who holds it.

        Usage: `%tpu_explain x`, or any expression: `%tpu_explain model.head.weight.grad`. Nothing pending is run, unless the
        expression itself reads a value.
        """
        if not line.strip():
            raise UsageError("%tpu_explain takes a tensor: %tpu_explain x")
        value = self.shell.ev(line)
        if not isinstance(value, torch.Tensor) or value.device.type != "tpu":
            what = f"a tensor on {value.device}" if isinstance(value, torch.Tensor) else f"a {type(value).__name__}"
            raise UsageError(f"%tpu_explain takes a tensor on tpu; {line.strip()} is {what}")
        display(explain(value))
