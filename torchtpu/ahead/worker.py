"""The process in which the TPU compiler runs: `python -P worker.py`. It knows jax and libtpu, and nothing of torchtpu.

It reads requests from its standard input and answers on its standard output, each a pickled dictionary after its length.
When the input ends, because its parent closed it or died, so does the process, also in the middle of a compile.
"""

from __future__ import annotations

import os
import pickle
import queue
import re
import struct
import sys
import tempfile
import threading
import time
import zlib
from pathlib import Path
from typing import Any, BinaryIO

LENGTH = struct.Struct("<Q")
FORMAT = 4  # of the answers, which are kept on disk: raise it when they change

# Without these, libtpu asks Google's cloud who it is, takes a lock that one process can hold, and writes logs.
_LIBTPU = {
    "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    "JAX_PLATFORMS": "cpu",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_LOG_DIR": "disabled",
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_STDERR_LOG_LEVEL": "3",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_WORKER_ID": "0",
}

_O0 = 9  # XLA's name for the least of its levels
EFFORTS = {"memory": {"exec_time_optimization_effort": -1.0, "optimization_level": _O0}, "full": {}}
_MIB = 1 << 20
_NO_LIMIT = 1 << 44  # bytes, of a chip that nothing is too large for
_KEPT = 24  # buffers at the peak that are returned
_KEPT_IN_PROCESS = 2 << 30  # bytes: after a larger compile the process ends, for the allocator gives little back


def write(stream: BinaryIO, message: dict[str, Any]) -> None:
    """Send a message."""
    data = pickle.dumps(message)
    stream.write(LENGTH.pack(len(data)))
    stream.write(data)
    stream.flush()


def read(stream: BinaryIO) -> dict[str, Any] | None:
    """Wait for a message; None where there will be no more."""
    head = stream.read(LENGTH.size)
    if len(head) < LENGTH.size:
        return None
    (size,) = LENGTH.unpack(head)
    data = stream.read(size)
    return pickle.loads(data) if len(data) == size else None


def main() -> None:
    """Answer requests until the input ends."""
    os.environ.update(_LIBTPU)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print must not get among the answers
    requests: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(sys.stdin.buffer, requests), daemon=True).start()
    while True:
        request = requests.get()
        try:
            answer = compile(request)
        except (MemoryError, OSError) as error:
            answer = {"trouble": str(error) or "out of memory"}
        except Exception as error:
            answer = {"error": str(error)}
        answer["last"] = _resident() > _KEPT_IN_PROCESS
        write(answers, answer)
        if answer["last"]:
            os._exit(0)


def _listen(stream: BinaryIO, requests: queue.Queue[dict[str, Any]]) -> None:
    while (request := read(stream)) is not None:
        requests.put(request)
    os._exit(0)


def _resident() -> int:
    """Bytes of memory that the process holds."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def compile(request: dict[str, Any]) -> dict[str, Any]:
    """Compile a module for a chip.

    Args:
        request: `module` (StableHLO bytecode), `topology` and `bounds` of the chip, `effort`, `limit` (bytes of HBM), `least`
            (bytes that it needs at least: a compile in vain is left out), `excess` (roundings may be left out), `larger` (name,
            topology and bounds of what has more HBM than the limit; no name for the chip itself).

    Returns:
        `reason` where it does not fit into the limit; what it needs without a limit is in the figures then, as compiled for
        the larger chip `figures_of` if this one cannot say, or the little that `reason` says of it. Sizes in bytes:
        `arguments`, `outputs`, `aliased`, `temporaries`, `code`; `flops` and `bytes_accessed` of the compiler's cost model;
        `hlo`, the optimized text, and `proto`, a HloProto with buffer assignment, compressed; `peak`, the largest
        buffers in use at the peak (see `_peak`); `seconds`.

        As a message it gets `last` where the process ends after it. Where there is no result, it is `error`, in the compiler's
        words, or `trouble`, in the system's.
    """
    start = time.perf_counter()
    reason = figures_of = ""
    with tempfile.TemporaryDirectory(prefix="torchtpu-") as folder:
        options = {
            **EFFORTS[request["effort"]],
            "xla_dump_to": folder,
            "xla_dump_hlo_as_text": True,
            "xla_dump_hlo_as_proto": True,
        }
        try:
            executable = _executable(request, options, request["limit"] if request["least"] <= request["limit"] else _NO_LIMIT)
        except Exception as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            reason = str(error).splitlines()[0].removeprefix("RESOURCE_EXHAUSTED: ")
            executable, figures_of = _without_limit(request, options)
        if executable is None:
            return {
                **dict.fromkeys(("outputs", "aliased", "code", "flops", "bytes_accessed"), 0),
                "reason": reason,
                "figures_of": "",
                "arguments": request["least"],
                "temporaries": _bytes_named(reason),
                "hlo": zlib.compress(b""),
                "proto": b"",
                "peak": [],
                "seconds": time.perf_counter() - start,
            }
        stats = executable.get_compiled_memory_stats()
        assigned = _last(folder, "*buffer-assignment.txt")
        # The statistics count what the packing of temporaries leaves unused twice: they are at most what the compiler checks
        # against the limit and has in its own report (`HLO temp`), which is the size of what it set aside.
        temporaries = min(stats.temp_size_in_bytes, _set_aside(assigned)) if assigned else stats.temp_size_in_bytes
        peak = _peak(assigned, _last(folder, "*live-range.txt"))
        dumped = _last(folder, "*after_optimizations.hlo.pb")
        proto = zlib.compress(dumped.read_bytes(), 6) if dumped is not None else b""
    cost = executable.cost_analysis()
    return {
        "reason": reason,
        "figures_of": figures_of,
        "arguments": stats.argument_size_in_bytes,
        "outputs": stats.output_size_in_bytes,
        "aliased": stats.alias_size_in_bytes,
        "temporaries": temporaries,
        "code": stats.generated_code_size_in_bytes,
        "flops": max(cost.get("flops", 0.0), 0.0),
        "bytes_accessed": max(cost.get("bytes accessed", 0.0), 0.0),
        "hlo": zlib.compress("\n".join(m.to_string() for m in executable.hlo_modules()).encode(), 6),
        "proto": proto,
        "peak": peak,
        "seconds": time.perf_counter() - start,
    }


def _without_limit(request: dict[str, Any], options: dict[str, Any]) -> tuple[Any, str]:
    """Compile for the chip with all its HBM, or where that is too little, for a larger one."""
    for name, topology, bounds in request["larger"]:
        try:
            return _executable({**request, "topology": topology, "bounds": bounds}, options, _NO_LIMIT), name
        except Exception as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
    return None, ""


def _bytes_named(reason: str) -> int:
    """The first size that a message of the compiler's names, as `(17.91G)`."""
    found = re.search(r"\((\d+(?:\.\d+)?)([KMGT])\)", reason)
    return int(float(found[1]) * 1024 ** (1 + "KMGT".index(found[2]))) if found else 0


def _executable(request: dict[str, Any], options: dict[str, Any], limit: int) -> Any:
    from jax._src import compiler
    from jax._src.interpreters import mlir
    from jax._src.lib import xla_client
    from jax._src.lib.mlir import ir
    from jax.experimental import topologies

    chip = topologies.get_topology_desc(
        platform="tpu", topology_name=request["topology"], chips_per_host_bounds=request["bounds"]
    )
    device = chip.devices[0]
    options = options | {"xla_tpu_max_hbm_size_mib": str(limit // _MIB), "xla_allow_excess_precision": request["excess"]}
    settings = compiler.get_compile_options(num_replicas=1, num_partitions=1, env_options_overrides=options)
    with mlir.make_ir_context():
        return device.client.compile(ir.Module.parse(request["module"]), xla_client.DeviceList((device,)), settings)


# `  value: <49 convolution_tanh_fusion.3{1} @0> (size=65536000,offset=0): f32[4096,4000]{0,1:T(8,128)}`
_VALUE = re.compile(r"^ value: <\d+ (\S+?)(\{[\d,]*\})? @\d+> \(size=(\d+),offset=\d+\): (.*)$")
_ALLOCATION = re.compile(r"^allocation \d+: size \d+, (.*)$")
_SET_ASIDE = re.compile(r"^allocation \d+: size (\d+), preallocated-temp:")
_LIVE = re.compile(r"^    (\S+?)(\{[\d,]*\}): (\d+) bytes")


def _last(folder: str, pattern: str) -> Path | None:
    """Return what the compiler wrote down last of a kind."""
    return max(Path(folder).glob(pattern), key=lambda p: p.name, default=None)


def _set_aside(assigned: Path) -> int:
    """Return the bytes of HBM that are set aside for temporaries. VMEM's have a colour."""
    with open(assigned) as lines:
        return sum(int(found[1]) for line in lines if (found := _SET_ASIDE.match(line)) is not None)


def _peak(assigned: Path | None, ranges: Path | None) -> list[tuple[str, str, str, int, int]]:
    """Return the largest buffers in HBM that are in use when most is.

    Each is (instruction, place in its result: `{}` or `{1}`, allocation, bytes in all, bytes of its elements).
    """
    if assigned is None or ranges is None:
        return []
    sizes: dict[tuple[str, str], tuple[str, int]] = {}
    what = ""
    with open(assigned) as lines:
        for line in lines:
            if (allocation := _ALLOCATION.match(line)) is not None:
                what = allocation[1]
            elif (value := _VALUE.match(line)) is not None and "S(" not in value[4]:  # S(1): VMEM
                sizes[value[1], value[2] or "{}"] = what, int(value[3])
    rows = []
    with open(ranges) as lines:
        at_peak = False
        for line in lines:
            if at_peak and (live := _LIVE.match(line)) is not None:
                if (live[1], live[2]) in sizes:
                    what, size = sizes[live[1], live[2]]
                    rows.append((live[1], live[2], what, size, int(live[3])))
            elif at_peak:
                break
            else:
                at_peak = line.startswith("  Live ranges at")
    return sorted(rows, key=lambda row: -row[3])[:_KEPT]


if __name__ == "__main__":
    main()
