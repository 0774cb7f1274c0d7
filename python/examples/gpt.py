# SPDX-License-Identifier: Apache-2.0
"""A small GPT over bytes, and text to train it on. The examples share it; nothing in it knows of Phalanx."""

from __future__ import annotations

import pathlib
import sysconfig

import torch
from torch import nn
from torch.nn import functional as F


class Block(nn.Module):
    """Causal attention and a feed-forward layer."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        drop = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, dropout_p=drop)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + F.dropout(self.down(F.gelu(self.up(self.norm2(x)))), drop)


class GPT(nn.Module):
    """Predicts the next byte."""

    def __init__(self, width: int = 64, layers: int = 2, heads: int = 4, context: int = 64, dropout: float = 0.1) -> None:
        super().__init__()
        self.bytes, self.places = nn.Embedding(256, width), nn.Embedding(context, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 256, bias=False)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.bytes(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class Text(torch.utils.data.Dataset):
    """Windows of a text: bytes, and the bytes that follow."""

    def __init__(self, folder: str | None = None, context: int = 64, limit: int = 2 << 20) -> None:
        root = pathlib.Path(folder or sysconfig.get_paths()["stdlib"])
        text = bytearray()
        for file in sorted(root.glob("*.py" if folder is None else "*")):
            if file.is_file() and len(text) < limit:
                text += file.read_bytes()
        if len(text) <= context:
            raise SystemExit(f"{root} has no text to train on; give another --data")
        self.text = torch.frombuffer(text[:limit], dtype=torch.uint8).long()
        self.context = context

    def __len__(self) -> int:
        return (len(self.text) - 1) // self.context

    def __getitem__(self, i: int) -> tuple[torch.Tensor, torch.Tensor]:
        piece = self.text[i * self.context : (i + 1) * self.context + 1]
        return piece[:-1], piece[1:]
