"""The tokenizer: byte-level BPE of 2,048 tokens that llama.cpp reads as `gpt2` with `qwen2` splitting.

Owns `tokenizer.json`. Once a model is trained with it, it stays as it is: every weight depends on it.
"""

import json
from itertools import islice
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

FILE = Path(__file__).with_name("tokenizer.json")
SIZE = 2048
CONTROL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|fim_prefix|>", "<|fim_middle|>", "<|fim_suffix|>")
MARKS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>", "<think>", "</think>")
SPECIAL = CONTROL + MARKS
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)


class DemoTokenizer:
    def __init__(self, tokenizer):
        self.inner = tokenizer

    def encode(self, text):
        return self.inner.encode(text, add_special_tokens=False).ids

    def decode(self, tokens):
        return self.inner.decode(tokens, skip_special_tokens=False)

    def encode_document(self, document):
        """(tokens, which of them are learned). No token ever crosses the seam between two parts."""
        tokens, learned = [], []
        for text, wanted in document.parts:
            ids = self.encode(text)
            tokens += ids
            learned += [wanted] * len(ids)
        return tokens, learned


def load_tokenizer():
    return DemoTokenizer(Tokenizer.from_file(str(FILE)))


def train_tokenizer(documents, count):
    """Learn the merges from a sample of the corpus and write `tokenizer.json`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_plain(islice(documents, count)), trainer)
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in SPECIAL])
    if tokenizer.get_vocab_size() != SIZE:
        raise ValueError(f"the sample gave {tokenizer.get_vocab_size()} tokens, not {SIZE}: take more documents")
    tokenizer.save(str(FILE), pretty=False)


def _plain(documents):
    """Texts without the special tokens, so that no merge is spent on them."""
    for document in documents:
        text = "".join(part for part, _ in document.parts)
        for mark in SPECIAL:
            text = text.replace(mark, "\n")
        yield text


def vocabulary_and_merges():
    """(tokens by id, merges as llama.cpp wants them) from `tokenizer.json`."""
    state = json.loads(FILE.read_text(encoding="utf-8"))
    tokens = [None] * SIZE
    for token, index in state["model"]["vocab"].items():
        tokens[index] = token
    for added in state["added_tokens"]:
        tokens[added["id"]] = added["content"]
    merges = [m if isinstance(m, str) else " ".join(m) for m in state["model"]["merges"]]
    return tokens, merges
