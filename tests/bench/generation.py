"""Generation with a key-value cache that grows: each length is new. Every mode starts in a process of its own, and empty."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import torch

import torchtpu
from tests.bench.clock import Row, median, ratio
from tests.models import Decoder

_ROUNDS = 3
_AGAIN = 8
_TOKENS = 32
_MODES = ("strict", "defer_and_fuse")


def generation() -> list[Row]:
    """A 4-layer decoder (width 128) generates 32 tokens, then the same ones again and again."""
    runs: dict[str, list[dict[str, float]]] = {mode: [] for mode in _MODES}
    for _ in range(_ROUNDS):
        for mode in _MODES:
            command = [sys.executable, "-m", "tests.bench.generation", mode]
            environment = os.environ | {"TORCHTPU_CACHE_DIR": "off"}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True)
            runs[mode].append(json.loads(done.stdout))
    strict, fused = ({key: [run[key] for run in runs[mode]] for key in runs[mode][0]} for mode in _MODES)
    return [
        Row("generate: fused, all lengths new", median(fused["first"]), "s"),
        Row("generate: strict / fused, all lengths new", ratio(strict["first"], fused["first"]), "x", ">= 1"),
        Row("generate: strict / fused, again", ratio(strict["again"], fused["again"]), "x", ">= 1"),
        Row("generate: compiles, fused / strict", ratio(fused["compiles"], strict["compiles"]), "x", "<= 1"),
    ]


def measure(mode: str) -> dict[str, float]:
    """Generate in a mode. Returns the seconds of the first pass and of a later one (median), and the number of compiles."""
    torch.manual_seed(0)
    model = Decoder(width=128, layers=4).to("tpu")
    prompt = torch.arange(8, device="tpu")[None]
    torch.tpu.synchronize()
    seconds = []
    with torch.tpu.set_eager_mode(mode), torchtpu.watch() as report:
        for _ in range(1 + _AGAIN):
            start = time.perf_counter()
            model.generate(prompt, _TOKENS)
            seconds.append(time.perf_counter() - start)
    return {"first": seconds[0], "again": median(seconds[1:]), "compiles": len(report.compile_events)}


if __name__ == "__main__":
    print(json.dumps(measure(sys.argv[1])))
