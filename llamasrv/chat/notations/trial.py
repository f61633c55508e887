"""Known words for trial conversations: what a template writes of them shows how calls are written."""

from __future__ import annotations

NAMES = ("zqtool", "zqother")
IDS = ("zqcall001", "zqcall002")
ARGUMENTS = {"zqfirst": "zqtext", "zqsecond": 7}
