"""Tries a model's chat templates in a child process before this one renders them."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from functools import partial

from llamasrv import __version__
from llamasrv.engine.base.interface import LoadFailed
from llamasrv.models.model import Model
from llamasrv.models.trial import Trials

_NAMED = "tokenizer.chat_template.tool_use"  # some files have a separate template for tools


def sources(model: Model) -> Iterator[str]:
    """The templates that the model would use, as far as that is known without loading it."""
    if model.settings.chat_template is not None:
        yield model.settings.chat_template
        return
    for source in (model.details.template, model.details.metadata.get(_NAMED)):
        if isinstance(source, str) and source:
            yield source


def check(model: Model, trials: Trials, run: Callable[[str], None] | None = None) -> None:
    """Raises LoadFailed for a template that exceeds the limits of its trial. One that is merely wrong does no harm: the
    model serves everything except chats."""
    from llamasrv.chat.renderer import TemplateError  # imports Jinja, which few starts need
    from llamasrv.chat.trial import TemplateDangerous, try_template

    for source in sources(model):
        mark = f"template:{hashlib.sha256(source.encode('utf-8', 'surrogatepass')).hexdigest()} {__version__}"
        try:
            trials.once(mark, partial(run or try_template, source))
        except TemplateDangerous as error:
            raise LoadFailed(f"{error}; use --chat-template to replace it") from None
        except TemplateError:
            continue
