"""Bodies of the routes that change models (copy, create, pull), and the status lines of their replies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from llamasrv.errors import InvalidRequest
from llamasrv.protocols.common.loader import build, loader_of
from llamasrv.protocols.common.schema import (
    Flag,
    Ignored,
    Invalid,
    Object,
    Refused,
    String,
    WireField,
    WireSchema,
    expect,
    wrong_type,
)
from llamasrv.protocols.limits import Limits
from llamasrv.protocols.ollama.fields import OllamaOptions
from llamasrv.protocols.ollama.messages import OllamaMessages
from llamasrv.protocols.ollama.wire import dumps

SUCCESS = {"status": "success"}


class License(WireField):
    """A text, or several."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        texts = [value] if type(value) is str else value
        if type(texts) is not list or not all(type(text) is str for text in texts):
            raise wrong_type("a string or an array of strings", value)
        return "\n".join(texts)


class Files(Object):
    """One GGUF file that was uploaded before: its name and its digest."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str:
        if len(value) != 1:
            raise Invalid("expected one GGUF file.")
        ((name, digest),) = value.items()
        return expect(str, digest, name, what="a digest")


class TemplateField(String):
    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> str | None:
        if value and "{" not in value:
            raise Invalid("the template contains no expression, so no message would appear in the prompt.")
        return value or None


class CreateSchema(WireSchema):
    class Meta(WireSchema.Meta):
        include = {"from": String("the model that it is made of")}  # `from` is a keyword, so it cannot be an attribute

    model = String("the new name")
    name = String("the older name of `model`")
    files = Files("one GGUF file, by the digest of its blob")
    template = TemplateField("Jinja, as model files carry it; Go templates are refused")
    system = String("for conversations that bring none")
    messages = OllamaMessages("what each conversation begins with")
    parameters = OllamaOptions("sampling options, stop, num_predict, num_ctx")
    license = License()
    stream = Flag("absent: true")
    adapters = Refused("adapters are the operator's, by --lora")
    quantize = String("a number format such as q4_K_M, for a model of F16, BF16 or F32")
    modelfile = Refused("its parts are fields of their own")
    remote_host = Ignored()


class Chosen(NamedTuple):
    """Defaults of a new model for its requests. `max_tokens` None: until the model stops."""

    sampling: Mapping[str, Any] = {}
    max_tokens: int | None = None
    stop: tuple[str, ...] = ()
    num_ctx: int | None = None


class Create(NamedTuple):
    """What a new model is made of: `base` (a model's name) or `blob` (a digest)."""

    name: str
    base: str | None
    blob: str | None
    template: str | None
    system: str
    messages: tuple[tuple[str, str], ...]
    chosen: Chosen
    license: str
    stream: bool
    quantize: str  # a number format; "" leaves the file as it is


class CopySchema(WireSchema):
    source = String("a model")
    destination = String("its further name")


class PullSchema(WireSchema):
    model = String("a repository of the Hub: hf.co/owner/repo:QUANT")
    name = String("the older name of `model`")
    stream = Flag("absent: true")
    insecure = Ignored()
    username = Ignored()
    password = Ignored()


class Managing:
    """These endpoints, with their limits."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._create = loader_of(CreateSchema, limits).load
        self._copy = loader_of(CopySchema, limits).load
        self._pull = loader_of(PullSchema, limits).load

    def parse_create(self, body: Mapping[str, Any]) -> Create:
        data = self._create(body)
        get = data.get
        base, blob = get("from"), get("files")
        if (base is None) == (blob is None):
            raise InvalidRequest("'from' or 'files' is required: what to create the model from", param="from")
        messages = []
        for at, message in enumerate(get("messages", ())):
            if type(message.content) is not str:
                raise InvalidRequest(f"Invalid 'messages[{at}]': expected a string.", param=f"messages[{at}]")
            messages.append((message.role, message.content))
        return Create(
            self._new_name(data),
            base,
            blob,
            get("template"),
            get("system", ""),
            tuple(messages),
            build(Chosen, data, num_ctx=get("parameters", {}).get("num_ctx") or None),
            get("license", ""),
            get("stream", True),
            get("quantize", ""),
        )

    def parse_copy(self, body: Mapping[str, Any]) -> tuple[str, str]:
        data = self._copy(body)
        source, destination = data.get("source"), data.get("destination")
        if not source or not destination:
            raise InvalidRequest("source and destination are required", param="destination" if source else "source")
        return source, self._checked(destination, "destination")

    def parse_pull(self, body: Mapping[str, Any]) -> tuple[str, bool]:
        data = self._pull(body)
        return _name(data), data.get("stream", True)

    def _new_name(self, data: Mapping[str, Any]) -> str:
        return self._checked(_name(data), "model")

    def _checked(self, name: str, field: str) -> str:
        """A valid name for a new model."""
        steps = name.replace(":", "/").split("/")
        plain = all(step and step.replace("-", "").replace(".", "").replace("_", "").isalnum() for step in steps)
        if not plain or not name.isascii() or len(name) > self._limits.model_chars or name.count(":") > 1:
            raise InvalidRequest(f"Invalid '{field}': '{name[:80]}' is not a valid model name.", param=field)
        return name


def _name(data: Mapping[str, Any]) -> str:
    name = data.get("model") or data.get("name")
    if not name:
        raise InvalidRequest("model is required", param="model", code="missing_required_parameter")
    return str(name)


def statuses(steps: list[str], *, stream: bool) -> bytes:
    """A line for each step and one for success; without a stream, only the last."""
    if not stream:
        return dumps(SUCCESS)
    return b"".join(dumps({"status": step}) + b"\n" for step in [*steps, "success"])


def quantize_line(before: str, kind: str, *, completed: int, total: int) -> bytes:
    """The progress of writing a model in another number format, in tensors."""
    status = f"quantizing {before} model to {kind.upper()}"
    return dumps({"status": status, "digest": "0000000000000000000", "total": total, "completed": completed})


def pull_line(status: str, *, digest: str = "", completed: int = 0, total: int = 0) -> bytes:
    """The progress of a pull; for a file, how much of it has arrived."""
    if not digest:
        return dumps({"status": status})
    short = digest.partition(":")[2][:12]
    shown = f"pulling {short}" if status == "pulling" else "verifying sha256 digest"
    return dumps({"status": shown, "digest": digest, "total": total, "completed": completed})
