"""Function declarations, and which of them may or must be called. Tools that Google's servers run are refused."""

from __future__ import annotations

from typing import Any

from llamasrv.domain.request import Tool, ToolChoice
from llamasrv.protocols.common.schema import Invalid, Refusal, WireField, expect, string_of, wrong_type
from llamasrv.protocols.gemini.schemas import json_schema
from llamasrv.protocols.gemini.wire import Path, list_of, object_of

_MODES = {"AUTO": "auto", "VALIDATED": "auto", "ANY": "required", "NONE": "none", "MODE_UNSPECIFIED": "auto"}


class GeminiTools(WireField):
    """A list of objects, each with `functionDeclarations`."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> tuple[Tool, ...]:
        out: dict[str, Tool] = {}
        for i, wire in enumerate(list_of(value)):
            given = object_of(wire, i)
            others = [name for name, tool in given.items() if name != "functionDeclarations" and tool is not None]
            if others:
                name = others[0][:40]
                raise Refusal(f"'{name}' runs on Google's servers and is not available here.", i, name)
            here = (i, "functionDeclarations")
            for j, declared in enumerate(list_of(given.get("functionDeclarations"), *here)):
                tool = _tool(declared, (*here, j))
                if tool.name in out:
                    raise Invalid(f"more than one function is named '{tool.name}'.", *here, j, "name")
                out[tool.name] = tool
        if len(out) > self.limits.tools:
            raise Invalid(f"too many functions. Expected at most {self.limits.tools}, but got {len(out)}.")
        return tuple(out.values())


def _tool(wire: Any, path: Path) -> Tool:
    given = object_of(wire, *path)
    name = string_of(given, "name", *path)
    if not 0 < len(name) <= 128:
        raise Invalid("expected a name of 1 to 128 characters.", *path, "name")
    description = string_of(given, "description", *path, required=False)
    parameters = given.get("parametersJsonSchema")
    if parameters is not None and type(parameters) is not dict:
        raise wrong_type("an object with a JSON schema", parameters, *path, "parametersJsonSchema")
    if parameters is None and given.get("parameters") is not None:
        parameters = json_schema(given["parameters"], *path, "parameters")
    return Tool(name, description or "", parameters or {"type": "object", "properties": {}})


class ToolConfig(WireField):
    """Which functions may or must be called. Read together with the raw tools, which show whether there are any."""

    def _deserialize(self, value: Any, attr: str | None, data: Any, **kwargs: Any) -> ToolChoice:
        calling = object_of(value).get("functionCallingConfig")
        if calling is None:
            return ToolChoice()
        here = "functionCallingConfig"
        given = object_of(calling, here)
        name = given.get("mode") or "AUTO"
        mode = _MODES.get(name.upper()) if type(name) is str else None
        if mode is None:
            raise Invalid("expected 'AUTO', 'ANY', 'VALIDATED' or 'NONE'.", here, "mode")
        allowed = list_of(given.get("allowedFunctionNames"), here, "allowedFunctionNames")
        for i, allowed_name in enumerate(allowed):
            expect(str, allowed_name, here, "allowedFunctionNames", i)
        if mode == "required" and not data.get("tools"):
            raise Invalid("'ANY' is only allowed when 'tools' are given.", here, "mode")
        return ToolChoice(mode, tuple(allowed))


def check_names(choice: ToolChoice, tools: tuple[Tool, ...]) -> None:
    """Raises Invalid if an allowed function is not declared."""
    known = {tool.name for tool in tools}
    for i, name in enumerate(choice.names):
        if name not in known:
            raise Invalid(f"no function is named '{name[:80]}'.", "functionCallingConfig", "allowedFunctionNames", i)
