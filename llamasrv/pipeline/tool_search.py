"""Finds deferred tools for a call of a tool search: by words (BM25), by a regular expression, or by their names.

Takes the arguments as the model wrote them. Expressions are matched in linear time (RE2), so that no pattern can block
the server. Knows no run and no protocol.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import re2

from llamasrv.domain.request import Tool, ToolSearch

MOST_PATTERN, MOST_QUERY = 200, 500  # characters
USUAL_LIMIT, MOST_FOUND = 5, 10_000  # tools
_K1, _B = 1.5, 0.75  # BM25's usual weights
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+|[^\W\d_A-Za-z]+")  # splits snake_case and camelCase names, too
_MOST_DEPTH = 8  # of schemas whose arguments are searched


class Search(NamedTuple):
    """What was found. `error` says what was wrong with the arguments."""

    found: tuple[Tool, ...] = ()
    error: str = ""


def search(tool: ToolSearch, arguments: str) -> Search:
    """Run one call."""
    try:
        given = json.loads(arguments or "{}")
    except (ValueError, RecursionError):
        return Search(error="the arguments are not valid JSON")
    if not isinstance(given, dict):
        return Search(error="the arguments are not an object")
    limit = given.get("limit", USUAL_LIMIT)
    if type(limit) is not int or not 1 <= limit <= MOST_FOUND:
        return Search(error=f"'limit' must be a whole number between 1 and {MOST_FOUND}")
    if tool.kind == "regex":
        return _by_pattern(tool.deferred, given.get("pattern"), limit)
    if tool.kind == "paths":
        return _by_path(tool.deferred, given.get("paths"))
    return _by_words(tool.deferred, given.get("query"), limit)


def _by_pattern(tools: Sequence[Tool], pattern: Any, limit: int) -> Search:
    if type(pattern) is not str or not pattern or len(pattern) > MOST_PATTERN:
        return Search(error=f"'pattern' must be a text of 1 to {MOST_PATTERN} characters")
    options = re2.Options()
    options.case_sensitive, options.log_errors = False, False
    try:
        compiled = re2.compile(pattern, options=options)
    except re2.error:
        return Search(error="'pattern' is not a regular expression that this server can read")
    found = []
    for tool in tools:
        if any(compiled.search(text) for text in _texts(tool)):
            found.append(tool)
            if len(found) == limit:
                break
    return Search(tuple(found))


def _by_path(tools: Sequence[Tool], paths: Any) -> Search:
    """Tools whose name, or its first part, is one of `paths`."""
    if type(paths) is not list or not all(type(path) is str for path in paths):
        return Search(error="'paths' must be a list of texts")
    wanted = {path.replace(".", "__") for path in paths}
    return Search(tuple(tool for tool in tools if tool.name in wanted or tool.name.partition("__")[0] in wanted))


def _by_words(tools: Sequence[Tool], query: Any, limit: int) -> Search:
    if type(query) is not str or not query or len(query) > MOST_QUERY:
        return Search(error=f"'query' must be a text of 1 to {MOST_QUERY} characters")
    documents = [Counter(_words(_texts(tool))) for tool in tools]
    scores = _bm25(documents, set(_words([query])))
    ranked = sorted((i for i in range(len(tools)) if scores[i] > 0), key=lambda i: -scores[i])
    return Search(tuple(tools[i] for i in ranked[:limit]))


def _bm25(documents: Sequence[Mapping[str, int]], query: Iterable[str]) -> list[float]:
    """The score of each document for the query; 0 if it contains none of its words."""
    lengths = [sum(document.values()) for document in documents]
    average = sum(lengths) / len(documents) if any(lengths) else 1.0
    scores = [0.0] * len(documents)
    for word in query:
        holders = [i for i, document in enumerate(documents) if word in document]
        weight = math.log(1 + (len(documents) - len(holders) + 0.5) / (len(holders) + 0.5))
        for i in holders:
            count = documents[i][word]
            scores[i] += weight * count * (_K1 + 1) / (count + _K1 * (1 - _B + _B * lengths[i] / average))
    return scores


def _words(texts: Iterable[str]) -> list[str]:
    return [word.lower() for text in texts for word in _WORD.findall(text)]


def _texts(tool: Tool) -> list[str]:
    """The searched text: name and description of the tool and of its arguments."""
    texts = [tool.name, tool.description]
    _add_arguments(tool.parameters, texts, 0)
    return texts


def _add_arguments(schema: Any, texts: list[str], depth: int) -> None:
    properties = schema.get("properties") if isinstance(schema, Mapping) else None
    if not isinstance(properties, Mapping) or depth >= _MOST_DEPTH:
        return
    for name, inner in properties.items():
        texts.append(name)
        if isinstance(inner, Mapping):
            if isinstance(inner.get("description"), str):
                texts.append(inner["description"])
            _add_arguments(inner, texts, depth + 1)
            _add_arguments(inner.get("items"), texts, depth + 1)
