"""The models that tests and benchmarks train: plain PyTorch, written as a user would, with no word about the device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


def mlp(inputs: int = 64, width: int = 128, outputs: int = 10) -> nn.Module:
    """A perceptron with two hidden layers."""
    return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.GELU(), nn.Linear(width, outputs))


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions with batch norm, beside a projected shortcut where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int = 1) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.bn1(self.conv1(x)), inplace=True)
        y = self.bn2(self.conv2(y))
        y += self.shortcut(x)
        return F.relu(y, inplace=True)


class ResidualCNN(nn.Module):
    """A small ResNet: stem, max pooling, three residual blocks, global average pooling, a classifier."""

    def __init__(self, channels: int = 1, classes: int = 10, width: int = 16) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            nn.Conv2d(channels, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU(), nn.MaxPool2d(3, 2, 1)
        )
        self.blocks = nn.Sequential(
            ResidualBlock(width, width), ResidualBlock(width, 2 * width, 2), ResidualBlock(2 * width, 2 * width)
        )
        self.pool = nn.AdaptiveAvgPool2d(1)
        self.head = nn.Linear(2 * width, classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.pool(self.blocks(self.stem(x))).flatten(1))


class Block(nn.Module):
    """A pre-norm transformer block with causal attention."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.ln1, self.ln2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.Dropout(dropout))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, t, c = x.shape
        q, k, v = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in self.qkv(self.ln1(x)).split(c, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=self.dropout if self.training else 0.0)
        x = x + self.proj(y.transpose(1, 2).reshape(b, t, c))
        return x + self.mlp(self.ln2(x))


class GPT(nn.Module):
    """A decoder-only language model with tied embeddings.

    `forward(ids, targets)`: ids and targets `[batch, tokens]` of integers; returns the mean cross entropy.
    """

    def __init__(
        self, vocab: int = 256, width: int = 256, layers: int = 4, heads: int = 4, context: int = 128, dropout: float = 0.0
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(vocab, width)
        self.positions = nn.Embedding(context, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        x = self.drop(self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device)))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        return F.cross_entropy(logits.view(-1, logits.shape[-1]), targets.reshape(-1))


class Decoder(nn.Module):
    """A language model that generates with a key-value cache, which grows by one token a step."""

    def __init__(self, vocab: int = 256, width: int = 64, layers: int = 2, heads: int = 4) -> None:
        super().__init__()
        self.heads = heads
        self.tokens = nn.Embedding(vocab, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2 * layers))
        self.qkv = nn.ModuleList(nn.Linear(width, 3 * width) for _ in range(layers))
        self.proj = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.mlps = nn.ModuleList(mlp(width, 4 * width, width) for _ in range(layers))
        self.head = nn.Linear(width, vocab)

    def forward(self, ids: torch.Tensor, cache: list[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
        """Read ids `[batch, tokens]`, and extend the cache by them. Returns the logits `[batch, vocab]` of the next token."""
        x = self.tokens(ids)
        b, t, c = x.shape
        for k, (qkv, proj, mlp_) in enumerate(zip(self.qkv, self.proj, self.mlps, strict=True)):
            q, key, value = (z.view(b, t, self.heads, -1).transpose(1, 2) for z in qkv(self.norms[2 * k](x)).split(c, dim=2))
            if len(cache) > k:
                key, value = torch.cat([cache[k][0], key], 2), torch.cat([cache[k][1], value], 2)
                cache[k] = key, value
            else:
                cache.append((key, value))
            y = F.scaled_dot_product_attention(q, key, value, is_causal=t > 1)
            x = x + proj(y.transpose(1, 2).reshape(b, t, c))
            x = x + mlp_(self.norms[2 * k + 1](x))
        return self.head(x[:, -1])

    @torch.no_grad()
    def generate(self, ids: torch.Tensor, new_tokens: int) -> list[int]:
        """Continue ids `[1, tokens]` greedily, reading every token as it comes."""
        cache: list[tuple[torch.Tensor, torch.Tensor]] = []
        made: list[int] = []
        for _ in range(new_tokens):
            ids = self(ids, cache).argmax(-1, keepdim=True)
            made.append(ids.item())
        return made
