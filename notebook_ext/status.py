"""What `%tpu` says."""

from __future__ import annotations

import gc
import sys
from dataclasses import dataclass
from typing import Any

from torchtpu import client, config, hbm
from torchtpu.report import units


@dataclass(frozen=True, slots=True)
class Status:
    """The state of the device. Sizes are in bytes.

    Attributes:
        device: torch's name of it.
        platform: XLA's platform and what it is made of; in words while the device has not been started.
        mode: the eager mode in force.
        hbm_live, hbm_peak: held by tensors now, and at most since the start or the last reset.
        hbm_limit: of the device; None while it has not been started.
        programs: compiled and cached in this process.
    """

    device: str
    platform: str
    mode: str
    hbm_live: int
    hbm_peak: int
    hbm_limit: int | None
    programs: int

    def __str__(self) -> str:
        limit = units.nbytes(self.hbm_limit) if self.hbm_limit is not None else "known when the device has started"
        rows = {
            "device": self.device,
            "platform": self.platform,
            "mode": self.mode,
            "HBM in use": units.nbytes(self.hbm_live),
            "HBM peak": units.nbytes(self.hbm_peak),
            "HBM limit": limit,
            "programs": f"{self.programs:,} cached",
        }
        return "\n".join(f"{name:<12}{value}" for name, value in rows.items())


def status() -> Status:
    """Look at the device without starting it."""
    started = client.started()
    if started:
        device = client.device()
        kind = device.device_kind
        platform = device.platform if kind == device.platform else f"{device.platform} ({kind})"
    else:
        platform = f"not started yet (TORCHTPU_PLATFORM={config.platform or 'tpu if there is one, else cpu'})"
    modes: Any = sys.modules.get("torchtpu.modes")
    return Status(
        device="tpu:0",
        platform=platform,
        mode=modes.current().label if modes is not None else config.eager_mode,
        hbm_live=hbm.usage.live,
        hbm_peak=hbm.usage.peak,
        hbm_limit=client.memory_limit() if started else None,
        programs=_programs(),
    )


def _programs() -> int:
    program: Any = sys.modules.get("torchtpu.program")
    # The caches are many (one per plan, one for graphs), and what they hold is alive: count that.
    return sum(type(o) is program.Program for o in gc.get_objects()) if program is not None else 0
