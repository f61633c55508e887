"""What a tool search finds among deferred tools."""

from __future__ import annotations

import json
import time

import pytest

from llamasrv.domain.request import Tool, ToolSearch
from llamasrv.pipeline.tool_search import MOST_PATTERN, search


def tool(name, description="", **arguments):
    properties = {key: {"type": "string", "description": text} for key, text in arguments.items()}
    return Tool(name, description, {"type": "object", "properties": properties})


TOOLS = (
    tool("crm_find", "Finds customers by their name.", query="what to look for"),
    tool("crm_delete", "Deletes a customer.", id="the customer's id"),
    tool("getWeatherForecast", "The weather of the next days.", city="where"),
    tool("mail__send", "Sends a message.", to="the receiver's address"),
)


def found(kind, **arguments):
    result = search(ToolSearch("s", kind, TOOLS), json.dumps(arguments))
    assert not result.error
    return [tool.name for tool in result.found]


def test_words_find_the_best_first():
    assert found("words", query="delete customer")[0] == "crm_delete"
    assert set(found("words", query="crm")) == {"crm_find", "crm_delete"}


@pytest.mark.parametrize(
    "query, name",
    [("weather", "getWeatherForecast"), ("city where", "getWeatherForecast"), ("receiver address", "mail__send")],
)
def test_names_descriptions_and_arguments_are_searched(query, name):
    assert found("words", query=query)[0] == name


def test_what_nothing_fits_finds_nothing():
    assert found("words", query="zebra") == [] and found("regex", pattern="^zebra") == []


def test_a_pattern_is_searched_without_regard_to_case():
    assert found("regex", pattern="^CRM_") == ["crm_find", "crm_delete"]
    assert found("regex", pattern="^crm_", limit=1) == ["crm_find"]
    assert found("regex", pattern="receiver.s address") == ["mail__send"]


def test_paths_are_names_or_their_first_parts():
    assert found("paths", paths=["mail"]) == ["mail__send"]
    assert found("paths", paths=["mail.send", "crm_find"]) == ["crm_find", "mail__send"]


@pytest.mark.parametrize(
    "kind, arguments, word",
    [
        ("words", "{", "JSON"),
        ("words", "[]", "object"),
        ("words", "{}", "query"),
        ("words", '{"query": "x", "limit": 0}', "limit"),
        ("regex", '{"pattern": "(a"}', "expression"),
        ("regex", '{"pattern": "(?=a)"}', "expression"),
        ("regex", json.dumps({"pattern": "a" * (MOST_PATTERN + 1)}), "pattern"),
        ("paths", '{"paths": "crm"}', "paths"),
    ],
)
def test_wrong_arguments_are_reported(kind, arguments, word):
    result = search(ToolSearch("s", kind, TOOLS), arguments)
    assert result.found == () and word in result.error


def test_no_pattern_holds_the_server_up():
    """Such a pattern takes Python's own `re` longer than the age of the universe."""
    tools = (tool("x!", "a" * 20_000 + "!"),)
    begin = time.process_time()
    assert search(ToolSearch("s", "regex", tools), json.dumps({"pattern": "(a+)+$"})).found == ()
    assert time.process_time() - begin < 5
