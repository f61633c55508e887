"""What Ollama's store says of a model, as this server has it: parameters, system prompt, messages, template."""

from __future__ import annotations

import logging

from llamasrv.errors import InvalidRequest
from llamasrv.models.derived import DerivedModel
from llamasrv.models.model_texts import ModelTexts
from llamasrv.models.scan import FolderModel

log = logging.getLogger("llamasrv")

# A mark of a Go template, and the built-in Jinja template that writes the same. Only for files without a template.
_TEMPLATES = (
    ("<|start_header_id|>", "llama3"),
    ("<|start_of_role|>", "granite"),
    ("<|im_start|>", "chatml"),
    ("<start_of_turn>", "gemma"),
    ("<|end|>", "phi3"),
    ("<|user|>", "zephyr"),
    ("[INST]", "mistral-v3"),
    ("USER:", "vicuna"),
)


def definition(one: FolderModel) -> DerivedModel | None:
    """The defaults that the store sets; None if it sets none. Ill-formed ones are logged and left out."""
    texts = one.texts
    if texts is None or not (texts.changes_answers or texts.license):
        return None
    from llamasrv.protocols.limits import Limits  # imports marshmallow, which few starts need
    from llamasrv.protocols.ollama.manage import Managing

    body = {"model": "model", "from": "file", "parameters": dict(texts.parameters), "system": texts.system}
    try:
        wanted = Managing(Limits()).parse_create(body | {"messages": list(texts.messages)})
    except InvalidRequest as error:
        log.warning("%s: using none of its parameters in Ollama's store: %s", one.name, error.message)
        return DerivedModel(one.name, one.name, str(one.header.path), system=texts.system, license=texts.license)
    return DerivedModel(
        one.name,
        one.name,
        str(one.header.path),
        system=wanted.system,
        messages=wanted.messages,
        parameters=wanted.chosen.sampling,
        stop=wanted.chosen.stop,
        num_predict=wanted.chosen.max_tokens,
        license=texts.license,
        modified=one.details.modified,
    )


def context_of(texts: ModelTexts) -> int | None:
    """The context that the store sets, in tokens."""
    cells = texts.parameters.get("num_ctx")
    return cells if type(cells) is int and cells > 0 else None


def template_like(source: str) -> str | None:
    """The name of the built-in template that writes the same marks as this Go template."""
    return next((name for mark, name in _TEMPLATES if mark in source), None)
