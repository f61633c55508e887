"""GET /slots: running sequences as llama.cpp shows its slots, and the replies for saving and restoring them.

A slot is a number that a sequence gets while it runs; what it computed is saved under that number afterwards.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import orjson

from llamasrv.protocols.llamacpp.props import params_body

MAX_BIASES_SHOWN = 100  # per slot: all slots are written on the hub, and a request may have 10,000 biases


def slots_body(running: Sequence[Mapping[str, Any]], *, total: int, context: int) -> bytes:
    """Running sequences have the number of their slot; free slots fill up to `total`."""
    slots = [_busy(sequence, context) for sequence in running]
    taken = {slot["id"] for slot in slots}
    free = (number for number in range(total + len(slots)) if number not in taken)
    while len(slots) < total:
        slots.append({"id": next(free), "n_ctx": context, "speculative": False, "is_processing": False})
    return orjson.dumps(sorted(slots, key=lambda slot: slot["id"]))


def _busy(sequence: Mapping[str, Any], context: int) -> dict[str, Any]:
    generated, most = sequence["num_generated"], sequence["max_tokens"]
    return {
        "id": -1 if sequence["slot"] is None else sequence["slot"],
        "n_ctx": context,
        "speculative": bool(sequence.get("num_drafted")),
        "is_processing": True,
        "id_task": sequence["id"],
        "n_prompt_tokens": sequence["num_prompt"],
        "n_prompt_tokens_processed": min(sequence["num_computed"], sequence["num_prompt"]),
        "n_prompt_tokens_cache": sequence["num_reused"],
        "params": params_body(sequence["params"], max_tokens=most, max_biases=MAX_BIASES_SHOWN),
        "next_token": [
            {
                "has_next_token": True,
                "n_remain": -1 if most is None else most - generated,
                "n_decoded": generated,
            }
        ],
    }


def saved_body(number: int, name: str, num_tokens: int, size: int, seconds: float) -> bytes:
    body = {"id_slot": number, "filename": name, "n_saved": num_tokens, "n_written": size}
    return orjson.dumps({**body, "timings": {"save_ms": seconds * 1000}})


def restored_body(number: int, name: str, num_tokens: int, size: int, seconds: float) -> bytes:
    body = {"id_slot": number, "filename": name, "n_restored": num_tokens, "n_read": size}
    return orjson.dumps({**body, "timings": {"restore_ms": seconds * 1000}})


def erased_body(number: int, num_tokens: int) -> bytes:
    return orjson.dumps({"id_slot": number, "n_erased": num_tokens})
