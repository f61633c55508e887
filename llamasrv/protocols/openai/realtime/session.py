"""The settings of a Realtime session, as `session.update` changes them.

What a session shows is what is in force: settings that this server does not have stay null.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, Literal

from llamasrv.errors import InvalidRequest, Unsupported

JSON = dict[str, Any]
Law = Literal["mu", "a"]

RATE = 24_000
PCM = {"type": "audio/pcm", "rate": RATE}
LAWS: dict[str, Law] = {"audio/pcmu": "mu", "audio/pcma": "a"}  # G.711 variants by format name
_RATES = {"audio/pcm": RATE, **dict.fromkeys(LAWS, 8000)}
LIFETIME = 3600.0  # max seconds of a session
MOST_TEXT = 400_000  # max characters of instructions
MOST_TOOLS = 128
_VAD = {
    "type": "server_vad",
    "threshold": 0.5,
    "prefix_padding_ms": 300,
    "silence_duration_ms": 500,
    "idle_timeout_ms": None,
    "create_response": True,
    "interrupt_response": True,
}
_EAGERNESS = {"low": 1200, "medium": 700, "high": 400, "auto": 700}  # ms of silence until a turn ends


def new_session(id: str, model: str, *, speaks: bool, transcribes: bool) -> JSON:
    """`speaks`: whether answers can be sound; `transcribes`: it only writes down what it hears."""
    heard = {"format": PCM, "transcription": None, "noise_reduction": None, "turn_detection": dict(_VAD)}
    common = {"object": "realtime.session", "id": id, "expires_at": int(time.time() + LIFETIME), "include": None}
    if transcribes:
        heard["transcription"] = {"model": model, "language": None, "prompt": None}
        return {"type": "transcription", **common, "audio": {"input": heard}}
    return {
        "type": "realtime",
        **common,
        "model": model,
        "output_modalities": ["audio" if speaks else "text"],
        "instructions": "",
        "tools": [],
        "tool_choice": "auto",
        "max_output_tokens": "inf",
        "parallel_tool_calls": True,
        "reasoning": None,
        "tracing": None,
        "truncation": "disabled",
        "prompt": None,
        "audio": {"input": heard, "output": {"format": PCM, "voice": "alloy", "speed": 1.0}},
    }


def updated(session: JSON, given: Any, path: str = "session") -> JSON:
    """The session with these settings. Raises InvalidRequest."""
    given = _object(given, path)
    kind = given.get("type", session["type"])
    if kind != session["type"]:
        raise _invalid(
            f"this session is of type '{session['type']}'; connect with intent=transcription for the other.",
            f"{path}.type",
        )
    out = {**session, **answer_settings(given, path)} if kind == "realtime" else dict(session)
    audio = _object(given.get("audio") or {}, f"{path}.audio")
    heard = _input(session["audio"]["input"], audio.get("input"), f"{path}.audio.input")
    out["audio"] = {"input": heard}
    if kind == "realtime":
        out["audio"]["output"] = _output(session["audio"]["output"], audio.get("output"), f"{path}.audio.output")
    return out


def answer_settings(given: Mapping[str, Any], path: str) -> JSON:
    """The settings of answers among these, checked. Raises InvalidRequest."""
    out: JSON = {}
    if given.get("prompt"):
        raise Unsupported(f"Invalid '{path}.prompt': there are no stored prompts.", param=f"{path}.prompt")
    if "instructions" in given:
        out["instructions"] = _text(given["instructions"] or "", f"{path}.instructions", MOST_TEXT)
    if given.get("output_modalities") is not None:
        kinds = given["output_modalities"]
        if kinds not in (["text"], ["audio"], ["text", "audio"], ["audio", "text"]):
            raise _invalid('expected ["text"] or ["audio"].', f"{path}.output_modalities")
        out["output_modalities"] = ["audio"] if "audio" in kinds else ["text"]
    if given.get("max_output_tokens") is not None:
        most = given["max_output_tokens"]
        if most != "inf" and (type(most) is not int or most < 1):
            raise _invalid("expected a number of tokens, or 'inf'.", f"{path}.max_output_tokens")
        out["max_output_tokens"] = most
    if given.get("tools") is not None:
        out["tools"] = _tools(given["tools"], f"{path}.tools")
    if given.get("tool_choice") is not None:
        out["tool_choice"] = _tool_choice(given["tool_choice"], f"{path}.tool_choice")
    if given.get("parallel_tool_calls") is not None:
        out["parallel_tool_calls"] = _flag(given["parallel_tool_calls"], f"{path}.parallel_tool_calls")
    if given.get("reasoning") is not None:
        effort = _object(given["reasoning"], f"{path}.reasoning").get("effort")
        out["reasoning"] = None if effort is None else {"effort": _text(effort, f"{path}.reasoning.effort", 20)}
    return out


def output_settings(before: JSON, given: Any, path: str) -> JSON:
    """`audio.output` with these settings. Raises InvalidRequest."""
    return _output(before, _object(given or {}, path).get("output"), f"{path}.output")


def _input(before: JSON, given: Any, path: str) -> JSON:
    out, given = dict(before), _object(given or {}, path)
    if given.get("format") is not None:
        out["format"] = _format(given["format"], f"{path}.format")
    if "transcription" in given:
        asked = given["transcription"]
        out["transcription"] = None if asked is None else _transcription(_object(asked, f"{path}.transcription"), path)
    if "turn_detection" in given:
        asked = given["turn_detection"]
        out["turn_detection"] = None if asked is None else _turns(_object(asked, f"{path}.turn_detection"), path)
    return out


def _transcription(given: JSON, path: str) -> JSON:
    names = ("model", "language", "prompt")
    return {
        name: None if given.get(name) is None else _text(given[name], f"{path}.transcription.{name}", 4000)
        for name in names
    }


def _turns(given: JSON, path: str) -> JSON:
    path = f"{path}.turn_detection"
    kind = given.get("type")
    if kind not in ("server_vad", "semantic_vad"):
        raise _invalid("expected 'server_vad' or 'semantic_vad'.", f"{path}.type")
    out = {**_VAD, "type": kind}
    if kind == "semantic_vad":  # here, silence alone ends turns
        eagerness = given.get("eagerness") or "auto"
        if type(eagerness) is not str or eagerness not in _EAGERNESS:
            raise _invalid(f"expected one of {', '.join(_EAGERNESS)}.", f"{path}.eagerness")
        out |= {"eagerness": eagerness, "silence_duration_ms": _EAGERNESS[eagerness]}
    for name, low, high in (
        ("threshold", 0.0, 1.0),
        ("prefix_padding_ms", 0, 5000),
        ("silence_duration_ms", 20, 10_000),
    ):
        value = given.get(name)
        if value is not None:
            if type(value) not in (int, float) or not low <= value <= high:
                raise _invalid(f"expected a number from {low:g} to {high:g}.", f"{path}.{name}")
            out[name] = value
    for name in ("create_response", "interrupt_response"):
        if given.get(name) is not None:
            out[name] = _flag(given[name], f"{path}.{name}")
    return out


def _output(before: JSON, given: Any, path: str) -> JSON:
    out, given = dict(before), _object(given or {}, path)
    if given.get("format") is not None:
        out["format"] = _format(given["format"], f"{path}.format")
    if given.get("voice") is not None:
        voice = given["voice"]
        out["voice"] = _text(voice.get("id") if type(voice) is dict else voice, f"{path}.voice", 64)
    if given.get("speed") is not None:
        if type(given["speed"]) not in (int, float) or not 0.25 <= given["speed"] <= 4:
            raise _invalid("expected a number from 0.25 to 4.", f"{path}.speed")
        out["speed"] = given["speed"]
    return out


def _format(given: Any, path: str) -> JSON:
    kind = _object(given, path).get("type", "audio/pcm")
    if type(kind) is not str or kind not in _RATES:
        raise Unsupported(f"Invalid '{path}.type': expected one of {', '.join(_RATES)}.", param=f"{path}.type")
    if given.get("rate") not in (_RATES[kind], None):
        raise Unsupported(f"Invalid '{path}.rate': '{kind}' has {_RATES[kind]} Hz.", param=f"{path}.rate")
    return PCM if kind == "audio/pcm" else {"type": kind}


def _tools(given: Any, path: str) -> list[JSON]:
    if type(given) is not list or len(given) > MOST_TOOLS:
        raise _invalid(f"expected an array of at most {MOST_TOOLS} tools.", path)
    for i, tool in enumerate(given):
        if _object(tool, f"{path}[{i}]").get("type") != "function":
            raise Unsupported(
                f"Invalid '{path}[{i}].type': only tools of type 'function' are supported.", param=f"{path}[{i}].type"
            )
        _text(tool.get("name"), f"{path}[{i}].name", 256)
        _object(tool.get("parameters") or {}, f"{path}[{i}].parameters")
    return given


def _tool_choice(given: Any, path: str) -> Any:
    if given in ("auto", "none", "required"):
        return given
    if type(given) is dict and given.get("type") == "function" and type(given.get("name")) is str:
        return {"type": "function", "name": given["name"]}
    raise _invalid("expected 'auto', 'none', 'required' or a function with its name.", path)


def chat_tools(settings: Mapping[str, Any]) -> JSON:
    """The tools of a session, and the choice, as chat completions have them."""
    if not settings["tools"]:
        return {}
    names = ("name", "description", "parameters")
    tools = [
        {"type": "function", "function": {name: tool[name] for name in names if tool.get(name) is not None}}
        for tool in settings["tools"]
    ]
    choice = settings["tool_choice"]
    if type(choice) is dict:
        choice = {"type": "function", "function": {"name": choice["name"]}}
    return {"tools": tools, "tool_choice": choice, "parallel_tool_calls": settings["parallel_tool_calls"]}


def _object(value: Any, path: str) -> JSON:
    if type(value) is not dict:
        raise _invalid("expected an object.", path, code="invalid_type")
    return value


def _flag(value: Any, path: str) -> bool:
    if type(value) is not bool:
        raise _invalid("expected true or false.", path, code="invalid_type")
    return value


def _text(value: Any, path: str, most: int) -> str:
    if type(value) is not str:
        raise _invalid("expected a string.", path, code="invalid_type")
    if len(value) > most:
        raise _invalid(f"string too long. Expected at most {most} characters.", path)
    return value


def _invalid(text: str, path: str, code: str = "invalid_value") -> InvalidRequest:
    return InvalidRequest(f"Invalid '{path}': {text}", param=path, code=code)
