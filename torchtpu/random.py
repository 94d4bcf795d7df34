"""Random state: a generator is a seed and an offset, and both are inputs of the programs that draw.

One program draws other numbers on every run, and the same ones after `torch.manual_seed`, in every mode. The functions
at the end are those of `torch.tpu`.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Any
from weakref import WeakValueDictionary

import torch

_WORD = 0xFFFFFFFF
_STATE = struct.Struct("<QQ")  # seed and offset, as in the states of CUDA generators

Device = torch.device | str | int | None


class Stream:
    """Seed and offset of a random stream, 64 bits each. Every random op takes one offset."""

    __slots__ = ("seed", "offset")

    def __init__(self, seed: int, offset: int = 0) -> None:
        self.seed, self.offset = seed, offset

    def take(self) -> list[int]:
        """Return the next key as four 32-bit words (seed low, seed high, offset low, offset high) and advance."""
        seed, offset = self.seed, self.offset
        self.offset = offset + 1
        return [seed & _WORD, seed >> 32, offset & _WORD, offset >> 32]


class Generator(torch.Generator):
    """What `torch.Generator(device="tpu")` returns.

    PyTorch's C++ part is a CPU generator. It carries the object through the dispatcher: kernels get another Python object
    around it and find this one by its address. Random numbers come from `stream`; the CPU generator is only seeded with
    it, for functions that draw on the host.
    """

    def __new__(cls, stream: Stream | None = None) -> Generator:
        return super().__new__(cls)

    def __init__(self, stream: Stream | None = None) -> None:
        self.stream = stream if stream is not None else Stream(super().initial_seed())
        _by_address[self._cdata] = self

    @property
    def device(self) -> torch.device:
        """The device whose ops take this generator."""
        return torch.device("tpu", 0)

    def manual_seed(self, seed: int) -> Generator:
        """Start the stream of a seed."""
        super().manual_seed(seed)
        self.stream.seed, self.stream.offset = super().initial_seed(), 0
        return self

    def seed(self) -> int:
        """Start the stream of a seed that the operating system picks, and return the seed."""
        self.stream.seed, self.stream.offset = super().seed(), 0
        return self.stream.seed

    def initial_seed(self) -> int:
        """Return the seed."""
        return self.stream.seed

    def get_offset(self) -> int:
        """Return how many random ops have drawn from the stream."""
        return self.stream.offset

    def set_offset(self, offset: int) -> Generator:
        """Go to the place in the stream that `offset` random ops lead to."""
        self.stream.offset = offset
        return self

    def get_state(self) -> torch.Tensor:
        """Return seed and offset as 16 bytes."""
        return torch.frombuffer(bytearray(_STATE.pack(self.stream.seed, self.stream.offset)), dtype=torch.uint8)

    def set_state(self, state: torch.Tensor) -> Generator:
        """Go to where `get_state` was called.

        Raises:
            TypeError: not a tensor of bytes.
            RuntimeError: the state of another kind of generator.
        """
        if not isinstance(state, torch.Tensor) or state.dtype != torch.uint8:
            raise TypeError("RNG state must be a torch.ByteTensor")
        if state.numel() != _STATE.size:
            raise RuntimeError(f"a tpu generator's state has {_STATE.size} bytes (seed, offset); got {state.numel()}")
        self.stream.seed, self.stream.offset = _STATE.unpack(bytes(state.tolist()))
        return self

    def clone_state(self) -> Generator:
        """Return a generator that goes on from the same place by itself."""
        return Generator(Stream(self.stream.seed, self.stream.offset))

    def graphsafe_get_state(self) -> Generator:
        """Return a generator that shares this one's stream."""
        return Generator(self.stream)

    def graphsafe_set_state(self, state: Generator) -> Generator:
        """Share another generator's stream."""
        self.stream = state.stream
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        return torch.Generator, (self.device,), (self.stream.seed, self.stream.offset, self.get_state())

    def __setstate__(self, state: tuple[int, int, torch.Tensor]) -> None:
        self.set_state(state[2])


# An object owns its C++ part, so it leaves this table before the address can be used again.
_by_address: WeakValueDictionary[int, Generator] = WeakValueDictionary()

# `torch.manual_seed` before `import torchtpu` counts too; without it, PyTorch has picked a seed at random.
default = Stream(torch.initial_seed())
default_generators = (Generator(default),)


def draw(generator: torch.Generator | None) -> list[int]:
    """Return the key for one random op from a generator, or from the default one."""
    return default.take() if generator is None else stream_of(generator).take()


def stream_of(generator: torch.Generator) -> Stream:
    """Return the stream behind a generator made with `torch.Generator(device="tpu")`.

    Raises:
        RuntimeError: it is a generator of another device.
    """
    known = _by_address.get(generator._cdata)
    if known is None:
        raise RuntimeError(
            f"Expected a 'tpu' device type for generator but found '{generator.device.type}': "
            "make it with torch.Generator(device='tpu'), or draw on its device and move the result"
        )
    return known.stream


# What `torch.tpu` offers


def _generator(device: Device) -> Generator:
    from torchtpu.device import index_of

    return default_generators[index_of(device)]


def manual_seed(seed: int) -> None:
    """Seed the current device's random stream. `torch.manual_seed` does it too."""
    default_generators[0].manual_seed(int(seed))


def manual_seed_all(seed: int) -> None:
    """Seed the random stream of every device of the process."""
    manual_seed(seed)


def seed() -> None:
    """Seed the current device's random stream with a number that the operating system picks."""
    default_generators[0].seed()


def seed_all() -> None:
    """Seed the random stream of every device of the process with a number that the operating system picks."""
    seed()


def initial_seed() -> int:
    """Return the seed of the current device's random stream."""
    return default.seed


def get_rng_state(device: Device = "tpu") -> torch.Tensor:
    """Return a device's random state as a CPU tensor of bytes."""
    return _generator(device).get_state()


def get_rng_state_all() -> list[torch.Tensor]:
    """Return the random states of all devices of the process."""
    return [g.get_state() for g in default_generators]


def set_rng_state(new_state: torch.Tensor, device: Device = "tpu") -> None:
    """Set a device's random state to one that `get_rng_state` returned."""
    _generator(device).set_state(new_state)


def set_rng_state_all(new_states: Iterable[torch.Tensor]) -> None:
    """Set the random states of all devices of the process."""
    for generator, state in zip(default_generators, new_states, strict=True):
        generator.set_state(state)
