"""Turns a request for more or less thinking into template variables; the same for every protocol.

Templates call their switch by one of two names and read an effort where they know one. What a template does not read
has no effect, so everything requested is passed on.
"""

from __future__ import annotations

from typing import Any

EFFORTS = ("none", "minimal", "low", "medium", "high", "xhigh", "max")


def thinking_variables(on: bool | None, effort: str | None) -> dict[str, Any]:
    """The template variables for thinking on or off (None: the template's default) and an effort. The effort "none"
    switches thinking off, "low" and above switch it on, unless `on` says otherwise."""
    if on is None and effort is not None:
        on = False if effort == "none" else None if effort == "minimal" else True
    out: dict[str, Any] = {} if on is None else {"enable_thinking": on, "thinking": on}
    if effort is not None and effort != "none":
        out["reasoning_effort"] = effort
    return out
