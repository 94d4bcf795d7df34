"""Compiled programs on disk, so that a restarted kernel does not compile again.

A program's key is a digest of its StableHLO with the ops' scopes, the compiler options, the versions of jax, jaxlib and
the platform, and the processor's features: whatever changes the result changes the key. Files are written whole or not
at all, and are read only from a folder that belongs to the user.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import platform
import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from torchtpu import client, config

_MAX_BYTES = 4 << 30


@cache
def folder() -> Path | None:
    """Return the cache's folder, made on first use, or None where it is switched off or cannot be used."""
    chosen = config.cache_dir
    if chosen.lower() in ("", "0", "off", "none"):
        return None
    path = Path(chosen).expanduser()
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        owned = not hasattr(os, "getuid") or path.stat().st_uid == os.getuid()
    except OSError:
        return None
    return path if owned and os.access(path, os.W_OK) else None


@cache
def _environment() -> bytes:
    import jax
    import jaxlib

    device = client.device()
    parts = (
        jax.__version__,
        jaxlib.__version__,
        device.platform,
        device.device_kind,
        device.client.platform_version,
        _processor(),
    )
    return "\n".join(parts).encode()


def _processor() -> str:
    """Name what XLA:CPU's code depends on: architecture and features of the processor."""
    with contextlib.suppress(OSError), open("/proc/cpuinfo") as lines:
        for line in lines:
            if line.startswith(("flags", "Features")):
                return f"{platform.machine()} {line}"
    return f"{platform.machine()} {platform.processor()}"


def key_of(text: str, options: dict[str, Any]) -> str:
    """Return the key of a lowered program (its StableHLO with debug information) under compiler options."""
    digest = hashlib.sha256(_environment())
    digest.update(repr(sorted(options.items())).encode())
    digest.update(text.encode())
    return digest.hexdigest()


def load(key: str) -> Any | None:
    """Return the compiled program of a key, or None. A file that cannot be read is removed."""

    def loaded(data: bytes) -> Any:
        from jax.experimental.serialize_executable import deserialize_and_load

        return deserialize_and_load(*pickle.loads(data))

    return read(key, loaded)


def read(key: str, decode: Callable[[bytes], Any]) -> Any | None:
    """Return what was kept under a key, decoded, or None. A file that cannot be decoded is removed."""
    root = folder()
    if root is None:
        return None
    path = root / key
    try:
        data = path.read_bytes()
    except OSError:
        return None
    try:
        value = decode(data)
    except Exception:
        path.unlink(missing_ok=True)
        return None
    with contextlib.suppress(OSError):  # another process has just removed it
        os.utime(path)  # the oldest unused ones go first
    return value


def save(key: str, compiled: Any) -> None:
    """Keep a compiled program. Backends that cannot serialize theirs keep none."""
    if folder() is None:
        return
    from jax.experimental.serialize_executable import serialize

    with contextlib.suppress(ValueError, NotImplementedError, RuntimeError, TypeError):
        write(key, pickle.dumps(serialize(compiled)))


def write(key: str, data: bytes) -> None:
    """Keep bytes under a key."""
    root = folder()
    if root is None:
        return
    with contextlib.suppress(OSError):  # a full disk must not stop a computation
        with tempfile.NamedTemporaryFile(dir=root, delete=False) as file:
            file.write(data)
        os.replace(file.name, root / key)
        _prune(root, len(data))


_written = 0


def _prune(root: Path, nbytes: int) -> None:
    """Now and then, remove the files that were not used for longest."""
    global _written
    _written += nbytes
    if _written < _MAX_BYTES // 16:
        return
    _written = 0
    files = sorted(((f.stat().st_mtime, f.stat().st_size, f) for f in root.iterdir() if f.is_file()), reverse=True)
    total = 0
    for _, size, file in files:
        total += size
        if total > _MAX_BYTES:
            file.unlink(missing_ok=True)
