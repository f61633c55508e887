"""Responses bodies that nobody thought of: a reply or a clear 4xx, never a 5xx."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st
from protocols.openai.responses_client import add_up
from serving import openai_error_keys
from web.test_fuzz import relaxed, scalars, values

from llamasrv.protocols.common.schema import rows
from llamasrv.protocols.openai.responses.items import CARRIED, READERS
from llamasrv.protocols.openai.responses.schema import ResponsesSchema

ITEM_KEYS = (
    "role", "content", "id", "call_id", "name", "arguments", "output", "input", "namespace", "summary",
    "encrypted_content", "tools", "action", "status",
)  # fmt: skip
items = st.builds(
    lambda kind, more: {**({} if kind is None else {"type": kind}), **more},
    st.sampled_from([None, "message", "shell_call", "shell_call_output", *READERS, *sorted(CARRIED)[:3]]),
    st.dictionaries(st.sampled_from(ITEM_KEYS), st.one_of(st.sampled_from(["c", "user", "assistant", "x"]), values)),
)
tools = st.lists(
    st.one_of(
        values,
        st.builds(
            lambda kind, more: {"type": kind, "name": "f", **more},
            st.sampled_from(["function", "custom", "namespace", "mcp"]),
            st.dictionaries(
                st.sampled_from(["name", "parameters", "format", "tools", "strict", "description"]), values
            ),
        ),
    ),
    max_size=3,
)


def check(client, body):
    response = client.post("/v1/responses", data=json.dumps({"max_output_tokens": 2, **body}).encode())
    if response.content_type.startswith("text/event-stream"):
        blocks = [block for block in response.get_data(as_text=True).split("\n\n") if block not in ("", ": ping")]
        add_up([block.partition("\ndata: ")[2] for block in blocks])
        return
    reply = response.get_json()
    assert response.status_code in (200, 400, 404, 429), (body, reply)
    if response.status_code == 200:
        assert reply["object"] == "response"
        client.get(f"/v1/responses/{reply['id']}/input_items").get_json()["data"]
    else:
        assert reply["error"]["message"] and set(reply["error"]) == openai_error_keys(reply["error"])


@relaxed
@given(body=st.dictionaries(st.sampled_from([row.field for row in rows(ResponsesSchema)]), values, max_size=5))
def test_any_fields_are_answered_or_refused(client, body):
    check(client, {"input": "x", **body})


@relaxed
@given(found=st.lists(items, max_size=5))
def test_any_items_are_read_or_refused(client, found):
    check(client, {"input": found})


@relaxed
@given(tools=tools, choice=st.one_of(scalars, values, st.sampled_from(["required", {"type": "function", "name": "f"}])))
def test_any_tools_are_taken_or_refused(client, tools, choice):
    check(client, {"input": "x", "tools": tools, "tool_choice": choice})
