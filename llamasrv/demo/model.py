"""The network of the demo model, in torch.

Owns the architecture (llama.cpp's `qwen2`: RMSNorm, biased QKV, rotate-half RoPE, grouped queries, SwiGLU, a head
of its own) and how its weights begin. Knows nothing of files and optimisers, and of text only which letters a token has.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn


@dataclass(frozen=True)
class Config:
    """The shape. The default takes 5.4 MB in Q8_0 with 2,048 tokens, and learns twice as fast as one of 9 layers."""

    vocabulary: int = 2048
    width: int = 256
    layers: int = 6
    heads: int = 4
    kv_heads: int = 4
    hidden: int = 512
    rope_base: float = 1e6
    norm_epsilon: float = 1e-6
    context: int = 2048

    @property
    def head_width(self):
        return self.width // self.heads


class Block(nn.Module):
    """One layer. Matrices are float32 masters; the forward pass casts them to the dtype of its input."""

    def __init__(self, config):
        super().__init__()
        self.config = config
        width, kv_width = config.width, config.kv_heads * config.head_width
        self.attention_norm = nn.Parameter(torch.ones(width))
        self.query = nn.Parameter(_matrix(width, width))
        self.key = nn.Parameter(_matrix(kv_width, width))
        self.value = nn.Parameter(_matrix(kv_width, width))
        self.query_bias = nn.Parameter(torch.zeros(width))
        self.key_bias = nn.Parameter(torch.zeros(kv_width))
        self.value_bias = nn.Parameter(torch.zeros(kv_width))
        self.output = nn.Parameter(torch.zeros(width, width))
        self.ffn_norm = nn.Parameter(torch.ones(width))
        self.gate = nn.Parameter(_matrix(config.hidden, width))
        self.up = nn.Parameter(_matrix(config.hidden, width))
        self.down = nn.Parameter(torch.zeros(width, config.hidden))

    def forward(self, x, rope, positions=None):
        x = x + self._attend(_norm(x, self.attention_norm, self.config), rope)
        if positions is not None:
            x = x.flatten(0, 1)[positions]
        return x + self._feed_forward(_norm(x, self.ffn_norm, self.config))

    def _attend(self, x, rope):
        c, (batch, length, _) = self.config, x.shape
        weight = torch.cat((self.query, self.key, self.value)).to(x.dtype)
        bias = torch.cat((self.query_bias, self.key_bias, self.value_bias)).to(x.dtype)
        qkv = F.linear(x, weight, bias).view(batch, length, -1, c.head_width).transpose(1, 2)
        turned, v = _rotate(qkv[:, : c.heads + c.kv_heads], rope), qkv[:, c.heads + c.kv_heads :]
        # The query heads of a group are laid end to end, so keys and values need no copies. Plain products are
        # twice as fast here as torch's fused attention on a CPU, whose backward pass suffers at short lengths.
        q = turned[:, : c.heads].reshape(batch, c.kv_heads, -1, c.head_width)
        scores = q @ turned[:, c.heads :].transpose(2, 3) + rope.mask
        mixed = (scores.softmax(-1) @ v).view(batch, c.heads, length, c.head_width)
        return F.linear(mixed.transpose(1, 2).reshape(batch, length, -1), self.output.to(x.dtype))

    def _feed_forward(self, x):
        gate, up = F.linear(x, torch.cat((self.gate, self.up)).to(x.dtype)).chunk(2, -1)
        return F.linear(F.silu(gate) * up, self.down.to(x.dtype))


class DemoModel(nn.Module):
    def __init__(self, config=Config()):
        super().__init__()
        self.config = config
        self.embedding = nn.Parameter(torch.randn(config.vocabulary, config.width))
        self.blocks = nn.ModuleList(Block(config) for _ in range(config.layers))
        self.final_norm = nn.Parameter(torch.ones(config.width))
        self._tables = {}
        begin_copying(self)
        # Not tied: to make rare tokens unlikely, training pushes their rows of the head into one direction, and rows of an
        # embedding that are alike cannot be told apart by the heads that copy.
        self.head = nn.Parameter(self.embedding.detach() * 0.05)

    def forward(self, tokens, positions, dtype=torch.float32):
        """Hidden states after the last norm, only at these places of the flattened (batch, length). Three of four
        tokens belong to prompts, from which nothing is learned: the last layer need not compute them."""
        return self.read(F.embedding(tokens, self.embedding.to(dtype)), positions)

    def read(self, x, positions):
        """The same for rows of embeddings, (batch, length, width): tokens, or the rows of a picture."""
        rope = self._rope(x.shape[1], x.dtype, x.device)
        for block in self.blocks[:-1]:
            x = block(x, rope)
        x = self.blocks[-1](x, rope, positions)
        return _norm(x, self.final_norm, self.config)

    def logits(self, hidden):
        return F.linear(hidden, self.head.to(hidden.dtype))

    def _rope(self, length, dtype, device):
        key = (length, dtype, device)
        if key not in self._tables:
            self._tables[key] = _Rope(self.config, length, dtype, device)
        return self._tables[key]


class _Rope:
    """Tables for one length: cosines and sines (the queries' already divided by the square root of the head's width),
    and the mask."""

    def __init__(self, config, length, dtype, device):
        angles = torch.outer(torch.arange(length), _frequencies(config))
        scale = torch.ones(config.heads + config.kv_heads, 1, 1)
        scale[: config.heads] = config.head_width**-0.5
        self.cos = (angles.cos() * scale).to(device, dtype)
        self.sin = (angles.sin() * scale).to(device, dtype)
        mask = torch.full((length, length), float("-inf")).triu(1)
        self.mask = mask.repeat(config.heads // config.kv_heads, 1).to(device, dtype)


FAST = 8  # pairs of a head's dimensions that turn fast enough to tell neighbours apart
PLACES = 8  # so many letters of a token are told by its embedding from the start
SLOW = 16  # from this pair on they turn so slowly that contents are comparable at any distance


@torch.no_grad()
def begin_copying(model):
    """Start the network with induction heads: they find what followed an earlier occurrence of the current token, and
    repeat it.

    A network of this size discovers copying late or never, and keeps naming the wrong city. Here the residual stream
    gets two spaces besides the tokens' own. In the first layer, two heads look one and two tokens back and write what
    they see into these spaces. In the next two layers, heads look for places whose preceding token is the current one
    (every other head: whose two preceding tokens are the last two), and add the token at that place.
    """
    config = model.config
    basis = torch.linalg.qr(torch.randn(config.width, config.width)).Q
    before, before_that, words = basis[:32], basis[32:64], basis[64:]
    # Nothing of the tokens themselves lies in the two spaces, and what is compared lies in theirs.
    model.embedding -= model.embedding @ basis[:64].T @ basis[:64]
    seen = words[:32]
    first, *finders = model.blocks[:3]
    for head, space in enumerate((before, before_that)):
        look_back(first, head=head, distance=head + 1)
        _move(first, head, seen, space, 1.4)
    parts = words.split(config.head_width)
    for number, block in enumerate(finders):
        for head in (0, 1):
            both = head == 1
            asked = torch.cat((seen[:16], before[:16])) if both else seen
            there = torch.cat((before[:16], before_that[:16])) if both else before
            _compare(block, head, asked, there)
            part = parts[(2 * number + head) % len(parts)]
            _move(block, head, part, part, 6.0)


@torch.no_grad()
def begin_spelling(model, tokens, strength=0.4):
    """Start the embedding of each of `tokens` (a text or None by id) with its letters and their places.

    Otherwise the model has to learn the spelling of every token by heart. One code stands for a letter at a place, one
    for a capital there; a token's codes are added to its embedding. They lie in the tokens' own space and leave the
    spaces alone that heads write into.
    """
    space = torch.linalg.svd(model.embedding, full_matrices=False).Vh[: model.config.width - 64]
    letters = strength * torch.randn(PLACES, 26, len(space)) @ space
    capitals = strength * torch.randn(PLACES, len(space)) @ space
    for token, text in enumerate(tokens):
        if text is not None and text.isascii() and text.isalpha():
            for place, letter in enumerate(text[:PLACES]):
                model.embedding[token] += letters[place, ord(letter.lower()) - ord("a")]
                if letter.isupper():
                    model.embedding[token] += capitals[place]


def added(layers):
    """The two layers that a model of fewer is given when it learns more: the second and the last."""
    return (1, layers - 1)


@torch.no_grad()
def grow(model, weights):
    """Load the `weights` of a model of two layers fewer. New layers add nothing at first, so what it could do it still can.
    The first one begins with heads that look two and three tokens back: where an option begins they see its letter, as
    in "A: music"."""
    new = added(model.config.layers)
    old = [place for place in range(model.config.layers) if place not in new]
    for place in new:
        model.blocks[place] = Block(model.config)
    for head, distance in enumerate((3, 2)):
        look_back(model.blocks[new[0]], head=head, distance=distance)
    moved = {}
    for name, tensor in weights.items():
        if name.startswith("blocks."):
            _, place, part = name.split(".")
            name = f"blocks.{old[int(place)]}.{part}"
        moved[name] = tensor
    model.load_state_dict(model.state_dict() | moved)


def look_back(block, *, head, distance):
    """Let a head attend `distance` tokens back, whatever the tokens are.

    With zero weights and constant biases the score of query i and key j is a sum of cos(frequency * (i - distance - j)),
    which is largest at j = i - distance.
    """
    config = block.config
    half = config.head_width // 2
    angles = _frequencies(config)[:FAST] * distance
    strength = 8.0
    rows = _rows(config, head)
    block.query[rows] = 0
    block.key[rows] = 0
    block.query_bias[rows.start : rows.start + FAST] = strength * angles.cos()
    block.query_bias[rows.start + half : rows.start + half + FAST] = -strength * angles.sin()
    block.key_bias[rows.start : rows.start + FAST] = strength


def _compare(block, head, asked, there, strength=2.0):
    """Let a head attend to places where the space `there` holds what `asked` holds here, both (32, width)."""
    start, half = _rows(block.config, head).start, block.config.head_width // 2
    for weight, space in ((block.query, asked), (block.key, there)):
        weight[start + SLOW : start + half] = strength * space[: half - SLOW]
        weight[start + half + SLOW : start + 2 * half] = strength * space[half - SLOW :]


def _move(block, head, source, target, strength):
    """Let a head add to the space `target` what it finds in the space `source`, both (n, width)."""
    rows = _rows(block.config, head)
    block.value[rows] = 0
    block.value[rows.start : rows.start + len(source)] = source
    block.output[:, rows] = 0
    block.output[:, rows.start : rows.start + len(target)] = strength * target.T


def _rows(config, head):
    return slice(head * config.head_width, (head + 1) * config.head_width)


def _frequencies(config):
    return config.rope_base ** -(torch.arange(0, config.head_width, 2) / config.head_width)


def _rotate(x, rope):
    a, b = x.chunk(2, -1)
    return torch.cat((a * rope.cos - b * rope.sin, b * rope.cos + a * rope.sin), -1)


def _norm(x, weight, config):
    return _RmsNorm.apply(x, weight, config.norm_epsilon)


class _RmsNorm(torch.autograd.Function):
    """RMSNorm that keeps activations in their dtype: on a CPU, torch's own takes a tenth of a step."""

    @staticmethod
    def forward(ctx, x, weight, epsilon):
        length = torch.linalg.vector_norm(x, dim=-1, keepdim=True, dtype=torch.float32)
        inverse = torch.rsqrt(length.square() / x.shape[-1] + epsilon).to(x.dtype)
        unit = x * inverse
        ctx.save_for_backward(unit, weight, inverse)
        return unit * weight.to(x.dtype)

    @staticmethod
    def backward(ctx, above):
        unit, weight, inverse = ctx.saved_tensors
        onto_weight = (above * unit).flatten(0, -2).sum(0, dtype=torch.float32)
        above = above * weight.to(above.dtype)
        radial = torch.linalg.vecdot(above, unit).unsqueeze(-1) / unit.shape[-1]
        return torch.addcmul(above, unit, radial, value=-1).mul_(inverse), onto_weight, None


def _matrix(rows, columns):
    return torch.randn(rows, columns) * columns**-0.5
