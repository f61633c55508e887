"""Patterns for a model's tensor names, as llama.cpp and its files write them."""

from __future__ import annotations

EXPERTS = r"\.ffn_(up|down|gate|gate_up)_(ch|)exps"
DENSE = r"\.ffn_(up|down|gate)\."


def of_layer(layer: int, pattern: str) -> str:
    return rf"blk\.{layer}{pattern}"
