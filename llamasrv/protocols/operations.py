"""What each route of the API is for, the schema of its body, and an example of it.

For the OpenAPI document (`openapi.py`) and the page made from it. Knows no route's code.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from llamasrv.protocols.admin import KeyChangeSchema, KeySchema, RotationSchema
from llamasrv.protocols.anthropic.messages import MessagesSchema
from llamasrv.protocols.common.schema import WireSchema
from llamasrv.protocols.gemini.cached import CachedContentSchema, ExpirySchema
from llamasrv.protocols.gemini.decisions import GeminiDecisionsSchema
from llamasrv.protocols.gemini.embed import BatchEmbedSchema, EmbedContentSchema
from llamasrv.protocols.gemini.generate import GenerateContentSchema
from llamasrv.protocols.gemini.interactions import InteractionSchema
from llamasrv.protocols.llamacpp.completion import CompletionSchema, InfillSchema
from llamasrv.protocols.llamacpp.embedding import EmbeddingSchema
from llamasrv.protocols.llamacpp.lora import AdapterSchema
from llamasrv.protocols.llamacpp.models import ModelSchema
from llamasrv.protocols.llamacpp.streams import ControlSchema, LookupSchema
from llamasrv.protocols.llamacpp.tokenize import DetokenizeSchema, TokenizeSchema
from llamasrv.protocols.llamacpp.tools import ToolCallSchema
from llamasrv.protocols.ollama.chat import OllamaChatSchema
from llamasrv.protocols.ollama.embed import EmbedSchema as OllamaEmbedSchema
from llamasrv.protocols.ollama.embed import OllamaEmbeddingsSchema
from llamasrv.protocols.ollama.generate import GenerateSchema as OllamaGenerateSchema
from llamasrv.protocols.ollama.manage import CopySchema, CreateSchema, PullSchema
from llamasrv.protocols.ollama.models import NameSchema
from llamasrv.protocols.openai.batches import BatchSchema
from llamasrv.protocols.openai.chat import ChatSchema
from llamasrv.protocols.openai.classify import ClassifySchema
from llamasrv.protocols.openai.completions import CompletionsSchema
from llamasrv.protocols.openai.conversations import ConversationSchema, ItemsSchema, MetadataSchema
from llamasrv.protocols.openai.decisions import DecisionsSchema
from llamasrv.protocols.openai.embeddings import EmbeddingsSchema
from llamasrv.protocols.openai.rerank import RerankSchema
from llamasrv.protocols.openai.responses.schema import ResponsesSchema
from llamasrv.protocols.openai.score import ScoreSchema
from llamasrv.protocols.openai.speech import SpeechSchema
from llamasrv.protocols.openai.transcriptions import TranscriptionSchema
from llamasrv.protocols.sglang import SessionSchema
from llamasrv.protocols.typesafe.systemone import SystemOneSchema

Query = tuple[str, str]
"""The name of a parameter in the URL, and what it is for."""


class Operation(NamedTuple):
    """What a route does. `streams`: the content type of its stream, if it can stream."""

    summary: str
    schema: type[WireSchema] | None = None
    example: Mapping[str, Any] | list[Any] | None = None
    streams: str | None = None
    query: tuple[Query, ...] = ()
    answers: str = "application/json"
    status: int = 200
    form: str = ""  # name of the file's field, if the body is a form


EVENTS, LINES, TEXT = "text/event-stream", "application/x-ndjson", "text/plain"
BYTES, JSON_LINES = "application/octet-stream", "application/x-jsonl"
_PAGE = (("after", "an item's id"), ("limit", "most items"), ("order", "asc or desc"))
_HELLO = [{"role": "user", "content": "Hello"}]
_SAY_HELLO = [{"role": "user", "parts": [{"text": "Hello"}]}]
_MODEL = (("model", "a name or alias; absent: the model that is served"),)
_REVISION = (("revision", "the latest; absent when one is kept: it is new"),)
_CONVERSATION = (("conv_id", "what was sent as X-Conversation-Id"),)

OPERATIONS: dict[str, Operation] = {
    "POST /v1/chat/completions": Operation(
        "A chat, rendered by the model's own template.", ChatSchema, {"messages": _HELLO, "max_tokens": 64}, EVENTS
    ),
    "POST /v1/chat/completions/input_tokens": Operation(
        "The tokens that a chat's prompt has.", ChatSchema, {"messages": _HELLO}
    ),
    "POST /v1/chat/completions/control": Operation(
        "End the reasoning of a chat that is under way.", ControlSchema,
        {"id": "chatcmpl-0", "action": "reasoning_end"},
    ),
    "POST /v1/completions": Operation(
        "Raw text or tokens, continued.", CompletionsSchema, {"prompt": "Once upon a time", "max_tokens": 32}, EVENTS
    ),
    "POST /v1/responses": Operation(
        "A response, stored unless `store` is false.", ResponsesSchema, {"input": "Hello"}, EVENTS
    ),
    "GET /v1/realtime": Operation(
        "A conversation by voice over a WebSocket; 426 without its handshake.",
        query=(("model", "the model that answers"), ("intent", "`transcription`: what is said is only written down")),
        status=426,
    ),
    "GET /v1/responses": Operation("Responses over a WebSocket; 426 without its handshake.", status=426),
    "GET /v1/responses/<id>": Operation(
        "What is stored of a response; with `stream` its events.", streams=EVENTS,
        query=(("stream", "true: as events"), ("starting_after", "only the events after this number")),
    ),
    "DELETE /v1/responses/<id>": Operation("Forget a response."),
    "POST /v1/responses/<id>/cancel": Operation("End a response that runs in the background."),
    "GET /v1/responses/<id>/input_items": Operation(
        "What a response was made from, in pages.",
        query=_PAGE,
    ),
    "POST /v1/responses/input_tokens": Operation(
        "The tokens that a response's prompt has.", ResponsesSchema, {"input": "Hello"}
    ),
    "POST /v1/responses/compact": Operation(
        "A conversation as the user's messages and a summary of all the rest.", ResponsesSchema, {"input": "Hello"}
    ),
    "POST /v1/conversations": Operation("A new conversation.", ConversationSchema, {"items": _HELLO}),
    "GET /v1/conversations/<id>": Operation("A conversation without its items."),
    "POST /v1/conversations/<id>": Operation("Other metadata for it.", MetadataSchema),
    "DELETE /v1/conversations/<id>": Operation("Forget it."),
    "GET /v1/conversations/<id>/items": Operation(
        "Its items, in pages.",
        query=_PAGE,
    ),
    "POST /v1/conversations/<id>/items": Operation("Further items for it.", ItemsSchema),
    "GET /v1/conversations/<id>/items/<item>": Operation("One of its items."),
    "DELETE /v1/conversations/<id>/items/<item>": Operation("Take one out of it."),
    "POST /v1/files": Operation("Upload a file: a form with `file` and `purpose`."),
    "GET /v1/files": Operation(
        "Files that were uploaded, or written by batches.", query=(("purpose", "only those"), *_PAGE)
    ),
    "GET /v1/files/<id>": Operation("What is known of a file."),
    "DELETE /v1/files/<id>": Operation("Delete a file."),
    "GET /v1/files/<id>/content": Operation("Its content.", answers=BYTES),
    "POST /v1/batches": Operation(
        "A file of requests, to be answered while no client waits.", BatchSchema,
        {"input_file_id": "file-0", "endpoint": "/v1/chat/completions", "completion_window": "24h"},
    ),
    "GET /v1/batches": Operation("Batches, the latest first.", query=_PAGE[:2]),
    "GET /v1/batches/<id>": Operation("The progress of a batch."),
    "POST /v1/batches/<id>/cancel": Operation("No further requests of it."),
    "POST /v1/messages/batches": Operation(
        "Messages, to be answered while no client waits.", None,
        {"requests": [{"custom_id": "a", "params": {"model": "llama", "max_tokens": 64, "messages": _HELLO}}]},
    ),
    "GET /v1/messages/batches": Operation(
        "Batches of messages, the latest first.",
        query=(("after_id", "a batch's id"), ("before_id", "a batch's id"), ("limit", "most batches")),
    ),
    "GET /v1/messages/batches/<id>": Operation("The progress of a batch of messages."),
    "DELETE /v1/messages/batches/<id>": Operation("Forget one that has ended."),
    "GET /v1/messages/batches/<id>/results": Operation("A line for each of its requests.", answers=JSON_LINES),
    "POST /v1/messages/batches/<id>/cancel": Operation("No further requests of it."),
    "POST /v1/audio/transcriptions": Operation(
        "What is said in a recording.", TranscriptionSchema, streams=EVENTS, form="file"
    ),
    "POST /v1/audio/speech": Operation(
        "A text, spoken by a speech model.", SpeechSchema, {"input": "Hello", "response_format": "wav"}, EVENTS,
        answers="audio/*",
    ),
    "GET /v1/audio/voices": Operation(
        "The voices that a text may be spoken with.", query=(("model", "a speech model; absent: the first one"),)
    ),
    "POST /v1/audio/voices": Operation(
        "Keep a recording of a few seconds as a voice of this key's own, where the operator allows it.",
        example={"name": "mia", "audio_sample": "(a file)", "consent": "Mia agreed on 1 May."}, form="audio_sample",
    ),
    "DELETE /v1/audio/voices/<id>": Operation("Delete a voice that was uploaded with this key."),
    "GET /v1/audio/models": Operation("The models that speak."),
    "POST /v1/embeddings": Operation("Texts or tokens to vectors.", EmbeddingsSchema, {"input": "Hello world"}),
    "POST /v1/rerank": Operation(
        "Documents, ranked by how well they answer a query.", RerankSchema,
        {"query": "fruit", "documents": ["apple", "stone"]},
    ),
    "POST /v1/score": Operation(
        "The similarity of texts, in vLLM's form.", ScoreSchema, {"text_1": "fruit", "text_2": ["apple", "stone"]}
    ),
    "POST /v1/decisions": Operation(
        "Typed questions about one input, answered by probabilities. Google's clients send their own body here.",
        DecisionsSchema,
        {"model": "demo", "input": "Hello", "questions": [{"type": "predicate", "instructions": "A greeting?"}]},
    ),
    "POST /v1beta/decisions": Operation(
        "The same, for Google's clients.",
        GeminiDecisionsSchema,
        {"model": "demo", "input": "Hello", "questions": {"polite": {"type": "noul", "instructions": "A greeting?"}}},
    ),
    "POST /v1/systemone": Operation(
        "The same, for TypeSafe's clients.",
        SystemOneSchema,
        {"model": "demo", "state": "Hello", "questions": {"polite": {"type": "noul", "instructions": "A greeting?"}}},
    ),
    "POST /v1/classify": Operation("Classify texts, in vLLM's form.", ClassifySchema, {"input": "Hello"}),
    "GET /v1/models": Operation("The models, for OpenAI's and Anthropic's clients."),
    "GET /v1/models/<path:name>": Operation("One model, by name or alias."),
    "POST /models": Operation("Fetch a model. Off unless the operator allows it.", PullSchema, {"model": "org/name"}),
    "DELETE /models": Operation("Delete a model. Off unless the operator allows it.", query=(("model", "its name"),)),
    "POST /models/load": Operation("Load a model.", ModelSchema, {"model": "name"}),
    "POST /models/unload": Operation("Unload a model.", ModelSchema, {"model": "name"}),
    "GET /models/sse": Operation("What happens to the models, as events.", answers=EVENTS),
    "POST /v1/messages": Operation(
        "A chat in Anthropic's form.", MessagesSchema, {"model": "llama", "max_tokens": 64, "messages": _HELLO}, EVENTS
    ),
    "POST /v1/messages/count_tokens": Operation(
        "The tokens that a message's prompt has.", MessagesSchema, {"model": "llama", "messages": _HELLO}
    ),
    "POST /v1beta/models/<path:name>:generateContent": Operation(
        "A chat in Google's form.", GenerateContentSchema, {"contents": _SAY_HELLO}
    ),
    "POST /v1beta/models/<path:name>:streamGenerateContent": Operation(
        "The same as a stream: a JSON array, or with `alt=sse` events.", GenerateContentSchema,
        {"contents": _SAY_HELLO}, EVENTS, (("alt", "sse: as events"),),
    ),
    "POST /v1beta/models/<path:name>:countTokens": Operation(
        "The tokens that a prompt has.", GenerateContentSchema, {"contents": _SAY_HELLO}
    ),
    "POST /v1beta/models/<path:name>:embedContent": Operation(
        "One text to a vector, in Google's form.", EmbedContentSchema, {"content": _SAY_HELLO[0]}
    ),
    "POST /v1beta/models/<path:name>:batchEmbedContents": Operation(
        "Texts to vectors, in Google's form.", BatchEmbedSchema, {"requests": [{"content": _SAY_HELLO[0]}]}
    ),
    "POST /v1beta/cachedContents": Operation(
        "Keeps the beginning of conversations, in Google's form.", CachedContentSchema,
        {"model": "models/llama", "contents": _SAY_HELLO, "ttl": "300s"},
    ),
    "GET /v1beta/cachedContents": Operation(
        "What is kept.", query=(("pageSize", "most of them"), ("pageToken", "where to continue"))
    ),
    "GET /v1beta/cachedContents/<id>": Operation("One of them."),
    "PATCH /v1beta/cachedContents/<id>": Operation("Changes how long it is kept.", ExpirySchema, {"ttl": "300s"}),
    "DELETE /v1beta/cachedContents/<id>": Operation("Keeps it no longer."),
    "POST /v1beta/interactions": Operation(
        "A response in Google's form, stored unless `store` is false.", InteractionSchema,
        {"model": "llama", "input": "Hello"}, EVENTS,
    ),
    "GET /v1beta/interactions/<id>": Operation(
        "What is stored of it.",
        query=(
            ("include_input", "true: with the steps it was made from"), ("stream", "true: as events"),
            ("last_event_id", "events after this one"),
        ),
    ),
    "DELETE /v1beta/interactions/<id>": Operation("Forgets it."),
    "POST /v1beta/interactions/<id>/cancel": Operation("Ends one that runs in the background."),
    "GET /v1beta/models": Operation(
        "The models, for Google's clients.", query=(("pageSize", "most of them"), ("pageToken", "where to continue"))
    ),
    "GET /v1beta/models/<path:name>": Operation("One model, for Google's clients."),
    "POST /api/chat": Operation(
        "A chat in Ollama's form.", OllamaChatSchema, {"model": "llama", "messages": _HELLO, "stream": False}, LINES
    ),
    "POST /api/generate": Operation(
        "A prompt in Ollama's form.", OllamaGenerateSchema, {"model": "llama", "prompt": "Hi", "stream": False}, LINES
    ),
    "POST /api/embed": Operation("Texts to vectors.", OllamaEmbedSchema, {"model": "llama", "input": "Hello"}),
    "POST /api/embeddings": Operation(
        "One text to a vector.", OllamaEmbeddingsSchema, {"model": "llama", "prompt": "Hello"}
    ),
    "GET /api/tags": Operation("The models."),
    "GET /api/ps": Operation("The models that are loaded."),
    "GET /api/version": Operation("The version whose protocol is spoken."),
    "POST /api/show": Operation(
        "One model: its template, its parameters, what its file says.", NameSchema, {"model": "llama"}
    ),
    "POST /api/pull": Operation("Fetch a model.", PullSchema, {"model": "org/name"}, LINES),
    "POST /api/create": Operation(
        "Make a model from another one.", CreateSchema, {"model": "mine", "from": "llama"}, LINES
    ),
    "POST /api/copy": Operation("Give a model another name.", CopySchema, {"source": "llama", "destination": "mine"}),
    "DELETE /api/delete": Operation("Delete a model.", NameSchema, {"model": "mine"}),
    "POST /api/push": Operation("Not offered: there is no registry to push to.", status=501),
    "POST /api/blobs/<digest>": Operation("Take in a file for a model to be made from.", status=201),
    "POST /completion": Operation(
        "Raw text or tokens, continued, in llama.cpp's form.", CompletionSchema,
        {"prompt": "Once upon a time", "n_predict": 32}, EVENTS,
    ),
    "POST /infill": Operation(
        "Fill in what is missing between two texts.", InfillSchema,
        {"input_prefix": "def add(a, b):\n    ", "input_suffix": "\n", "n_predict": 16}, EVENTS,
    ),
    "POST /embedding": Operation(
        "Texts or tokens to vectors, in llama.cpp's form.", EmbeddingSchema, {"content": "Hello"}
    ),
    "POST /tokenize": Operation("Text to tokens.", TokenizeSchema, {"content": "Hello world"}),
    "POST /detokenize": Operation("Tokens to text.", DetokenizeSchema, {"tokens": [1, 2, 3]}),
    "GET /tokenizer_info": Operation("The special tokens and the chat template, in vLLM's shape.", query=_MODEL),
    "POST /apply-template": Operation("The prompt that a chat becomes.", ChatSchema, {"messages": _HELLO}),
    "GET /props": Operation("The model, its template and its default sampling.", query=_MODEL),
    "POST /props": Operation("Nothing to change, as in llama-server; 501 without --props."),
    "GET /slots": Operation(
        "What is being computed.", query=(*_MODEL, ("fail_on_no_slot", "1: 503 where no place is free"))
    ),
    "POST /slots/<int:number>": Operation(
        "Save a slot's state to a file, restore it, or erase it.", None, {"filename": "talk.bin"},
        query=(("action", "save, restore or erase"), *_MODEL),
    ),
    "GET /lora-adapters": Operation("The adapters that `lora` of a request may name.", query=_MODEL),
    "POST /lora-adapters": Operation(
        "Which adapters count where a request names none; those not in the list do not. An object with `path`, `name` "
        "and `scale` loads one more, from the folder of --lora-dir.", None,
        [{"id": 0, "scale": 0.5}], query=_MODEL,
    ),
    "POST /v1/load_lora_adapter": Operation(
        "Load an adapter from the folder of --lora-dir, in vLLM's form.", AdapterSchema,
        {"lora_name": "sql", "lora_path": "sql.gguf"},
    ),
    "POST /v1/unload_lora_adapter": Operation(
        "Not supported: adapters are unloaded with their model.", AdapterSchema, {"lora_name": "sql"}
    ),
    "POST /open_session": Operation("A name for a conversation, SGLang's.", SessionSchema, {"session_id": "s1"}),
    "POST /close_session": Operation(
        "Close a session: its prefix is no longer kept.", SessionSchema, {"session_id": "s1"}, answers=TEXT
    ),
    "GET /version": Operation("This server's version, in vLLM's form."),
    "GET /api/status": Operation("Whether models run elsewhere, in Ollama's form: they do not."),
    "GET /api/v0/models": Operation("The models, in LM Studio's form."),
    "GET /api/v0/models/<path:name>": Operation("One model, in LM Studio's form."),
    "GET /v1/stream": Operation(
        "A stream that was named with X-Conversation-Id, from any byte on.",
        query=(*_CONVERSATION, ("from", "the first byte; default 0")), answers=EVENTS,
    ),
    "DELETE /v1/stream": Operation("End a named stream and drop it.", query=_CONVERSATION, status=204),
    "POST /v1/streams/lookup": Operation(
        "Which of these streams are kept, and how many bytes each has.", LookupSchema, {"conversation_ids": ["talk"]}
    ),
    "POST /predict": Operation("Vertex AI's predictions: requests to other endpoints; only with --predict-route."),
    "GET /tools": Operation("The tools that run on this server; 403 where there are none."),
    "POST /tools": Operation(
        "Run a tool on this server.", ToolCallSchema,
        {"tool": "exec_shell_command", "params": {"command": "uname"}}, EVENTS,
    ),
    **dict.fromkeys(
        ("GET /cors-proxy", "POST /cors-proxy"),
        Operation("llama-server's; never offered here.", status=403),
    ),
    "GET /v1/usage": Operation(
        "Tokens by day, key and model: a key's own, or all with the scope `admin`.",
        query=(("since", "YYYY-MM-DD; default 30 days ago"), ("until", "YYYY-MM-DD"), ("key", "only this one's")),
    ),
    "GET /ui/history": Operation("The playground's conversations that are kept here, and the marks of deleted ones."),
    "DELETE /ui/history": Operation("Delete all of them."),
    "GET /ui/history/<id>": Operation("One of them.", query=_REVISION),
    "PUT /ui/history/<id>": Operation("Keep one; 409 if it has another revision.", query=_REVISION),
    "DELETE /ui/history/<id>": Operation("Delete one, and leave a mark for other browsers."),
    "GET /health": Operation("503 while the model loads, then 200."),
    "GET /livez": Operation("200 as long as the process answers."),
    "GET /readyz": Operation("200 if the next request would be taken, else 503 with the reason."),
    "GET /metrics": Operation("Figures for Prometheus.", answers=TEXT),
    "GET /metrics/load": Operation("Load of each model in vLLM's names, for routers.", answers=TEXT),
    **dict.fromkeys(
        ("GET /v1/loads", "GET /loads"),
        Operation("Load in SGLang's form, for routers.", query=(("model", "only this one's"),)),
    ),
    "GET /admin/state": Operation("Models, pulls and stores, and whether they work."),
    "GET /admin/requests": Operation("The open requests, and the last failed and slow ones, the latest first."),
    "POST /admin/requests/<id>/cancel": Operation("End an open request: its client gets what is written so far."),
    "GET /admin/configuration": Operation("The options in force, with secrets hidden.", answers="application/toml"),
    "POST /admin/reload": Operation("Read the configuration again, as SIGHUP does."),
    "GET /admin/keys": Operation("The API keys: what they may do, how much and until when, never a secret."),
    "POST /admin/keys": Operation(
        "A new API key, whose secret only this reply tells.", KeySchema, {"name": "ann", "scopes": ["infer"]}
    ),
    "POST /admin/keys/<name>": Operation("Change what a key may do.", KeyChangeSchema, {"concurrency": 4}),
    "POST /admin/keys/<name>/rotate": Operation(
        "A new secret for a key; the old one stays valid for a while.", RotationSchema, {"grace_seconds": 86400}
    ),
    "DELETE /admin/keys/<name>": Operation("Revoke a key."),
    "GET /admin/hub": Operation("Models on the Hugging Face Hub that have the words in `q`."),
    "GET /admin/hub/<path:repo>": Operation("The quantisations of one of them, and which fit this machine."),
    "GET /debug": Operation("Figures of the engines, and where every thread is."),
    "GET /openapi.json": Operation("This document."),
}  # fmt: skip
"""Operations by method and path; one of a route's paths is enough."""
