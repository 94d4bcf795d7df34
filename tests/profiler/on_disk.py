"""Profiles on the disk, small and real: XProf reads them."""

from pathlib import Path

from jax.profiler import ProfileData

_XSPACE = """
planes {
  id: 1 name: "/host:CPU"
  lines { id: 1 name: "python" timestamp_ns: 1000 events { metadata_id: 1 offset_ps: 0 duration_ps: 5000000 } }
  event_metadata { key: 1 value { id: 1 name: "train_step" } }
}
"""


def write(folder: Path, name: str = "laptop.xplane.pb") -> Path:
    """Write a profile into a folder, which is made, and return its path."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    file.write_bytes(ProfileData.text_proto_to_serialized_xspace(_XSPACE))
    return file


def write_run(logdir: Path, run: str = "2026_12_02_10_00_00") -> Path:
    """Write a run where TensorBoard looks for it, and return its folder."""
    return write(logdir / "plugins" / "profile" / run).parent
