"""Whatever a client puts where a text is meant, it is answered or refused: never a mistake of ours.

In a body of each endpoint, each text and each object or array is replaced by values of every other type.
"""

from __future__ import annotations

import copy

import pytest
from serving import RunningService

from llamasrv.web.service import WebOptions

SCHEMA = {"type": "object", "properties": {"a": {"type": "string", "enum": ["x"]}}, "required": ["a"]}
FUNCTION = {"name": "f", "description": "d", "parameters": SCHEMA}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a":"x"}'}}
CHAT = {
    "model": "fake",
    "max_tokens": 1,
    "n": 1,
    "stop": ["s"],
    "user": "u",
    "metadata": {"k": "v"},
    "messages": [
        {"role": "system", "content": "s", "name": "n"},
        {"role": "user", "content": [{"type": "text", "text": "t"}]},
        {"role": "assistant", "content": "a", "tool_calls": [CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "r"},
        {"role": "user", "content": "q"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
    "tool_choice": {"type": "function", "function": {"name": "f"}},
    "logit_bias": {"5": 1},
    "service_tier": "auto",
    "reasoning_effort": "low",
    "verbosity": "low",
    "modalities": ["text"],
    "stream_options": {"include_usage": True},
    "prediction": {"type": "content", "content": "x"},
    "chat_template_kwargs": {"a": "b"},
    "prompt_cache_key": "k",
    "safety_identifier": "s",
}
FORM = {
    "model": "fake",
    "max_tokens": 1,
    "messages": [{"role": "user", "content": "q"}],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": SCHEMA}},
}
MESSAGES = {
    "model": "fake",
    "max_tokens": 1,
    "system": [{"type": "text", "text": "s", "cache_control": {"type": "ephemeral", "ttl": "5m"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": "t", "cache_control": {"type": "ephemeral"}}]},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "h", "signature": "s"},
                {"type": "text", "text": "a"},
                {"type": "tool_use", "id": "t1", "name": "f", "input": {"a": "x"}},
            ],
        },
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "t1", "content": [{"type": "text", "text": "r"}]}],
        },
        {"role": "user", "content": "q"},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA, "type": "custom"}],
    "metadata": {"user_id": "u"},
    "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "disabled"},
    "stop_sequences": ["s"],
    "service_tier": "auto",
    "output_config": {"effort": "low"},
    "container": "c",
    "speed": "fast",
}
ITEMS = [
    {"type": "message", "role": "developer", "content": [{"type": "input_text", "text": "t"}]},
    {
        "type": "message",
        "role": "assistant",
        "id": "msg_1",
        "status": "completed",
        "content": [{"type": "output_text", "text": "a", "annotations": [], "logprobs": []}],
    },
    {
        "type": "reasoning",
        "id": "rs_1",
        "summary": [{"type": "summary_text", "text": "s"}],
        "content": [{"type": "reasoning_text", "text": "h"}],
    },
    {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "id": "fc_1", "status": "completed"},
    {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r"}]},
    {"role": "user", "content": "q"},
]
RESPONSES = {
    "model": "fake",
    "max_output_tokens": 16,
    "store": False,
    "instructions": "i",
    "input": ITEMS,
    "tools": [{"type": "function", **FUNCTION, "strict": True}],
    "tool_choice": {"type": "function", "name": "f"},
    "reasoning": {"effort": "low", "summary": "auto"},
    "truncation": "auto",
    "include": ["reasoning.encrypted_content"],
    "text": {"format": {"type": "json_schema", "name": "n", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
    "metadata": {"k": "v"},
    "service_tier": "auto",
    "user": "u",
    "prompt": {"id": "p"},
}
GEMINI = {
    "systemInstruction": {"parts": [{"text": "s"}], "role": "user"},
    "contents": [
        {"role": "user", "parts": [{"text": "t"}]},
        {
            "role": "model",
            "parts": [{"functionCall": {"name": "f", "args": {"a": "x"}, "id": "1"}, "thoughtSignature": "c2ln"}],
        },
        {"role": "user", "parts": [{"functionResponse": {"name": "f", "response": {"result": "r"}, "id": "1"}}]},
        {"parts": [{"text": "q"}]},
    ],
    "tools": [
        {
            "functionDeclarations": [
                {
                    "name": "f",
                    "description": "d",
                    "parameters": {"type": "OBJECT", "properties": {"a": {"type": "STRING"}}},
                }
            ]
        }
    ],
    "toolConfig": {"functionCallingConfig": {"mode": "ANY", "allowedFunctionNames": ["f"]}},
    "safetySettings": [{"category": "HARM_CATEGORY_HARASSMENT", "threshold": "BLOCK_NONE"}],
    "generationConfig": {
        "maxOutputTokens": 1,
        "stopSequences": ["s"],
        "thinkingConfig": {"thinkingLevel": "low"},
        "responseMimeType": "text/plain",
        "responseModalities": ["TEXT"],
    },
}
OLLAMA = {
    "model": "fake",
    "stream": False,
    "keep_alive": "5m",
    "options": {"num_predict": 1, "stop": ["s"]},
    "messages": [
        {"role": "system", "content": "s"},
        {"role": "user", "content": "t"},
        {
            "role": "assistant",
            "content": "a",
            "thinking": "h",
            "tool_calls": [{"function": {"name": "f", "arguments": {"a": "x"}}}],
        },
        {"role": "tool", "content": "r", "tool_name": "f"},
        {"role": "user", "content": "q"},
    ],
    "tools": [{"type": "function", "function": FUNCTION}],
}
NATIVE = {
    "prompt": "x",
    "n_predict": 1,
    "stop": ["s"],
    "samplers": ["top_k"],
    "logit_bias": [["a", 1.0]],
    "model": "fake",
    "dry_sequence_breakers": ["x"],
    "response_fields": ["content"],
    "lora": [{"id": 0, "scale": 1.0}],
}
BODIES = {
    "/v1/chat/completions": CHAT, "/v1/chat/completions ": FORM, "/v1/chat/completions/input_tokens": CHAT,
    "/chat/completions": {**CHAT, "reasoning_format": "auto", "grammar": 'root ::= "a"'}, "/apply-template": CHAT,
    "/v1/messages": MESSAGES, "/v1/messages/count_tokens": MESSAGES,
    "/v1/messages/batches": {"requests": [{"custom_id": "c", "params": MESSAGES}]},
    "/v1/responses": RESPONSES, "/v1/responses/input_tokens": RESPONSES, "/v1/responses/compact": {"model": "fake", "input": ITEMS},
    "/v1/conversations": {"items": ITEMS, "metadata": {"k": "v"}},
    "/v1beta/models/fake:generateContent": GEMINI,
    "/v1beta/models/fake:countTokens": {"generateContentRequest": {"model": "models/fake", **GEMINI}},
    "/v1beta/models/fake:embedContent": {"content": {"parts": [{"text": "x"}], "role": "user"}, "taskType": "SEMANTIC_SIMILARITY", "title": "t"},
    "/v1beta/models/fake:batchEmbedContents": {"requests": [{"model": "models/fake", "content": {"parts": [{"text": "x"}]}}]},
    "/api/chat": OLLAMA, "/api/chat ": {**OLLAMA, "tools": None, "format": SCHEMA, "think": "low"},
    "/api/generate": {"model": "fake", "prompt": "x", "system": "s", "template": "t", "suffix": "", "stream": False, "format": "json",
                      "options": {"num_predict": 1}, "keep_alive": "5m", "raw": False},
    "/api/embed": {"model": "fake", "input": ["x"], "options": {"a": "b"}, "keep_alive": "5m"}, "/api/embeddings": {"model": "fake", "prompt": "x"},
    "/api/show": {"model": "fake"}, "/v1/completions": {"model": "fake", "prompt": ["x"], "max_tokens": 1, "suffix": "s", "stop": "s",
                                                        "stream_options": {"include_usage": True}, "user": "u"},
    "/completion": NATIVE, "/infill": {"input_prefix": "a", "input_suffix": "b", "prompt": "c", "n_predict": 1,
                                       "input_extra": [{"filename": "f", "text": "t"}]},
    "/tokenize": {"content": ["x", 1], "model": "fake"}, "/detokenize": {"tokens": [1], "model": "fake"},
    "/v1/embeddings": {"model": "fake", "input": ["x"], "encoding_format": "float", "user": "u"},
    "/embedding": {"content": ["x"]}, "/v1/rerank": {"model": "fake", "query": "q", "documents": ["x", {"text": "y"}]},
    "/v1/score": {"text_1": "a", "text_2": ["b"]}, "/v1/classify": {"input": ["a"]},
    "/v1/batches": {"input_file_id": "file-1", "endpoint": "/v1/chat/completions", "completion_window": "24h", "metadata": {"k": "v"}},
    "/v1/chat/completions/control": {"id": "x", "action": "stop"}, "/v1/streams/lookup": {"ids": ["x"], "names": ["x"]},
    "/tools": {"tool": "t", "params": {"a": "b"}}, "/models/load": {"model": "none"}, "/models/unload": {"model": "none"},
    "/lora-adapters": [{"id": 0, "scale": 1.0}], "/v1/load_lora_adapter": {"lora_name": "n", "lora_path": "none"},
    "/v1/unload_lora_adapter": {"lora_name": "n"}, "/props": {"a": "b"}, "/api/pull": {"model": "no/../ne"}, "/api/delete": {"model": "none"},
    "/api/copy": {"source": "none", "destination": "other"}, "/api/create": {"model": "new", "from": "none", "template": "t",
                                                                           "parameters": {"stop": "s"}, "messages": [{"role": "user", "content": "x"}]},
    "/v1beta/cachedContents": {"model": "fake", "contents": [{"role": "user", "parts": [{"text": "x"}]}], "ttl": "5s",
                               "systemInstruction": "s", "displayName": "n"},
    "/open_session": {"session_id": "s", "capacity_of_str_len": 5}, "/close_session": {"session_id": "s"},
    "/slots/0?action=save": {"filename": "x"}, "/predict": {"instances": [{"@requestFormat": "chatCompletions", **FORM}]},
}  # fmt: skip
OTHERS = (None, 7, "\x00", [], {"type": []})
REFUSED = (501, 503, 529)  # not here, or not now: so many batches are open


def places(value, path=()):
    """The paths of everything in it that is no number."""
    if path and not isinstance(value, int | float):
        yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in inner:
        yield from places(below, (*path, key))


def changed(body, path, other):
    body = copy.deepcopy(body)
    at = body
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = other
    return body


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    service = RunningService(
        web=WebOptions(files_folder=folder, files_bytes=1 << 20, predict=True, manage=True, props=True),
        model={"max_tokens": 4},  # for bodies that say nothing of it
    )
    yield service
    service.close()


@pytest.mark.parametrize("path, body", BODIES.items(), ids=BODIES)
def test_another_type_in_any_place_is_no_mistake_of_ours(service, path, body):
    """A list or an object for the `role` of a message was a 500, since nobody asked whether it was a text."""
    wrong = []
    for where in places(body):
        for other in OTHERS:
            response = service.client.post(
                path.strip(), json=changed(body, where, other), headers={"anthropic-version": "2023-06-01"}
            )
            if response.status_code >= 500 and response.status_code not in REFUSED:
                wrong.append((".".join(map(str, where)), other, response.get_json()))
            response.close()
    assert not wrong
