"""all-MiniLM-L6-v2 as a GGUF, and its expected vectors: numpy on the same weights, with a tokenizer of its own."""

from __future__ import annotations

import json
import math
import struct
import unicodedata

import gguf
import numpy as np

LAYERS, HEADS, CONTEXT = 6, 12, 512


def weights(folder):
    """The tensors of model.safetensors: 8 bytes of length, a JSON header, the numbers."""
    with open(folder / "model.safetensors", "rb") as file:
        (length,) = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(length))
        data = file.read()
    header.pop("__metadata__", None)
    return {
        name: np.frombuffer(data[slice(*about["data_offsets"])], np.float32).reshape(about["shape"])
        for name, about in header.items()
        if about["dtype"] == "F32"
    }


def vocabulary(folder):
    return (folder / "vocab.txt").read_text("utf-8").splitlines()


def write_gguf(folder, path):
    words, tensors = vocabulary(folder), weights(folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    w = gguf.GGUFWriter(str(path), "bert")
    w.add_name("all-MiniLM-L6-v2")
    w.add_block_count(config["num_hidden_layers"])
    w.add_context_length(config["max_position_embeddings"])
    w.add_embedding_length(config["hidden_size"])
    w.add_feed_forward_length(config["intermediate_size"])
    w.add_head_count(config["num_attention_heads"])
    w.add_layer_norm_eps(config["layer_norm_eps"])
    w.add_causal_attention(False)
    w.add_pooling_type(gguf.PoolingType.MEAN)
    w.add_token_type_count(config["type_vocab_size"])
    w.add_vocab_size(len(words))
    w.add_tokenizer_model("bert")
    w.add_tokenizer_pre("jina-v2-en")  # lower case, accents stripped: what llama.cpp does for every WordPiece
    control = {word for word in words if word.startswith("[") and word.endswith("]") and len(word) > 2}
    # llama.cpp marks the beginning of a word, where WordPiece marks what continues one.
    w.add_token_list([x if x in control else x[2:] if x.startswith("##") else "\u2581" + x for x in words])
    w.add_token_types([gguf.TokenType.CONTROL if x in control else gguf.TokenType.NORMAL for x in words])
    for name, add in (
        ("[CLS]", w.add_bos_token_id),
        ("[SEP]", w.add_sep_token_id),
        ("[PAD]", w.add_pad_token_id),
        ("[UNK]", w.add_unk_token_id),
        ("[MASK]", w.add_mask_token_id),
    ):
        add(words.index(name))
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, LAYERS)
    for name, tensor in tensors.items():
        if not name.startswith("pooler"):
            w.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), tensor)
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


class Reference:
    """The same model in numpy."""

    def __init__(self, folder):
        self.w = weights(folder)
        self.ids = {word: i for i, word in enumerate(vocabulary(folder))}

    def tokens(self, text):
        return [self.ids[piece] for piece in ("[CLS]", *self.pieces(text), "[SEP]")]

    def pieces(self, text):
        plain = "".join(c for c in unicodedata.normalize("NFD", text.lower()) if unicodedata.category(c) != "Mn")
        spaced = "".join(f" {c} " if _stands_alone(c) else c for c in plain)
        return [piece for word in spaced.split() for piece in self._split(word)]

    def _split(self, word):
        """The longest entry of the vocabulary first, again and again."""
        out, start = [], 0
        while start < len(word):
            for end in range(len(word), start, -1):
                piece = ("##" if start else "") + word[start:end]
                if piece in self.ids:
                    break
            else:
                return ["[UNK]"]
            out.append(piece)
            start = end
        return out

    def vector(self, tokens):
        w = self.w
        x = w["embeddings.word_embeddings.weight"][tokens] + w["embeddings.position_embeddings.weight"][: len(tokens)]
        x = self._norm(x + w["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
        for layer in range(LAYERS):
            x = self._layer(x, f"encoder.layer.{layer}.")
        pooled = x.mean(0)
        return pooled / np.linalg.norm(pooled)

    def _layer(self, x, at):
        q, k, v = (
            self._linear(x, f"{at}attention.self.{name}").reshape(len(x), HEADS, -1).transpose(1, 0, 2)
            for name in ("query", "key", "value")
        )
        scores = q @ k.transpose(0, 2, 1) / math.sqrt(q.shape[-1])
        weight = np.exp(scores - scores.max(-1, keepdims=True))
        heads = (weight / weight.sum(-1, keepdims=True)) @ v
        attended = self._linear(heads.transpose(1, 0, 2).reshape(x.shape), f"{at}attention.output.dense")
        x = self._norm(x + attended, f"{at}attention.output.LayerNorm")
        inner = self._linear(x, f"{at}intermediate.dense")
        gelu = inner * 0.5 * (1 + np.vectorize(math.erf)(inner / math.sqrt(2)))
        return self._norm(x + self._linear(gelu, f"{at}output.dense"), f"{at}output.LayerNorm")

    def _linear(self, x, name):
        return x @ self.w[f"{name}.weight"].T + self.w[f"{name}.bias"]

    def _norm(self, x, name):
        centred = x - x.mean(-1, keepdims=True)
        scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-12)
        return scaled * self.w[f"{name}.weight"] + self.w[f"{name}.bias"]


def _stands_alone(character):
    """Punctuation, and every other sign of ASCII that is neither letter, digit nor space; Chinese characters."""
    ascii_sign = character.isascii() and not character.isalnum() and not character.isspace() and character.isprintable()
    return ascii_sign or unicodedata.category(character).startswith("P") or "\u4e00" <= character <= "\u9fff"
