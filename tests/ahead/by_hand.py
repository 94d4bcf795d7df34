"""Programs in PyTorch, and the same ones written by hand in jax: `torchtpu.compile_for` must find the same figures."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import torch
from torch import nn
from torch.nn import functional as F

Case = tuple[Callable[[], Any], Callable[..., Any], tuple[Any, ...], tuple[int, ...]]


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def elementwise() -> Case:
    x, y = torch.empty(4096, 4096, device="meta"), torch.empty(4096, 4096, device="meta")

    def by_hand(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tanh(x * y + 1.0) * jnp.exp(-x)

    return (lambda: torch.tanh(x * y + 1) * torch.exp(-x)), by_hand, (array(4096, 4096), array(4096, 4096)), ()


def mlp() -> Case:
    with torch.device("meta"):
        model = nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 1024))
        x = torch.empty(2048, 1024)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    def by_hand(x: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> jax.Array:
        return jax.nn.relu(x @ a.T + b) @ c.T + d

    arrays = (array(2048, 1024), array(4096, 1024), array(4096), array(1024, 4096), array(1024))
    return forward, by_hand, arrays, ()


def conv_block() -> Case:
    with torch.device("meta"):
        model = nn.Sequential(nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.Conv2d(128, 128, 3, padding=1), nn.ReLU())
        x = torch.empty(32, 64, 56, 56)

    def forward() -> torch.Tensor:
        with torch.no_grad():
            return model(x)

    def conv(x: jax.Array, w: jax.Array, b: jax.Array) -> jax.Array:
        y = jax.lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=("NCHW", "OIHW", "NCHW"))
        return jax.nn.relu(y + b[:, None, None])

    def by_hand(x: jax.Array, a: jax.Array, b: jax.Array, c: jax.Array, d: jax.Array) -> jax.Array:
        return conv(conv(x, a, b), c, d)

    arrays = (array(32, 64, 56, 56), array(128, 64, 3, 3), array(128), array(128, 128, 3, 3), array(128))
    return forward, by_hand, arrays, ()


LAYERS, WIDTH, HEADS, VOCABULARY, LENGTH, BATCH = 4, 256, 4, 8192, 256, 8


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (
            t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in self.qkv(self.norm1(x)).chunk(3, dim=-1)
        )  # fmt: skip
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, layers: int = LAYERS) -> None:
        super().__init__()
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Parameter(torch.empty(LENGTH, WIDTH))
        self.blocks, self.norm = nn.Sequential(*(Block() for _ in range(layers))), nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.head(self.norm(self.blocks(self.embed(ids) + self.place)))


def norm(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    centred = x - x.mean(-1, keepdims=True)
    return centred * jax.lax.rsqrt((centred**2).mean(-1, keepdims=True) + 1e-5) * p["weight"] + p["bias"]


def linear(x: jax.Array, p: dict[str, jax.Array]) -> jax.Array:
    return x @ p["weight"].T + p["bias"]


def attention_by_hand(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
    """Causal attention in four blocks of queries, each with the keys that it may see; backward computes the weights again."""
    rows = q.shape[2] // 4

    @partial(jax.checkpoint, static_argnums=3)
    def block(q: jax.Array, k: jax.Array, v: jax.Array, start: int) -> jax.Array:
        scores = jnp.einsum("bhqd,bhkd->bhqk", q, k) / math.sqrt(q.shape[-1])
        seen = jnp.arange(rows)[:, None] + start >= jnp.arange(start + rows)
        scores = jnp.where(seen, scores, -jnp.inf)
        weights = jnp.exp(scores - scores.max(-1, keepdims=True))
        return (weights @ v) / weights.sum(-1, keepdims=True)

    ends = range(rows, q.shape[2] + 1, rows)
    return jnp.concatenate([block(q[:, :, e - rows : e], k[:, :, :e], v[:, :, :e], e - rows) for e in ends], 2)


def loss_by_hand(p: Any, ids: jax.Array, targets: jax.Array) -> jax.Array:
    x = p["embed"]["weight"][ids] + p["place"]
    for b in p["blocks"]:
        parts = jnp.split(linear(norm(x, b["norm1"]), b["qkv"]), 3, -1)
        q, k, v = (t.reshape(BATCH, LENGTH, HEADS, -1).swapaxes(1, 2) for t in parts)
        attended = attention_by_hand(q, k, v).swapaxes(1, 2).reshape(BATCH, LENGTH, WIDTH)
        x = x + linear(attended, b["out"])
        x = x + linear(jax.nn.gelu(linear(norm(x, b["norm2"]), b["up"])), b["down"])
    logits = norm(x, p["norm"]) @ p["head"]["weight"].T
    chosen = jnp.take_along_axis(jax.nn.log_softmax(logits, -1), targets[..., None], -1)
    return -chosen.mean()


def gpt() -> Case:
    with torch.device("meta"):
        model = GPT()
        ids, targets = (torch.empty(BATCH, LENGTH, dtype=torch.long) for _ in range(2))
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> torch.Tensor:
        loss = F.cross_entropy(model(ids).flatten(0, 1), targets.flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss

    def by_hand(p: Any, m: Any, v: Any, count: jax.Array, ids: jax.Array, targets: jax.Array) -> Any:
        loss, g = jax.value_and_grad(loss_by_hand)(p, ids, targets)
        m = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = jax.tree.map(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)

        def update(p: jax.Array, m: jax.Array, v: jax.Array) -> jax.Array:
            ratio = (m / (1 - 0.9**count)) / (jnp.sqrt(v / (1 - 0.999**count)) + 1e-8)
            return p * (1 - 1e-3 * 1e-2) - 1e-3 * ratio

        return jax.tree.map(update, p, m, v), m, v, loss

    def described(module: nn.Module) -> Any:
        if isinstance(module, nn.Sequential):
            return [described(m) for m in module]
        own = {n: array(*p.shape) for n, p in module.named_parameters(recurse=False)}
        return own | {n: described(m) for n, m in module.named_children()}

    p = described(model)
    ints = array(BATCH, LENGTH, dtype=jnp.int32)
    return step, by_hand, (p, p, p, array(), ints, ints), (0, 1, 2)


def attention() -> Case:
    q, k, v = (torch.empty(1, 8, 4096, 64, device="meta") for _ in range(3))
    shape = array(1, 8, 4096, 64)
    return (lambda: F.scaled_dot_product_attention(q, k, v, is_causal=True)), attention_by_hand, (shape,) * 3, ()


CASES: dict[str, Callable[[], Case]] = {
    "elementwise": elementwise,
    "MLP": mlp,
    "conv block": conv_block,
    "4-layer GPT step, AdamW": gpt,
    "attention, 4,096 tokens": attention,
}
