"""Tool-call notations, one file each: how it is written, read, constrained by a grammar, and learned.

To add one, write its file, a Notation of base.py, and put it into the list here. Of several that learn a template and
read it back equally well, the first wins.
"""

from __future__ import annotations

from llamasrv.chat.notations.any_order import AnyOrder
from llamasrv.chat.notations.base import Notation
from llamasrv.chat.notations.braces import Braces
from llamasrv.chat.notations.in_header import InHeader
from llamasrv.chat.notations.json_object import JsonObject
from llamasrv.chat.notations.keyword_call import KeywordCall
from llamasrv.chat.notations.named import Named
from llamasrv.chat.notations.tagged import Tagged

NOTATIONS: tuple[type[Notation], ...] = (JsonObject, Named, Tagged, KeywordCall, Braces, AnyOrder, InHeader)
