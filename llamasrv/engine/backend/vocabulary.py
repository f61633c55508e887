"""The model's tokenizer. Reads only the vocabulary and touches no context."""

from __future__ import annotations

import ctypes
from typing import Any

from llamasrv.engine.backend.library import C, fast

_tokenize = fast.llama_tokenize
_tokenize.argtypes, _tokenize.restype = C.llama_tokenize.argtypes, C.llama_tokenize.restype
_SHORT = 32  # bytes, some 30 µs; beyond, the engine thread may have the interpreter meanwhile


class LlamaVocabulary:
    """The model's tokenizer. Reads only the vocabulary, so any thread may use it."""

    def __init__(self, model: Any) -> None:
        vocab = self.pointer = C.llama_model_get_vocab(model)
        self.size: int = C.llama_vocab_n_tokens(vocab)
        self.pieces = _pieces(vocab, self.size)
        self.eog = frozenset(t for t in range(self.size) if C.llama_vocab_is_eog(vocab, t))
        self._control = frozenset(
            t for t in range(self.size) if not self.pieces[t] and C.llama_vocab_is_control(vocab, t)
        )
        self.controls = {self.text(t): t for t in sorted(self._control, reverse=True)}
        self.specials = tuple(self.controls)
        self.bos = _token(C.llama_vocab_bos(vocab))
        self.eos = _token(C.llama_vocab_eos(vocab))
        self.sep = _token(C.llama_vocab_sep(vocab))
        self.add_bos = bool(C.llama_vocab_get_add_bos(vocab))
        self.add_eos = bool(C.llama_vocab_get_add_eos(vocab))
        self.add_sep = bool(C.llama_vocab_get_add_sep(vocab))
        self.fim_pre = _token(C.llama_vocab_fim_pre(vocab))
        self.fim_suf = _token(C.llama_vocab_fim_suf(vocab))
        self.fim_mid = _token(C.llama_vocab_fim_mid(vocab))
        self.fim_rep = _token(C.llama_vocab_fim_rep(vocab))
        self.fim_sep = _token(C.llama_vocab_fim_sep(vocab))
        pointer = ctypes.cast(vocab, ctypes.c_void_p).value
        function = ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p).value
        self.native = (pointer, function) if pointer and function else None

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        data = text.encode("utf-8", "replace")
        tokenize = _tokenize if len(data) <= _SHORT else C.llama_tokenize
        # Of few sizes: ctypes makes a class for each size of array, which costs as much as the tokens of a short text.
        room = 1 << (len(data) + 8).bit_length()
        out = (ctypes.c_int32 * room)()
        count = tokenize(self.pointer, data, len(data), out, room, add_special, parse_special)
        if count < 0:
            room = -count
            out = (ctypes.c_int32 * room)()
            count = tokenize(self.pointer, data, len(data), out, room, add_special, parse_special)
        return out[:count]

    def is_control(self, token: int) -> bool:
        return token in self._control

    def text(self, token: int | None) -> str:
        """A token's text in the vocabulary, also of control tokens; "" if it has none."""
        return C.llama_vocab_get_text(self.pointer, token).decode("utf-8", "replace") if token is not None else ""


def _token(token: int) -> int | None:
    return token if token >= 0 else None


def _pieces(vocab: Any, size: int) -> list[bytes]:
    """The bytes that each token writes; read once, so that generation never has to ask again."""
    to_piece = fast.llama_token_to_piece
    to_piece.argtypes = [
        ctypes.c_void_p,
        ctypes.c_int32,
        ctypes.c_char_p,
        ctypes.c_int32,
        ctypes.c_int32,
        ctypes.c_bool,
    ]
    to_piece.restype = ctypes.c_int32
    room = 256
    buffer = ctypes.create_string_buffer(room)
    pieces = []
    for token in range(size):
        n = to_piece(vocab, token, buffer, room, 0, False)
        if n < 0:
            room = -n
            buffer = ctypes.create_string_buffer(room)
            n = to_piece(vocab, token, buffer, room, 0, False)
        pieces.append(buffer.raw[:n] if n > 32 else ctypes.string_at(buffer, n))
    return pieces
