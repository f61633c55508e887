"""Known words for trial conversations; how a template renders them shows how calls are written."""

from __future__ import annotations

NAMES = ("zqtool", "zqother")
IDS = ("zqcall001", "zqcall002")
ARGUMENTS = {"zqfirst": "zqtext", "zqsecond": 7}
