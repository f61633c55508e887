"""The words that Anthropic's clients look for in errors.

Claude Code decides by them what it does next: it takes a picture out of the conversation and asks again, shortens the
conversation, offers another model, or says what is wrong with a document. So they are as much a part of the route's
contract as its fields. Each goes in front of what this server says.
"""

from __future__ import annotations

from llamasrv.errors import ContextTooLong, LlamasrvError

WORDS = {
    "image": "Could not process image",
    "encrypted pdf": "The PDF specified is password protected",
    "damaged pdf": "The PDF specified was not valid",
    "pdf pages": "A maximum of {} PDF pages may be provided",
    "model": "model: {}",
    "unexpected tool_result": "unexpected `tool_use_id` found in `tool_result` blocks",
    "unanswered tool_use": "`tool_use` ids were found without `tool_result` blocks immediately after",
    "thinking signature": "Invalid `signature` in `thinking` block",
}
"""By what an error is about (`LlamasrvError.about`)."""


def message_of(error: LlamasrvError) -> str:
    if isinstance(error, ContextTooLong):
        return f"prompt is too long: {error.num_prompt} tokens > {error.context} maximum"
    if not error.about or error.about[0] not in WORDS:
        return error.message
    return f"{WORDS[error.about[0]].format(*error.about[1:])}. {error.message}"
