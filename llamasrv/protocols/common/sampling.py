"""Fields that chat and completions share: sampling, length, and the caller.

OpenAI's own names first, then the ones that local servers added. The values keep llama.cpp's meaning.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from operator import neg
from typing import Any, Union

from llamasrv.domain.params import SAMPLER_LETTERS, SAMPLERS, sampler_named
from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.forms import (
    CLOSED,
    Choices,
    Grammar,
    JsonSchema,
    Pattern,
    ResponseFormat,
    StructuredOutputs,
)
from llamasrv.protocols.common.loader import Loaded
from llamasrv.protocols.common.schema import (
    Array,
    Bound,
    Count,
    Flag,
    Ignored,
    Invalid,
    Names,
    Number,
    Object,
    Refusal,
    StreamFlag,
    String,
    WireField,
    WireSchema,
    check_length,
    expect,
    expect_or_none,
    wrong_type,
)
from llamasrv.protocols.telemetry import RETURN_PROGRESS, Extras

Bias = tuple[Union[int, str], float]
"""A token id or a text, and what is added to its logit."""

INT_MAX = 2**31 - 1

_MOST_SALT = 256  # max characters of a cache salt
_BIAS_CHARS = 64  # max characters of a text whose tokens get a bias
_BREAKER_CHARS = 128  # max characters of all breakers together
_MOST_BIAS = 1_000_000  # max bias in llama.cpp's form, which lacks OpenAI's bound of 100
_MAX_ADAPTERS = 16  # max adapters of a request
_MAX_SCALE = 100.0  # max scale of an adapter
_REMOVED = ("tfs_z", "tail_free")  # removed from llama.cpp, which skips them, but still sent by clients


class Lora(Array):
    """[{"id": number or name, "scale": number}]; adapters that are not listed are off."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[tuple[str, float], ...]:
        check_length(value, _MAX_ADAPTERS, "entries")
        return tuple(self._entry(entry, at) for at, entry in enumerate(value))

    def _entry(self, entry: Any, at: int) -> tuple[str, float]:
        expect(dict, entry, at)
        name: Any = entry.get("id")
        scale: Any = entry.get("scale")
        if type(name) not in (int, str):
            raise wrong_type("a number or a name", name, at, "id")
        if type(scale) not in (int, float):
            raise wrong_type("a number", scale, at, "scale")
        if not -_MAX_SCALE <= scale <= _MAX_SCALE:
            raise Invalid(f"number out of range. Expected a value from -{_MAX_SCALE:g} to {_MAX_SCALE:g}.", at, "scale")
        return str(name), float(scale)


class Samplers(WireField):
    """An order of samplers: an array of names, names separated by semicolons, or llama.cpp's letters."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        if type(value) is str:
            value = value.split(";") if ";" in value or sampler_named(value) else list(value)
        elif type(value) is not list:
            raise wrong_type("an array of sampler names", value)
        if len(value) > 4 * len(SAMPLERS):
            raise Invalid("too many samplers.")
        out = []
        for i, name in enumerate(value):
            expect(str, name, i)
            if name in _REMOVED:
                continue
            known = sampler_named(name) or SAMPLER_LETTERS.get(name)
            if known is None:
                raise Invalid(f"unknown sampler '{name[:40]}'. Expected one of: {', '.join(SAMPLERS)}.", i)
            if known not in out:
                out.append(known)
        return tuple(out)


class Breakers(Names):
    """Texts that break DRY's repetitions. Memory and time grow with the number of tokens that contain one."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[str, ...]:
        breakers = super()._deserialize(value, attr, data, **kwargs)
        if (size := sum(map(len, breakers))) > _BREAKER_CHARS:
            raise Invalid(f"too long. Expected at most {_BREAKER_CHARS} characters altogether, but got {size}.")
        for at, text in enumerate(breakers):
            if text == " " or len(text) == 1 and text.isascii() and text.isalnum():
                raise Invalid("a single letter, digit or space is part of too many tokens to be a breaker.", at)
        return breakers


class LogitBiasField(WireField):
    """OpenAI's {"id": bias}, or llama.cpp's [[id or text, bias or false]]; false bans a token."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Bias, ...]:
        if type(value) is dict:
            entries: list[Any] = list(value.items())
        elif type(value) is list:
            entries = value
        else:
            raise wrong_type("an object", value)
        if len(entries) > self.limits.logit_bias:
            raise Invalid(f"too many entries. Expected at most {self.limits.logit_bias}, but got {len(entries)}.")
        return tuple(self._entry(entry, i) for i, entry in enumerate(entries))

    def _entry(self, entry: Any, at: int) -> Bias:
        if not isinstance(entry, (list, tuple)) or len(entry) != 2:
            raise Invalid("expected a pair of a token and its bias.", at, code="invalid_type")
        key, bias = entry
        step: int | str = key if isinstance(entry, tuple) else at
        if type(key) is str and _is_id(key):
            key = int(key)
        if type(key) is not str and type(key) is not int:
            raise wrong_type("a token id or a string", key, step)
        if type(key) is str and len(key) > _BIAS_CHARS:
            where = key[:20] if isinstance(entry, tuple) else at
            raise Invalid(f"text too long. Expected at most {_BIAS_CHARS} characters, but got {len(key)}.", where)
        if type(key) is int and not 0 <= key <= INT_MAX:
            raise Invalid(f"token id {key} is out of range.", step)
        if bias is False:
            return key, -math.inf
        if type(bias) is not float and type(bias) is not int:
            raise wrong_type("a number", bias, step)
        most = 100 if isinstance(entry, tuple) else _MOST_BIAS
        if not -most <= bias <= most:
            raise Invalid(f"bias out of range. Expected a value from -{most} to {most}, but got {bias}.", step)
        return key, float(bias)


def _is_id(key: str) -> bool:
    return len(key) <= 12 and key.isascii() and key.lstrip("-").isdigit()


class StreamOptions(Object):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> bool:
        """Whether usage is asked for."""
        if data.get("stream") is not True:
            raise Invalid("only allowed when 'stream' is true.")
        wanted = expect_or_none(bool, value.get("include_usage"), "include_usage")
        return bool(wanted)


class Salt(String):
    def _deserialize(self, value: str, attr: str | None, data: Any, **kwargs: Any) -> str:
        if not 0 < len(value) <= _MOST_SALT:
            raise Invalid(f"expected 1 to {_MOST_SALT} characters, but got {len(value)}.")
        return value


_MOST_NAME = 256  # max characters of a session's name


def session_named(name: str) -> str:
    """A client's name for a conversation; the digest of a long one."""
    return name if len(name) <= _MOST_NAME else hashlib.sha256(name.encode()).hexdigest()


class SessionParams(Object):
    """SGLang's: `id` names the conversation. One that only the server knows (`rid`) is not continued."""

    def __init__(self) -> None:
        super().__init__(
            "SGLang's: `id` is a `session_id`; `rid` and `offset`, which go on from a request that was not sent again, "
            "are refused",
            ignores=("replace", "drop_previous_output"),
            to="session",
        )

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        for name in ("rid", "offset"):
            if value.get(name) is not None:
                raise Refusal("earlier requests cannot be continued: send the whole prompt.", name)
        if type(value.get("id")) is not str:
            raise wrong_type("a string", value.get("id"), "id")
        return session_named(value["id"])


def unless_negative(count: int) -> int | None:
    return None if count < 0 else count


def seed_of(seed: int) -> int | None:
    return None if seed == -1 else seed % 0xFFFFFFFF


class SamplingSchema(WireSchema):
    """The fields that every OpenAI generation endpoint understands."""

    generates = True

    model = String("a name or alias; absent: the model that is served", to="model")
    stream = Flag(to="stream")
    stream_options = StreamOptions("`include_usage`", ignores=("include_obfuscation", "continuous_usage_stats"))
    temperature = Number(0, 2, "absent: the model's own default", to="sampling.temperature")
    top_p = Number(0, 1, "absent: the model's own default", to="sampling.top_p")
    n = Count(1, "choices", to="n")
    stop = Names("stops", "stop_chars", "a string or an array; in addition to the model's own end", to="stop")
    seed = Count(-(2**63), 2**64 - 1, "-1: a fresh one; reduced modulo 2^32 - 1", to="sampling.seed", via=seed_of)
    presence_penalty = Number(-2, 2, to="sampling.presence_penalty")
    frequency_penalty = Number(-2, 2, to="sampling.frequency_penalty")
    logit_bias = LogitBiasField("by token id, or by a text of up to 64 characters", to="sampling.logit_bias")
    user = Ignored()
    # what local servers added
    top_k = Count(-1, INT_MAX, "0 or -1: off", to="sampling.top_k", via=lambda k: max(k, 0))
    min_p = Number(0, 1, to="sampling.min_p")
    typical_p = Number(0, 1, to="sampling.typical_p")
    top_n_sigma = Number(-1, 1e6, "-1: off", to="sampling.top_n_sigma")
    min_keep = Count(0, INT_MAX, to="sampling.min_keep")
    repeat_penalty = Number(0, 1e6, above=True, to="sampling.repeat_penalty")
    repetition_penalty = Number(0, 1e6, "the same as `repeat_penalty`", above=True, to="sampling.repeat_penalty")
    repeat_last_n = Count(-1, INT_MAX, "-1: the whole context", to="sampling.repeat_last_n")
    dry_multiplier = Number(0, 1e6, to="sampling.dry_multiplier")
    dry_base = Number(0, 1e6, to="sampling.dry_base")
    dry_allowed_length = Count(0, INT_MAX, to="sampling.dry_allowed_length")
    dry_penalty_last_n = Count(-1, INT_MAX, "-1: the whole context", to="sampling.dry_penalty_last_n")
    dry_sequence_breakers = Breakers(
        "dry_breakers",
        32,
        "up to 16 with 128 characters altogether; no single letter, digit or space",
        to="sampling.dry_sequence_breakers",
    )
    xtc_probability = Number(0, 1, to="sampling.xtc_probability")
    xtc_threshold = Number(0, 1, to="sampling.xtc_threshold")
    mirostat = Count(0, 2, to="sampling.mirostat")
    mirostat_tau = Number(0, 1e6, to="sampling.mirostat_tau")
    mirostat_eta = Number(0, 1e6, to="sampling.mirostat_eta")
    adaptive_target = Number(
        -1e6, 1, "the probability that the sampler `adaptive_p` aims at; negative: off", to="sampling.adaptive_target"
    )
    adaptive_decay = Number(0, 0.99, "how long it looks back", to="sampling.adaptive_decay")
    dynatemp_range = Number(0, 1e6, to="sampling.dynatemp_range")
    dynatemp_exponent = Number(0, 1e6, to="sampling.dynatemp_exponent")
    samplers = Samplers(
        "names, or llama.cpp's letters; `tfs_z`, which llama.cpp removed, is skipped", to="sampling.samplers"
    )
    min_tokens = Count(0, "max_tokens", to="sampling.min_tokens")
    ignore_eos = Flag(to="sampling.ignore_eos")
    lora = Lora('[{"id", "scale"}]: the adapters to use, by number or name', to="adapters")
    cache_prompt = Flag("false: neither use nor keep a prefix", to="cache_prompt")
    session_id = String("names the conversation, as `prompt_cache_key` does", to="session", via=session_named)
    session_params = SessionParams()
    cache_salt = Salt(
        "prefixes are shared only with requests that have the same one; names the conversation where nothing else does",
        to="cache_salt",
    )
    n_predict = Bound(0, "max_tokens", "the same as `max_tokens`", to="max_tokens")
    id_slot = Count(
        0,
        INT_MAX,
        "the number under which POST /slots saves what it leaves",
        also=(-1,),
        to="slot",
        via=unless_negative,
    )
    num_ctx = Ignored("the context is set when the model loads")
    options = Ignored()
    keep_alive = Ignored()
    # A client may step back, but not ahead of others.
    priority = Count(
        0, 100, "vLLM's: a larger number waits longer for a place; 0: no difference", to="priority", via=neg
    )
    timings_per_token = StreamFlag("llama.cpp's: each chunk of a stream has `timings`", to="with_pace")
    return_progress = StreamFlag(RETURN_PROGRESS, to="with_progress")
    return_tokens = Ignored()
    prompt_logprobs = Ignored("use `echo` of completions")
    # the form of the answer
    response_format = ResponseFormat(
        f"by a grammar; json_object with a `schema` or `value`, json and regex, too; {CLOSED}"
    )
    json_schema = JsonSchema("a schema, or its text; closed as with `response_format`")
    grammar = Grammar("llama.cpp's GBNF, or Lark")
    structured_outputs = StructuredOutputs("`json`, `regex`, `choice`, `grammar`, `json_object` or `structural_tag`")
    guided_json = JsonSchema("a schema, or its text; closed as with `response_format`")
    guided_regex = Pattern("the whole answer matches it")
    guided_choice = Choices("the answer is one of them")
    guided_grammar = Grammar("GBNF or Lark")
    regex = Pattern("the whole answer matches it")
    ebnf = Grammar("a grammar in GBNF")
    guided_decoding_backend = Ignored("there is one")


def extras_of(data: Loaded) -> Extras:
    """llama.cpp's figures that the reply is to contain. Some of them exist only in a stream's chunks."""
    parts = data.parts
    return Extras(parts.get("with_pace", False), parts.get("with_progress", False), data.get("verbose", False))


def logprobs_of(data: Mapping[str, Any]) -> int | None:
    """How many alternatives of each token the reply lists; None: no log-probabilities at all."""
    top: int = data.get("top_logprobs", 0)
    if data.get("logprobs", False):
        return top
    if top:
        raise InvalidRequest("Invalid 'top_logprobs': only allowed when 'logprobs' is true.", param="top_logprobs")
    return None
