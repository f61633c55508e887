"""The demo model's forward pass in numpy: what training computed, without torch, to hold llama.cpp against."""

import numpy as np
from gguf import GGUFReader
from gguf.quants import dequantize


class Reference:
    def __init__(self, path):
        reader = GGUFReader(path)
        self.weights = {t.name: dequantize(t.data, t.tensor_type).astype(np.float32) for t in reader.tensors}

        def fact(name):
            return reader.fields[f"qwen2.{name}"].contents()

        self.layers, self.heads = fact("block_count"), fact("attention.head_count")
        self.kv_heads, self.epsilon = fact("attention.head_count_kv"), fact("attention.layer_norm_rms_epsilon")
        self.base = fact("rope.freq_base")

    def logits(self, tokens):
        """(tokens, vocabulary): the scores of what follows each token."""
        x = self.weights["token_embd.weight"][tokens]
        for layer in range(self.layers):
            x = x + self._attend(self._norm(x, layer, "attn_norm"), layer)
            x = x + self._feed_forward(self._norm(x, layer, "ffn_norm"), layer)
        head = self.weights.get("output.weight", self.weights["token_embd.weight"])
        return self._scaled(x, self.weights["output_norm.weight"]) @ head.T

    def greedy(self, tokens, count):
        tokens = list(tokens)
        for _ in range(count):
            tokens.append(int(self.logits(tokens)[-1].argmax()))
        return tokens[-count:]

    def _attend(self, x, layer):
        length = len(x)
        q = self._rotate(self._project(x, layer, "attn_q").reshape(length, self.heads, -1))
        k = self._rotate(self._project(x, layer, "attn_k").reshape(length, self.kv_heads, -1))
        v = self._project(x, layer, "attn_v").reshape(length, self.kv_heads, -1)
        k, v = (t.repeat(self.heads // self.kv_heads, axis=1) for t in (k, v))
        scores = np.einsum("ihd,jhd->hij", q, k) / np.sqrt(q.shape[-1])
        scores = np.where(np.tri(length, dtype=bool), scores, -np.inf)
        scores = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,jhd->ihd", scores / scores.sum(-1, keepdims=True), v)
        return mixed.reshape(length, -1) @ self.weights[f"blk.{layer}.attn_output.weight"].T

    def _feed_forward(self, x, layer):
        gate, up = (x @ self.weights[f"blk.{layer}.ffn_{name}.weight"].T for name in ("gate", "up"))
        return (gate / (1 + np.exp(-gate)) * up) @ self.weights[f"blk.{layer}.ffn_down.weight"].T

    def _project(self, x, layer, name):
        return x @ self.weights[f"blk.{layer}.{name}.weight"].T + self.weights[f"blk.{layer}.{name}.bias"]

    def _norm(self, x, layer, name):
        return self._scaled(x, self.weights[f"blk.{layer}.{name}.weight"])

    def _scaled(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.epsilon) * weight

    def _rotate(self, x):
        length, _, width = x.shape
        angles = np.outer(np.arange(length), self.base ** -(np.arange(0, width, 2) / width))[:, None]
        a, b = np.split(x, 2, axis=-1)
        return np.concatenate((a * np.cos(angles) - b * np.sin(angles), b * np.cos(angles) + a * np.sin(angles)), -1)
