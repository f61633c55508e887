"""The search in the manual, and the answers that it has to find."""

from __future__ import annotations

import pytest

from llamasrv.config import manual

SCREEN = 40  # lines

QUESTIONS = [
    ("limit a key to 10 requests a minute", "Limit a key to 10 requests a minute", "--requests-per-minute 10"),
    ("two models on one GPU", "Two models on one GPU", "serve --models-dir models --memory-limit"),
    ("why was my request slow", "Why was my request slow", "| `queue` |"),
    ("rotate keys without downtime", "Rotate keys without downtime", "SIGHUP"),
    ("who uses how much", "Who uses how much", "llamasrv usage"),
    ("three machines", "Three machines", "--store redis://"),
    ("log fields", "What the fields of a log line mean", "`prefill`"),
    ("upgrading", "Upgrade", "llamasrv check"),
    ("how do I upgrade to a new version", "Upgrade", "--drain-timeout"),
    ("backup", "Backup", ".backup"),
    ("what should I back up", "Backup", "keys.toml"),
    ("troubleshoot", "Troubleshooting by message", "Address already in use"),
    ("address already in use", "Troubleshooting by message", "--port"),
    ("claude code", "Agents and evaluations", "ANTHROPIC_BASE_URL"),
    ("lora adapter", "LoRA adapters", "--lora"),
    ("exit codes", "Signals and exit codes", "78"),
]


@pytest.mark.parametrize(("words", "title", "answer"), QUESTIONS, ids=[words for words, *_ in QUESTIONS])
def test_words_find_a_section_with_the_answer(words, title, answer):
    best = manual.search(words, manual.sections())[0]
    assert best.title == title and answer in best.text
    assert best.page != "howto" or len(best.text.splitlines()) <= SCREEN


def test_rare_words_count_more_than_common_ones():
    text = "# T\n## Contents\nserver\n## One\nthe server the model\n## Two\nthe server rotates\n### Three\nother\n"
    sections = manual.split("page", text)
    assert [section.title for section in sections] == ["One", "Two", "Three"]
    assert [section.title for section in manual.search("rotating server", sections)] == ["Two", "One"]


@pytest.mark.parametrize("words", ["", "the of", "xyzzy", "?!", "é" * 1000])
def test_words_that_nothing_has_find_nothing(words):
    assert manual.search(words, manual.sections()) == []


@pytest.mark.parametrize("page", [*manual.GUIDE, *manual.REFERENCE])
def test_the_headings_of_a_page_have_anchors_of_their_own(page):
    anchors = [section.anchor for section in manual.sections((page,))]
    assert len(set(anchors)) == len(anchors)
