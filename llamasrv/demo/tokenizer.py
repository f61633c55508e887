"""The tokenizer: byte-level BPE of 2,048 tokens that llama.cpp reads as `gpt2` with `qwen2` splitting.

Owns `tokenizer.json`. Once a model is trained with it, it stays as it is: every weight depends on it.

A small model lives by copying names, keys and values from its prompt, so a word must give the same tokens wherever it
stands: after a space, a quote or an underscore. Usual BPE merges the space into the word and breaks that. Here words are
merged first, from letters alone; a space joins a word at the very end, and only words that hardly ever stand elsewhere.
"""

import json
import re
from collections import Counter
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
LETTERS = "abcdefghijklmnopqrstuvwxyz"
SPACED_WORDS = 200
SPACE = "Ġ"  # as byte-level BPE writes it
_BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)


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
    texts = list(_plain(islice(documents, count)))
    words = Tokenizer(models.BPE())
    words.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in (SPLIT, r"\p{L}+")] + [_BYTES]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=SIZE - len(SPECIAL) - len(LETTERS) - SPACED_WORDS,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    words.train_from_iterator(texts, trainer)
    learned = json.loads(words.to_str())["model"]
    merges = [tuple(merge) for merge in learned["merges"]]
    merges += [("-", letter) for letter in LETTERS]  # spelling
    merges += [(SPACE, word) for word in _words_after_spaces(texts, learned["vocab"])]
    vocabulary = learned["vocab"] | {a + b: SIZE for a, b in merges if a + b not in learned["vocab"]}
    vocabulary = {token: index for index, token in enumerate(vocabulary)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(SPLIT), behavior="isolated"), _BYTES])
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([AddedToken(mark, special=True, normalized=False) for mark in SPECIAL])
    if tokenizer.get_vocab_size() != SIZE:
        raise ValueError(f"the sample gave {tokenizer.get_vocab_size()} tokens, not {SIZE}: take more documents")
    tokenizer.save(str(FILE), pretty=False)


def _words_after_spaces(texts, vocabulary):
    """The most frequent words that are one token and stand after a space nearly always."""
    spaced, anywhere = Counter(), Counter()
    for text in texts:
        spaced.update(re.findall(r"(?<= )[A-Za-z]+", text))
        anywhere.update(re.findall(r"[A-Za-z]+", text))
    fit = [word for word, n in spaced.most_common() if word in vocabulary and n > 0.97 * anywhere[word]]
    return fit[:SPACED_WORDS]


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
