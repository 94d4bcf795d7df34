"""`torch.profiler.profile` captures `tpu` too, where it is given a handler or a configuration of torchtpu's.

    with torch.profiler.profile(
        schedule=torch.profiler.schedule(wait=1, warmup=1, active=3),
        on_trace_ready=torchtpu.profiler.tensorboard_trace_handler("runs"),
    ) as p:
        for batch in batches:
            train_step(batch)
            p.step()

PyTorch's own trace (of the CPU) goes on as it does; this one begins and ends with it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from torchtpu import _torch_gaps
from torchtpu.profiler import capture
from torchtpu.profiler.capture import Capture


class TpuProfilerConfig(torch.profiler._ExperimentalConfig):
    """How `torch.profiler.profile(experimental_config=...)` traces `tpu`. The names are those of Google's torch_tpu.

    Args:
        host_tracer_level: what XLA notes on the host: 0 nothing, 1 what users annotate, 2 and 3 more.
        device_tracer_level: 0: no device events (a chip's own tracer; XLA:CPU notes kernels at host level 2).
        python_tracer_level: 1: every Python call too.
        run_dir: the log directory; the handler's, or `tpu_profiles`, if left out.
        experimental_options: for a chip's tracer, by name: handed on to XLA as they are.
        check_experimental_options: whether a value must be a string, a bool or a whole number.

    Raises:
        ValueError: a level or an option's value of another kind.
    """

    def __init__(
        self,
        *,
        host_tracer_level: int = 2,
        device_tracer_level: int = 1,
        python_tracer_level: int = 0,
        run_dir: str | os.PathLike[str] | None = None,
        experimental_options: Mapping[str, str | bool | int] | None = None,
        check_experimental_options: bool = True,
    ) -> None:
        super().__init__()
        levels = (("host", host_tracer_level, 3), ("device", device_tracer_level, 1), ("python", python_tracer_level, 1))
        for name, level, most in levels:
            if not 0 <= level <= most:
                raise ValueError(f"{name}_tracer_level={level}: use 0 to {most}")
        options = dict(experimental_options or {})
        for name, value in options.items():
            if check_experimental_options and not isinstance(value, str | bool | int):
                raise ValueError(f"experimental_options[{name!r}] is {value!r}: use a string, a bool or a whole number")
        self.host_tracer_level = host_tracer_level
        self.device_tracer_level = device_tracer_level
        self.python_tracer_level = python_tracer_level
        self.run_dir = Path(run_dir) if run_dir is not None else None
        self.experimental_options = options
        _hook()


class TraceHandler:
    """What `tensorboard_trace_handler` returns, for `on_trace_ready`.

    Attributes:
        logdir: where runs go.
        profiles: what was captured, a `Profile` for each cycle of the schedule.
    """

    def __init__(self, logdir: str | os.PathLike[str], name: str) -> None:
        self.logdir, self.name = logdir, name
        self.profiles: list[Any] = []

    def __call__(self, profiler: torch.profiler.profile) -> None:
        """Nothing: the run is written when the trace stops."""


def tensorboard_trace_handler(dir_name: str | os.PathLike[str], worker_name: str | None = None) -> TraceHandler:
    """Return a handler for `torch.profiler.profile(on_trace_ready=...)`, which also captures what runs on `tpu`.

    Args:
        dir_name: the log directory, as for `torchtpu.profiler.profile`.
        worker_name: goes into the run's name.
    """
    _hook()
    return TraceHandler(dir_name, worker_name or "")


_captures: dict[int, Capture] = {}  # by torch's profiler


def _hook() -> None:
    _torch_gaps.profiler_traces(_started, _stopped)


def _started(profiler: torch.profiler.profile) -> None:
    handler = getattr(profiler, "on_trace_ready", None)
    config = getattr(profiler, "experimental_config", None)
    ours = isinstance(handler, TraceHandler)
    if not ours and not isinstance(config, TpuProfilerConfig):
        return
    logdir: Any = handler.logdir if ours else capture.DEFAULT_LOGDIR
    levels = capture.Levels()
    if isinstance(config, TpuProfilerConfig):
        logdir = config.run_dir or logdir
        levels = capture.Levels(
            config.host_tracer_level, config.device_tracer_level, config.python_tracer_level, config.experimental_options
        )
    _captures[id(profiler)] = capture.start(logdir, name=handler.name if ours else "", levels=levels)


def _stopped(profiler: torch.profiler.profile) -> None:
    made = _captures.pop(id(profiler), None)
    if made is None:
        return
    capture.stop(made)
    handler = getattr(profiler, "on_trace_ready", None)
    if isinstance(handler, TraceHandler):
        handler.profiles.append(made.profile)
