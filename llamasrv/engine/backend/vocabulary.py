"""The model's tokenizer. Reads only the vocabulary and touches no context."""

from __future__ import annotations

import ctypes
from functools import cached_property
from itertools import compress, repeat
from typing import Any

from llamasrv.engine.backend.library import C, function
from llamasrv.engine.backend.model_handle import ModelHandle
from llamasrv.engine.backend.special_cuts import LONG, SpecialCuts

_tokenize = function("llama_tokenize", C.llama_tokenize.restype, *C.llama_tokenize.argtypes, quick=True)
_SHORT = 32  # bytes, about 30 µs; longer texts are tokenised without the GIL
_SLICE = 32_768  # tokens, about 1 ms with the GIL; a slice of millions would hold up every other thread
_P, _INT = ctypes.c_void_p, ctypes.c_int32
# The third argument is an output buffer: pass a plain address.
_to_piece = function("llama_token_to_piece", _INT, _P, _INT, _P, _INT, _INT, ctypes.c_bool, quick=True)
_attributes = function("llama_vocab_get_attr", _INT, _P, _INT, quick=True)
_ROOM = 256  # bytes; nearly all pieces fit
_Buffer = ctypes.c_char * _ROOM


class LlamaVocabulary:
    """The model's tokenizer. Reads only the vocabulary, so any thread may use it while the model is held."""

    def __init__(self, model: Any, handle: ModelHandle) -> None:
        self.hold, self.release = handle.hold, handle.release
        vocab = self.pointer = C.llama_model_get_vocab(model)
        self.size: int = C.llama_vocab_n_tokens(vocab)
        self.pieces = TokenPieces(vocab, self.size)
        self.eog = frozenset(_those("llama_vocab_is_eog", vocab, self.size))
        controls = _those("llama_vocab_is_control", vocab, self.size)
        self._control = frozenset(t for t in controls if not self.pieces[t])
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
        self._cuts = self._made_cuts()
        pointer = ctypes.cast(vocab, ctypes.c_void_p).value
        tokenize = ctypes.cast(C._lib.llama_tokenize, ctypes.c_void_p).value
        self.native = (pointer, tokenize) if pointer and tokenize else None

    def tokenize(self, text: str, *, add_special: bool = False, parse_special: bool = True) -> list[int]:
        if len(text) <= LONG:
            return self._tokenized(text, add_special, parse_special)
        first, *others = self._cuts[parse_special].pieces(text)
        if not others:
            return self._tokenized(text, add_special, parse_special)
        tokens = self._tokenized(first, False, parse_special)
        whole = self._tokenized(first, True, parse_special) if add_special else tokens
        # Tokens may be added at both ends.
        before = next((n for n in range(3) if whole[n : n + len(tokens)] == tokens), 0)
        behind = whole[before + len(tokens) :]
        tokens = whole[: before + len(tokens)]
        for piece in others:
            tokens += self._tokenized(piece, False, parse_special)
        return tokens + behind

    def _tokenized(self, text: str, add_special: bool, parse_special: bool) -> list[int]:
        data = text.encode("utf-8", "replace")
        tokenize = _tokenize if len(data) <= _SHORT else C.llama_tokenize
        # Use few sizes: ctypes creates a class per array size, which costs as much as tokenising a short text.
        room = 1 << (len(data) + 8).bit_length()
        out = (ctypes.c_int32 * room)()
        count = tokenize(self.pointer, data, len(data), out, room, add_special, parse_special)
        if count < 0:
            room = -count
            out = (ctypes.c_int32 * room)()
            count = tokenize(self.pointer, data, len(data), out, room, add_special, parse_special)
        tokens: list[int] = []
        for start in range(0, count, _SLICE):
            tokens += out[start : min(start + _SLICE, count)]
        return tokens

    def _made_cuts(self) -> dict[bool, SpecialCuts]:
        """By whether special tokens are parsed; tokens that users defined always are."""
        user, always = C.LLAMA_TOKEN_ATTR_USER_DEFINED, C.LLAMA_TOKEN_ATTR_CONTROL | C.LLAMA_TOKEN_ATTR_UNKNOWN
        kinds = map(_attributes, repeat(self.pointer), range(self.size))
        special = {self.text(t): kind for t, kind in enumerate(kinds) if kind & (user | always)}
        movable = [text for text, kind in special.items() if kind & C.LLAMA_TOKEN_ATTR_LSTRIP]
        defined = [text for text, kind in special.items() if kind & user]
        return {True: SpecialCuts(special, movable), False: SpecialCuts(defined, movable)}

    @cached_property
    def longest_piece(self) -> int:
        """In bytes."""
        return max(map(len, self.pieces.all()), default=0)

    def is_control(self, token: int) -> bool:
        return token in self._control

    def text(self, token: int | None) -> str:
        """A token's text in the vocabulary, also of control tokens; "" for None."""
        return C.llama_vocab_get_text(self.pointer, token).decode("utf-8", "replace") if token is not None else ""


def _token(token: int) -> int | None:
    return token if token >= 0 else None


class TokenPieces(dict[int, bytes]):
    """The bytes of each token, read on first use: reading a whole large vocabulary would delay the start by 0.2 s."""

    def __init__(self, vocab: Any, size: int) -> None:
        self._vocab, self._size = vocab, size

    def __missing__(self, token: int) -> bytes:
        token = int(token)
        if not 0 <= token < self._size:  # the library would abort
            raise IndexError(f"token {token} of {self._size}")
        # A buffer per call: another thread may ask at the same time.
        buffer: Any = _Buffer()
        n = _to_piece(self._vocab, token, buffer, _ROOM, 0, False)
        if n < 0:
            buffer = ctypes.create_string_buffer(-n)
            n = _to_piece(self._vocab, token, buffer, -n, 0, False)
        piece: bytes = buffer[:n]
        self[token] = piece
        return piece

    def all(self) -> list[bytes]:
        """The pieces of all tokens, by id. Faster than one by one; not cached."""
        stride = 32
        buffer = ctypes.create_string_buffer(stride * self._size)
        starts, begin = range(0, len(buffer), stride), ctypes.addressof(buffer)
        places = range(begin, begin + len(buffer), stride)
        lengths = list(
            map(_to_piece, repeat(self._vocab), range(self._size), places, repeat(stride), repeat(0), repeat(False))
        )
        raw = buffer.raw
        return [raw[at : at + n] if n >= 0 else self[t] for t, at, n in zip(range(self._size), starts, lengths)]


def _those(name: str, vocab: Any, size: int) -> list[int]:
    """The tokens for which this library function is true."""
    is_such = function(name, ctypes.c_bool, _P, _INT, quick=True)
    return list(compress(range(size), map(is_such, repeat(vocab), range(size))))
