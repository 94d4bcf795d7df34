"""The chips that programs can be compiled for. Reading this table loads neither jax nor libtpu."""

from __future__ import annotations

from dataclasses import dataclass

from torchtpu.errors import UnknownChipError, did_you_mean
from torchtpu.report import units


@dataclass(frozen=True, slots=True)
class Chip:
    """A TPU chip. All figures are of one device: a chip of two devices has twice as much.

    Attributes:
        name: `v6e`.
        topology: what libtpu calls a slice of one chip.
        devices_per_chip: v4 and tpu7x show the two halves of a chip as devices.
        hbm_bytes: what a program may use, as libtpu's own errors say (less than is soldered on).
        peak_flops: published peak of bfloat16 matrix products, in FLOP/s.
        peak_bandwidth: published peak of HBM, in bytes/s.
        source: where the published figures are from.
    """

    name: str
    topology: str
    devices_per_chip: int
    hbm_bytes: int
    peak_flops: float
    peak_bandwidth: float
    source: str

    @property
    def chips_per_host_bounds(self) -> list[int]:
        """The one chip's place in its host, as libtpu asks for it."""
        return [1, 1, 1]

    @property
    def ridge(self) -> float:
        """FLOP per byte above which the peak of the matrix units is the bound, below which that of HBM."""
        return self.peak_flops / self.peak_bandwidth

    def __str__(self) -> str:
        halves = f", {self.devices_per_chip} devices a chip" if self.devices_per_chip > 1 else ""
        return (
            f"{self.name}: {units.nbytes(self.hbm_bytes)} HBM, {self.peak_flops / 1e12:g} TFLOP/s bf16, "
            f"{self.peak_bandwidth / 1e9:g} GB/s{halves}"
        )


def _chip(name: str, grid: str, devices: int, gib: float, teraflops: float, gigabytes: float) -> Chip:
    """Make a chip from the published figures of a whole one, and the memory that libtpu gives a device."""
    source = f"https://docs.cloud.google.com/tpu/docs/{name}"
    hbm = int(gib * 2**30)
    return Chip(name, f"{name}:{grid}", devices, hbm, teraflops * 1e12 / devices, gigabytes * 1e9 / devices, source)


_CHIPS = {
    chip.name: chip
    for chip in (
        _chip("v4", "1x1x1", 2, 15.25, 275, 1228),
        _chip("v5e", "1x1", 1, 15.75, 197, 819),
        _chip("v5p", "1x1x1", 1, 95.74, 459, 2765),
        _chip("v6e", "1x1", 1, 31.25, 918, 1640),
        _chip("tpu7x", "1x1x1", 2, 94.75, 2307, 7380),
    )
}


def targets() -> tuple[Chip, ...]:
    """Return the chips that programs can be compiled for, the oldest first."""
    return tuple(_CHIPS.values())


def chip(name: str | Chip) -> Chip:
    """Return a chip by its name; case does not matter.

    Raises:
        UnknownChipError: there is no such chip (with the list, and the closest name).
    """
    if isinstance(name, Chip):
        return name
    word = str(name).strip().lower()
    if word not in _CHIPS:
        raise UnknownChipError(f"unknown chip {name!r}: use one of {', '.join(_CHIPS)}.{did_you_mean(word, _CHIPS)}")
    return _CHIPS[word]


def parse(names: str) -> tuple[Chip, ...]:
    """Return the chips of a list: `v6e`, `v5e,v6e`, or `all`.

    Raises:
        UnknownChipError: one of them does not exist, or the list is empty.
    """
    if names.strip().lower() == "all":
        return targets()
    return tuple(dict.fromkeys(chip(name) for name in names.split(",")))
