"""`llamasrv bench URL`: the service that clients get from a running server of any make, under a load profile.

As `vllm bench serve`: conversations are sent at a given concurrency, or at a given rate of arrivals up to it, and their
streams are timed. Needs POST /v1/chat/completions with streaming.
"""

from __future__ import annotations

import http.client
import json
import random
import statistics
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from llamasrv.commands import server
from llamasrv.commands.load_profiles import PROFILES, LoadConversation, Profile, conversations, random_text
from llamasrv.config import Settings
from llamasrv.errors import ConfigError

WARM_UP_WORDS = 64
PATIENCE = 600.0  # seconds without a byte from the server
SHARES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}
ENGLISH = {"ttft": "first token, ms", "itl": "between chunks, ms", "tpot": "per token, ms", "e2e": "whole answer, ms"}


@dataclass(slots=True)
class TimedRequest:
    """One request: when it was sent, when each chunk with text arrived, and what the server counted."""

    sent: float = field(default_factory=time.perf_counter)
    arrivals: list[float] = field(default_factory=list)
    text: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    error: str | None = None

    def take(self, event: dict[str, Any]) -> None:
        """One event of the stream."""
        if "error" in event:
            self.error = str(event["error"])[:200]
        usage = event.get("usage")
        if usage:
            self.prompt_tokens = usage.get("prompt_tokens") or 0
            self.completion_tokens = usage.get("completion_tokens") or 0
            self.cached_tokens = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
        for choice in event.get("choices") or ():
            delta = choice.get("delta") or {}
            content = delta.get("content") or ""
            if content or delta.get("reasoning_content") or delta.get("reasoning") or delta.get("tool_calls"):
                self.arrivals.append(time.perf_counter())
                self.text += content

    def ended(self) -> None:
        """The stream is over. A server without `stream_options` does not count: then each chunk is a token."""
        if self.error is None and not self.arrivals:
            self.error = "the stream ended without a token"
        self.completion_tokens = self.completion_tokens or len(self.arrivals)


class BenchTarget:
    """The server under test, and the fields it takes."""

    def __init__(self, url: str, key: str | None, model: str | None, tokens: int | None) -> None:
        """Raises ConfigError if there is no such server."""
        self.url = url
        self._headers = {"Content-Type": "application/json"} | server.authorization(key)
        self._path = server.base_path(url) + "/v1/chat/completions"
        self.model, self._context = self._model(model, key)
        self._tokens = tokens
        self._fields: dict[str, Any] = {"ignore_eos": True}  # answers of one length; not all servers have it
        self._tokens_per_word = 1.0

    def warm_up(self) -> None:
        """Send one small request, without the fields that the server refuses, and see how many tokens a word has.
        Raises ConfigError if it fails."""
        hello = [{"role": "user", "content": random_text(random.Random(), WARM_UP_WORDS)}]
        request = self.send(hello, 4)
        if request.error:
            self._fields = {}
            request = self.send(hello, 4)
        if request.error:
            raise ConfigError(f"{self.url}: {request.error}")
        self._tokens_per_word = max(1.0, request.prompt_tokens / WARM_UP_WORDS)

    def converse(self, conversation: LoadConversation, profile: Profile) -> list[TimedRequest]:
        """Send a conversation, turn after turn; a failed turn ends it."""
        messages = [{"role": "system", "content": conversation.system}]
        requests = []
        for message in conversation.messages:
            messages.append({"role": "user", "content": message})
            request = self.send(messages, self._tokens or profile.answer)
            requests.append(request)
            if request.error:
                break
            messages.append({"role": "assistant", "content": request.text or "-"})
        return requests

    def send(self, messages: Sequence[dict[str, str]], tokens: int) -> TimedRequest:
        """Send one request and read its stream."""
        body = {
            "model": self.model,
            "messages": messages,
            "max_tokens": tokens,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        data = json.dumps(body | self._fields)
        request = TimedRequest()
        try:
            with closing(server.connect(self.url, PATIENCE)) as connection:
                connection.request("POST", self._path, data, self._headers)
                reply = connection.getresponse()
                if reply.status != 200:
                    request.error = f"status {reply.status}: {reply.read(500).decode('utf-8', 'replace')}"
                    return request
                for line in reply:
                    if line.startswith(b"data:") and line[5:].strip() != b"[DONE]":
                        request.take(json.loads(line[5:]))
        except (OSError, http.client.HTTPException, ValueError) as error:
            request.error = getattr(error, "strerror", None) or str(error) or type(error).__name__
        request.ended()
        return request

    def check_context(self, name: str) -> None:
        """Raises ConfigError if the prompts of this profile are longer than the context that the server tells, by what
        is known of its tokenizer."""
        longest = PROFILES[name].longest(self._tokens_per_word)
        if 0 < self._context < longest:
            raise ConfigError(
                f"{self.url}: profile {name} needs a context of about {longest} tokens; "
                f"{self.model} has {self._context}"
            )

    def _model(self, name: str | None, key: str | None) -> tuple[str, int]:
        """The name of the model, by default the first, and its context; 0 if the server does not tell it."""
        try:
            status, body = server.ask_url(self.url, "GET", "/v1/models", key=key)
        except ConfigError:
            if name is None:
                raise
            return name, 0  # not all servers list their models
        entries = body.get("data")
        listed = [one for one in entries if isinstance(one, dict)] if isinstance(entries, list) else []
        if status == 401:
            raise ConfigError(f"{self.url}: the server {'refuses this key' if key else 'wants a key: --api-key KEY'}")
        if name is None and (status != 200 or not listed):
            raise ConfigError(f"{self.url}: /v1/models has status {status} and names no model; give one with --name")
        name = name or str(listed[0].get("id"))
        context = next((one.get("max_model_len") for one in listed if one.get("id") == name), None)
        return name, context if isinstance(context, int) else 0


def run(
    settings: Settings,
    url: str,
    model: str | None,
    profile: str,
    levels: Sequence[int],
    *,
    requests: int | None,
    rate: float | None,
    tokens: int | None,
    seed: int | None,
    as_json: bool,
) -> int:
    """Measure at each concurrency and print the result. `rate`: conversations that begin in a second, None: as soon as
    one ends. `seed`: of the words; None: fresh ones, which no cache has seen."""
    keys = settings.api_keys()
    target = BenchTarget(url, keys[0] if keys else None, model, tokens)
    target.check_context(profile)
    target.warm_up()
    target.check_context(profile)
    rng = random.Random(seed)
    console = Console(stderr=as_json)
    rows = []
    with console.status("") as status:
        for level in levels:
            count = requests or usual_requests(PROFILES[profile], level)
            status.update(f"{profile}: {count} requests, {level} at once")
            rows.append(measure(target, PROFILES[profile], level, count, rate, rng.randrange(2**32)))
    if as_json:
        print(json.dumps({"url": url, "model": target.model, "profile": profile, "levels": rows}, indent=2))
    else:
        console.print(table(target, profile, rows))
    errors = [row["first_error"] for row in rows if row["first_error"]]
    if errors and not as_json:
        console.print(f"first error: {errors[0]}", markup=False)
    return 1 if errors else 0


def usual_requests(profile: Profile, level: int) -> int:
    """The default number of requests: at least two conversations per place."""
    return max(16, 4 * level, 2 * level * profile.turns)


def measure(
    target: BenchTarget, profile: Profile, level: int, count: int, rate: float | None, seed: int
) -> dict[str, Any]:
    """The figures of one run."""
    pace = random.Random(seed)
    begin = time.perf_counter()
    due = begin
    with ThreadPoolExecutor(level) as pool:
        running = []
        for conversation in conversations(profile, count, seed):
            if rate is not None:
                due += pace.expovariate(rate)
                time.sleep(max(0.0, due - time.perf_counter()))
            running.append(pool.submit(target.converse, conversation, profile))
        requests = [request for conversation in running for request in conversation.result()]
    return figures(requests, level, time.perf_counter() - begin)


def figures(requests: Iterable[TimedRequest], level: int, seconds: float) -> dict[str, Any]:
    """Rates over the run, and percentiles in milliseconds over the requests that succeeded."""
    requests = list(requests)
    good = [request for request in requests if request.error is None]
    errors = [request.error for request in requests if request.error is not None]
    prompt, completion = (sum(getattr(r, f"{name}_tokens") for r in good) for name in ("prompt", "completion"))
    times = {
        "ttft": [r.arrivals[0] - r.sent for r in good],
        "itl": [after - before for r in good for before, after in zip(r.arrivals, r.arrivals[1:])],
        "tpot": [(r.arrivals[-1] - r.arrivals[0]) / (r.completion_tokens - 1) for r in good if r.completion_tokens > 1],
        "e2e": [r.arrivals[-1] - r.sent for r in good],
    }
    return {
        "concurrency": level,
        "requests": len(good),
        "failed": len(errors),
        "first_error": errors[0] if errors else None,
        "seconds": seconds,
        "requests_per_second": len(good) / seconds,
        "output_tokens_per_second": completion / seconds,
        "total_tokens_per_second": (prompt + completion) / seconds,
        "prompt_tokens": prompt,
        "cached_tokens": sum(r.cached_tokens for r in good),
        "output_tokens": completion,
        **{f"{name}_ms": percentiles(values) for name, values in times.items()},
    }


def percentiles(seconds: Sequence[float]) -> dict[str, float] | None:
    """Mean, percentiles and maximum in milliseconds; None without values."""
    if not seconds:
        return None
    ordered = sorted(seconds)
    shares = {name: ordered[min(len(ordered) - 1, int(share * len(ordered)))] for name, share in SHARES.items()}
    values = {"mean": statistics.fmean(ordered), **shares, "max": ordered[-1]}
    return {name: round(1000 * value, 3) for name, value in values.items()}


def table(target: BenchTarget, profile: str, rows: Sequence[dict[str, Any]]) -> Table:
    shown = Table("", title=f"{target.model}: {profile}", caption=PROFILES[profile].about)
    for row in rows:
        shown.add_column(f"{row['concurrency']} at once", justify="right")
    shown.add_row("requests, failed", *(f"{row['requests']}, {row['failed']}" for row in rows))
    for name, title in (
        ("requests_per_second", "requests/s"),
        ("output_tokens_per_second", "output tokens/s"),
        ("total_tokens_per_second", "all tokens/s"),
    ):
        shown.add_row(title, *(f"{row[name]:,.1f}" for row in rows))
    cached = (row["cached_tokens"] / max(1, row["prompt_tokens"]) for row in rows)
    shown.add_row("prompt from cache", *(f"{share:.0%}" for share in cached), end_section=True)
    for name, title in ENGLISH.items():
        for share in ("mean", *SHARES, "max"):
            cells = [f"{row[f'{name}_ms'][share]:,.1f}" if row[f"{name}_ms"] else "-" for row in rows]
            shown.add_row(f"{title}: {share}", *cells, end_section=share == "max")
    return shown
