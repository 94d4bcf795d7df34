"""What the table has a row for: a model of a library, small enough for a test, and inputs for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from tests.zoo import libraries

Inputs = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """A model and its inputs.

    Attributes:
        name: as its authors write it, with hyphens for blanks.
        family: the heading of its row.
        library: what must be installed.
        make: builds the model on the CPU, with random weights.
        inputs: makes the arguments of a call, on the CPU.
        new_tokens: how many `generate` adds; 0: it does not generate.
    """

    name: str
    family: str
    library: str
    make: Callable[[], nn.Module]
    inputs: Callable[[], Inputs]
    new_tokens: int = 0


def from_transformers(
    name: str, family: str, model: str, inputs: Callable[[], Inputs], *, new_tokens: int = 0, **config: Any
) -> Architecture:
    """A model class of Hugging Face transformers, built from a configuration: nothing is downloaded."""

    def make() -> nn.Module:
        cls = getattr(libraries.load("transformers"), model)
        return cls(cls.config_class(**config))

    return Architecture(name, family, "transformers", make, inputs, new_tokens)


VOCABULARY = 96
TOKENS = 12


def tokens(low: int = 5, high: int = VOCABULARY, length: int = TOKENS) -> torch.Tensor:
    """Random token ids `[2, length]`; the first few ids are special to many models."""
    return torch.randint(low, high, (2, length))


def masked_text() -> Inputs:
    """Two sentences, the second one shorter and padded, with a label for every token of theirs."""
    ids, mask = tokens(), torch.ones(2, TOKENS, dtype=torch.int64)
    mask[1, -3:] = 0
    return {"input_ids": ids, "attention_mask": mask, "labels": ids.masked_fill(mask == 0, -100)}


def text() -> Inputs:
    """Two sentences of one length, to be continued."""
    ids = tokens()
    return {"input_ids": ids, "labels": ids.clone()}


def text_without_cache() -> Inputs:
    """The same, for a model whose cache is written in place, which its own backward pass refuses."""
    return text() | {"use_cache": False}


def text_pairs() -> Inputs:
    """Sentences and their translations, for an encoder and a decoder."""
    both = masked_text()
    return both | {"labels": tokens(length=8)}


def images(size: int = 32, classes: int = 5, **more: Any) -> Callable[[], Inputs]:
    """Two RGB images `[2, 3, size, size]` with a class each (none: `classes=0`)."""

    def make() -> Inputs:
        labels = {"labels": torch.randint(classes, (2,))} if classes else {}
        return {"pixel_values": torch.randn(2, 3, size, size)} | labels | more

    return make
