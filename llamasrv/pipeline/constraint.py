"""What the answers to one prompt must obey: a compiled grammar and a thinking budget, from the request."""

from __future__ import annotations

import math
from functools import partial
from typing import Any

from llamasrv.chat.client_grammars import check_gbnf
from llamasrv.chat.formats import ChatFormat
from llamasrv.chat.grammar import Constraint, constrain
from llamasrv.concurrency import off_hub
from llamasrv.domain.request import ChatPrompt, Content, GenerateRequest, Prompt
from llamasrv.engine.sampling.grammar_compiler import lark_of_gbnf
from llamasrv.engine.sampling.grammar_matcher import CompiledGrammar
from llamasrv.engine.sampling.output_constraint import OutputConstraint
from llamasrv.engine.sampling.thinking_budget import ThinkingBudget
from llamasrv.errors import InvalidRequest
from llamasrv.pipeline.loaded_model import LoadedModel, TokenizedPrompt
from llamasrv.pipeline.sizes import is_long_form

_PLAIN = ChatFormat("plain")  # raw prompts: everything generated is content


class ConstraintBuilder:
    """Builds the constraints for the choices of one prompt. Raises InvalidRequest for a form that cannot be
    enforced."""

    def __init__(
        self,
        served: LoadedModel,
        prepared: TokenizedPrompt,
        request: GenerateRequest,
        prompt: Prompt,
        *,
        scope: str = "",
    ) -> None:
        """`scope`: who shares compiled grammars with whom."""
        self._served, self._prepared, self._request = served, prepared, request
        self._grammar = _grammar(served, prepared, request, prompt, scope)

    def build(self, *, in_reasoning: bool) -> OutputConstraint | None:
        """The constraint for one choice; None if nothing constrains it. `in_reasoning`: the prompt ends inside a
        thinking block."""
        budget = self._budget(in_reasoning)
        if self._grammar is None and budget is None:
            return None
        matcher = None if self._grammar is None else self._grammar.matcher()
        served = self._served
        return OutputConstraint(matcher, budget, control_texts=served.control_texts, pieces=served.vocab.pieces)

    def _budget(self, in_reasoning: bool) -> ThinkingBudget | None:
        tokens, profile = self._request.thinking_budget, self._prepared.profile
        thought = profile.format.reasoning if profile is not None else None
        if thought is None or (tokens is None and not self._request.thinking_control):
            return None
        return ThinkingBudget(
            math.inf if tokens is None else tokens,
            start=thought.start.strip().encode(),
            end=thought.end.strip().encode(),
            closing=self._closing(thought.end),
            open=in_reasoning,
            anywhere=thought.anywhere,
        )

    def _closing(self, end: str) -> list[int]:
        """What is written once the budget is used up: the message, as plain text, and the mark that closes a block."""
        vocab, message = self._served.vocab, self._request.thinking_message
        words = vocab.tokenize(message, parse_special=False) if message else []
        return [*words, *vocab.tokenize(end, parse_special=True)]


def _may_think(prepared: TokenizedPrompt, prompt: Prompt) -> bool:
    """Whether the model may open a thinking block on its own."""
    if not isinstance(prompt, ChatPrompt) or prepared.profile is None:
        return True
    return prompt.template_kwargs.get("enable_thinking") is not False and not prepared.profile.thinks_on_request


def _built_off_hub(format: ChatFormat, **options: Any) -> Constraint | None:
    built: Constraint | None = off_hub(partial(constrain, format, **options))
    return built


def _grammar(
    served: LoadedModel, prepared: TokenizedPrompt, request: GenerateRequest, prompt: Prompt, scope: str
) -> CompiledGrammar | None:
    content, choice = request.content, request.tool_choice
    if content is None and not prepared.tools:
        return None
    binding = any(tool.input_grammar for tool in prepared.tools)  # arguments of such a tool are enforced or refused
    if content is None and choice.mode == "auto" and not binding and not served.engine.grammars.is_available():
        return None  # calls are still parsed; only their form is not enforced
    grammars, owner = served.engine.grammars, request.owner or request.client
    compiled = partial(grammars.compile, owner=owner, scope=scope)
    controls = served.vocab.controls
    long = is_long_form([None if content is None else content.value, *(tool.parameters for tool in prepared.tools)])
    build = _built_off_hub if long else constrain
    if content is not None:
        if content.kind == "gbnf":
            text = content.value
            lark = grammars.convert(text, lambda: lark_of_gbnf(check_gbnf(text)), owner=owner, scope=scope)
            content = Content("lark", lark)
        # Compile it alone first: behind thinking, or beside calls, a form that nothing satisfies would be noticed only
        # in the middle of the answer.
        alone = build(_PLAIN, content=content, special_tokens=controls)
        if alone is not None:
            only = compiled(alone.grammar)
            if prepared.profile is None:
                return only
    constraint = build(
        prepared.profile.format if prepared.profile is not None else _PLAIN,
        prompt=prepared.text,
        continues=prepared.continues,
        tools=prepared.tools,
        must_call=choice.mode == "required",
        parallel=choice.parallel,
        content=content,
        thinking=_may_think(prepared, prompt),
        special_tokens=controls,
    )
    if constraint is None:
        return None
    try:
        return compiled(constraint.grammar, constraint.triggers)
    except InvalidRequest as error:
        if error.param == "content" and prepared.tools:
            raise error.but(param="tools") from None  # the content's form compiled
        raise
