"""The demo model's eyes, in torch: a small vision transformer and the projector behind it.

Owns the architecture (llama.cpp's `mlp`, as LLaVA has it: patches, learned places, pre-norm blocks, two layers on top)
and what a picture has to look like for it. What comes out are rows that the chat model reads as if they were tokens.
"""

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import nn

PAD = (122, 116, 104)  # llama.cpp's colour around a picture that is not square


@dataclass(frozen=True)
class EyesConfig:
    """The shape. `size` and `patch` in pixels: (size / patch) squared rows per picture."""

    size: int = 48
    patch: int = 12
    width: int = 128
    layers: int = 4
    heads: int = 4
    hidden: int = 512
    between: int = 256
    out: int = 256
    epsilon: float = 1e-6

    @property
    def rows(self):
        return (self.size // self.patch) ** 2


class Eyes(nn.Module):
    def __init__(self, config=EyesConfig()):
        super().__init__()
        self.config = config
        self.patches = _linear(3 * config.patch**2, config.width, bias=False)
        self.places = nn.Parameter(0.5 * torch.randn(config.rows, config.width))
        self.blocks = nn.ModuleList(SeeingBlock(config) for _ in range(config.layers))
        self.norm = nn.LayerNorm(config.width, config.epsilon)
        self.first = _linear(config.width, config.between)
        self.second = _linear(config.between, config.out)

    def forward(self, pixels):
        """(batch, rows, out) for pixels (batch, 3, size, size) between -1 and 1."""
        c = self.config
        x = F.unfold(pixels, c.patch, stride=c.patch).transpose(1, 2)
        x = self.patches(x) + self.places
        for block in self.blocks:
            x = block(x)
        return self.second(F.gelu(self.first(self.norm(x)), approximate="tanh"))


class SeeingBlock(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.config = config
        self.norm_1 = nn.LayerNorm(config.width, config.epsilon)
        self.query, self.key, self.value, self.output = (_linear(config.width, config.width) for _ in range(4))
        self.norm_2 = nn.LayerNorm(config.width, config.epsilon)
        self.up = _linear(config.width, config.hidden)
        self.down = _linear(config.hidden, config.width)
        with torch.no_grad():
            self.output.weight.zero_()
            self.down.weight.zero_()

    def forward(self, x):
        y = self.norm_1(x)
        q, k, v = (
            part(y).unflatten(-1, (self.config.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        scores = (q @ k.transpose(2, 3)) * q.shape[-1] ** -0.5
        x = x + self.output((scores.softmax(-1) @ v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.norm_2(x)), approximate="tanh"))


def fitted(image, size):
    """The pixels that llama.cpp makes of a picture: (size, size, 3) in bytes, at its own aspect ratio on plain
    ground."""
    scale = size / max(image.size)
    sides = tuple(min(size, -int(-side * scale // 1)) for side in image.size)
    ground = Image.new("RGB", (size, size), PAD)
    ground.paste(image.resize(sides, Image.Resampling.BILINEAR), tuple((size - side) // 2 for side in sides))
    return np.asarray(ground)


def as_input(pictures):
    """(batch, 3, size, size) between -1 and 1 from bytes (batch, size, size, 3)."""
    return torch.from_numpy(np.ascontiguousarray(pictures)).permute(0, 3, 1, 2).float() / 127.5 - 1


def _linear(columns, rows, bias=True):
    made = nn.Linear(columns, rows, bias=bias)
    with torch.no_grad():
        made.weight.copy_(torch.randn(rows, columns) * columns**-0.5)
        if bias:
            made.bias.zero_()
    return made
