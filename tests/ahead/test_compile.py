"""The TPU compiler: its figures, what does not fit, what it refuses, and what happens to its process."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import torchtpu
from torchtpu import ahead, disk_cache, errors
from torchtpu.ahead import process
from torchtpu.report.to_json import decode

try:
    process.version()
except errors.CompilerMissingError as error:
    pytest.skip(str(error), allow_module_level=True)

MIB = 1 << 20


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty disk cache for each test."""
    monkeypatch.setattr(disk_cache, "folder", lambda: tmp_path)
    return tmp_path


@pytest.fixture(scope="module", autouse=True)
def end_the_process() -> Iterator[None]:
    yield
    process.shared.stop()


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return torch.tanh(x @ w)


def arguments(n: int = 1000) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.empty(n, n, device="meta"), torch.empty(n, 100, device="meta")


def test_the_chips() -> None:
    names = [chip.name for chip in torchtpu.targets()]
    assert names == ["v4", "v5e", "v5p", "v6e", "tpu7x"]
    assert ahead.chip("V6E") is torchtpu.targets()[3]
    assert ahead.chip("v5e").hbm_bytes == int(15.75 * 2**30)
    assert [c.name for c in ahead.parse("v5e, v6e,v5e")] == ["v5e", "v6e"]
    assert ahead.parse("all") == torchtpu.targets()
    with pytest.raises(errors.UnknownChipError, match=r"'v6': use one of v4, v5e, v5p, v6e, tpu7x\. Did you mean 'v6e'\?"):
        torchtpu.compile_for(product, *arguments(), target="v6")


def test_asking_for_chips_loads_neither_jax_nor_what_compiles() -> None:
    code = """
import sys, torchtpu
print([m for m in sys.modules if m.startswith("torchtpu.ahead")])
torchtpu.targets()
print([m for m in ("jax", "torchtpu.ahead.jobs", "torchtpu.ahead.process") if m in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split("\n")[:2] == ["[]", "[]"]


def test_figures_are_the_compilers_and_padding_shows() -> None:
    result = torchtpu.compile_for(product, *arguments(), target="v6e")
    assert result.fits
    assert result.compiler.startswith("libtpu ")
    # 1000 rows of 1000 are tiles of 8 x 128; 100 columns are padded to 128, or, transposed, to 104.
    assert 4_400_000 <= result.memory.arguments <= 4_700_000
    assert result.hbm_peak == result.memory.peak >= result.memory.arguments + result.memory.outputs + result.memory.code
    assert result.memory.code > 0
    assert result.flops == pytest.approx(2 * 1000 * 1000 * 100, rel=0.01)
    assert result.roofline.bound == "memory"
    assert result.roofline.seconds == pytest.approx(result.bytes_accessed / 1640e9)
    first = result.largest[0]
    assert (first.role, first.what, first.op, first.unpadded) == ("argument", "float32[1000,1000]", "aten::mm", 4_000_000)
    assert first.padded == 1000 * 1024 * 4
    assert "torch.tanh(x @ w)" in first.line.source
    assert {op for kernel in result.fusions for op in kernel.ops} == {0, 1}
    assert "T(8,128)" in result.hlo
    assert "stablehlo.tanh" in result.stablehlo


def test_a_result_as_text_html_and_json() -> None:
    result = torchtpu.compile_for(product, *arguments(), target="v6e", held=5 * MIB)
    assert result.memory.held == 5 * MIB
    text = result.to_text()
    for words in ("product for v6e: fits", "(compiled)", "(modelled)", "compiler's model", "5.0 MiB held", "effort 'memory'"):
        assert words in text
    assert "<script" not in result._repr_html_()
    assert "float32[1000,1000]" in result._repr_html_()
    again = ahead.Compiled.from_json(result.to_json())
    assert again == result
    assert again.hlo == again.stablehlo == ""
    with pytest.raises(ValueError, match=r"not a torchtpu\.compiled"):
        ahead.Compiled.from_json("[]")
    assert decode(ahead.Memory, {"arguments": 1, "outputs": 2, "aliased": 1, "temporaries": 4, "code": 5, "held": 6}).peak == 17


def three_products(x: torch.Tensor) -> torch.Tensor:
    y = torch.sin(x) @ x
    return ((y.flip(0) @ x).flip(1) @ y).sum()


def test_too_large_says_by_how_much() -> None:
    result = torchtpu.compile_for(product, *arguments(), target="v5e", hbm=3 * MIB)
    assert not result.fits
    assert result.limit == 3 * MIB
    assert result.hbm_peak > 4 * MIB
    assert "more than the 3.0 MiB that there are" in result.reason
    assert result.largest
    full = torchtpu.compile_for(product, *arguments(), target="v5e", hbm=result.hbm_peak + MIB)
    assert full.fits
    assert full.hbm_peak - full.memory.code == result.hbm_peak - result.memory.code
    # Needs more than its arguments and results: the compiler finds out.
    result = torchtpu.compile_for(three_products, torch.empty(1024, 1024, device="meta"), target="v5e", hbm=6 * MIB)
    assert not result.fits
    assert "exceeds available HBM" in result.reason


def test_temporaries_too_large_for_the_chip_itself_are_told_by_a_larger_one() -> None:
    result = torchtpu.compile_for(three_products, torch.empty(40_000, 40_000, device="meta"), target="v5e")
    assert not result.fits and not result.refused
    assert result.hbm_peak > 4 * 40_000**2 * 3
    assert result.reason.startswith("as compiled for v5p, which has room, it needs ")
    assert result.largest


def test_too_large_for_every_chip() -> None:
    result = torchtpu.compile_for(three_products, torch.empty(140_000, 140_000, device="meta"), target="v5e")
    assert not result.fits and not result.refused
    assert result.hbm_peak > 4 * 140_000**2 * 3
    assert "roofline" not in result.to_text()


def test_several_chips() -> None:
    results = torchtpu.compile_for(product, *arguments(), target="v5e,v6e")
    assert [r.chip.name for r in results] == ["v5e", "v6e"]


def test_a_program_of_many_dtypes_is_lowered_for_the_tpu() -> None:
    x = torch.empty(64, 64, dtype=torch.float64, device="meta")
    result = torchtpu.compile_for(lambda: (x @ x).to(torch.bfloat16), target="v6e")
    assert result.fits
    assert "barrier" not in result.stablehlo  # what XLA:CPU alone needs


def test_products_that_are_emulated_here_are_the_chips_own_there() -> None:
    with torchtpu.config.options(numerics="tpu"), torch.tpu.precision(torch.tpu.Precision.HIGH):
        result = torchtpu.compile_for(product, *arguments(), target="v6e")
    assert result.stablehlo.count("stablehlo.dot_general") == 1
    assert "precision = [HIGH, HIGH]" in result.stablehlo


def test_what_the_compiler_refuses_is_an_error_with_the_line() -> None:
    def transform(x: torch.Tensor) -> torch.Tensor:
        return torch.fft.fft(x)

    with pytest.raises(errors.CompileError, match=r"cannot compile transform for v6e: .*FFT"):
        torchtpu.compile_for(transform, torch.empty(64, 64, dtype=torch.float64, device="meta"), target="v6e")


def test_results_are_kept_on_disk(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = torchtpu.compile_for(product, *arguments(8), target="v6e")
    second = torchtpu.compile_for(product, *arguments(8), target="v6e")
    assert (first.from_disk, second.from_disk) == (False, True)
    assert second.hlo == first.hlo
    assert second.hbm_peak == first.hbm_peak
    (file,) = cache.glob("tpu-*")
    file.write_bytes(b"no pickle")
    assert not torchtpu.compile_for(product, *arguments(8), target="v6e").from_disk
    monkeypatch.setattr(disk_cache, "folder", lambda: None)
    assert not torchtpu.compile_for(product, *arguments(8), target="v6e").from_disk


def long_program() -> Callable[[], torch.Tensor]:
    x = torch.empty(64, 64, device="meta")

    def run() -> torch.Tensor:
        y = x
        for k in range(40):
            y = torch.fft.fft(y).real.sort().values + k
        return y

    return run


def test_a_killed_compiler_is_an_error_and_the_next_compile_works() -> None:
    torchtpu.compile_for(product, *arguments(8), target="v6e")
    victims = process.shared.pids

    def progress(what: str, seconds: float) -> None:
        assert what == "run for v6e"
        for victim in victims:
            with contextlib.suppress(ProcessLookupError):  # it is called again while they end
                os.kill(victim, signal.SIGKILL)

    with pytest.raises(errors.CompilerDiedError, match="was ended by SIGKILL before it answered"):
        torchtpu.compile_for(long_program(), target="v6e", progress=progress)
    assert torchtpu.compile_for(product, *arguments(16), target="v6e").fits
    assert len(process.shared.pids) == 1
    assert not set(process.shared.pids) & set(victims)


def test_ctrl_c_gives_up_at_once() -> None:
    torchtpu.compile_for(product, *arguments(8), target="v6e")
    main = threading.main_thread().ident
    began = []

    def progress(what: str, seconds: float) -> None:
        if not began:
            began.append(time.perf_counter())
            signal.pthread_kill(main, signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        torchtpu.compile_for(long_program(), target="v6e", progress=progress)
    assert time.perf_counter() - began[0] < 2
    assert torchtpu.compile_for(product, *arguments(16), target="v6e").fits


def test_programs_that_ran_are_compiled_in_the_background() -> None:
    x, w = torch.ones(16, 16, device="tpu"), torch.ones(16, 16, device="tpu")
    with torchtpu.watch() as report, torch.tpu.set_eager_mode("defer_and_fuse"):
        product(x, w).sum().item()
    programs = report._live.programs
    seen: list[ahead.Compiled] = []
    job = ahead.compile_programs(programs, ("v5e", "v6e"), rows=report.programs, done=seen.append)
    assert job.total == 2
    assert job.wait(60)
    assert job.error is None
    assert [(r.name, r.chip.name) for r in job.results] == [(programs[0].name, "v5e"), (programs[0].name, "v6e")]
    assert seen == job.results
    assert "torch.tanh" in job.results[0].ops[0].line.source
    cancelled = ahead.compile_programs(programs * 20, ("v5p",))
    cancelled.cancel()
    assert cancelled.wait(10)
    assert len(cancelled.results) < cancelled.total


def test_a_program_that_crashes_the_compiler_is_refused_and_the_next_one_compiled() -> None:
    x = torch.ones(8, 8, dtype=torch.complex64, device="tpu")
    with torchtpu.watch() as report, torch.tpu.set_eager_mode("defer_and_fuse"):
        x.to(torch.complex128).tolist()
        x.real.exp().tolist()
    job = ahead.compile_programs(report._live.programs, ("v6e",))
    assert job.wait(60)
    assert job.error is None
    assert [r.refused for r in job.results] == [True, False]
    assert "was ended by SIGABRT" in job.results[0].reason
    assert "c128" in job.results[0].reason


def test_no_compiler_says_how_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    version = importlib.metadata.version

    def without(name: str) -> str:
        if name == "libtpu":
            raise importlib.metadata.PackageNotFoundError(name)
        return version(name)

    process.version.cache_clear()
    try:
        monkeypatch.setattr(importlib.metadata, "version", without)
        with pytest.raises(errors.CompilerMissingError, match=r"not installed: install it with: pip install 'torchtpu\[tpu\]'"):
            torchtpu.compile_for(product, *arguments(), target="v6e")
        monkeypatch.setattr(importlib.metadata, "version", lambda name: "0.0.9" if name == "libtpu" else version(name))
        with pytest.raises(errors.CompilerMissingError, match=r"libtpu 0\.0\.9 is installed, but jax .* works with 0\.0\.42"):
            torchtpu.compile_for(product, *arguments(), target="v6e")
    finally:
        process.version.cache_clear()


def test_arguments_that_cannot_be_meant() -> None:
    with pytest.raises(ValueError, match="unknown effort 'fast': use one of memory, full"):
        torchtpu.compile_for(product, *arguments(), target="v6e", effort="fast")
    with pytest.raises(ValueError, match="hbm=0"):
        torchtpu.compile_for(product, *arguments(), target="v6e", hbm=0)
