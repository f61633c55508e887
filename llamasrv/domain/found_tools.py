"""What a tool search has found, as a message that the model reads."""

from __future__ import annotations

from llamasrv.domain.request import Message, Tool


def found_message(name: str, call_id: str, found: tuple[Tool, ...]) -> Message:
    """The result of the call of a search. The tools can be called from there on."""
    names = ", ".join(tool.name for tool in found)
    text = f"Found: {names}." if found else "No tool was found."
    return Message("tool", text, name=name, tool_call_id=call_id, added_tools=found)
