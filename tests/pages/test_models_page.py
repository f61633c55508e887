"""The page of models."""

import importlib.util
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
import tiny_models
from browsing import barriers

_spec = importlib.util.spec_from_file_location("hub", Path(__file__).parents[1] / "models" / "hub.py")
fake_hub = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(fake_hub)

MODEL = b"GGUF" + random.Random(1).randbytes(3 * 2**20)


def opened(visit, server, **options):
    page = visit(server.url + "/ui/models", **options)
    page.locator("body[data-ready]").wait_for()
    return page


@pytest.fixture
def two(serve, tmp_path):
    """A server with two found models, which may be managed."""
    for name in ("one", "two"):
        tiny_models.llama(tmp_path / f"{name}.gguf")
    return serve("--models-dir", tmp_path, "--no-check-models", "--models-manage")


def test_it_shows_what_each_model_is(two, visit):
    page = opened(visit, two)
    assert page.inner_text("#count") == "2 models"
    text = page.inner_text("[data-model='one']")
    assert "Not loaded" in text and not re.search("undefined|NaN|null", page.inner_text("main"))
    page.fill("#find", "TWO")
    assert page.inner_text("#count") == "1 model" and page.locator("[data-model='one']").count() == 0


def test_a_model_is_loaded_talked_to_and_unloaded(two, visit):
    page = opened(visit, two)
    page.get_by_role("button", name="Load one", exact=True).click()
    card = page.locator("[data-model='one']")
    card.get_by_text("Loaded", exact=True).wait_for()
    assert "context of" in card.inner_text() and "parameters" in card.inner_text()
    page.get_by_role("link", name="Chat one").click()
    page.locator("body[data-ready]").wait_for()
    assert page.input_value("#model") == "one" and page.url == two.url + "/"
    page.go_back()
    page.get_by_role("button", name="Unload one").click()
    page.locator("[data-model='one']").get_by_text("Not loaded").wait_for()


def test_its_speed_here_is_shown_once_it_has_answered(two, visit):
    page = opened(visit, two)
    card = page.locator("[data-model='one']")
    assert "not measured yet" in card.inner_text() and "parameters" in card.inner_text(), "what its file tells"
    page.get_by_role("button", name="Load one", exact=True).click()
    card.get_by_text("Loaded", exact=True).wait_for()
    body = {"model": "one", "messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8, "ignore_eos": True}
    assert page.request.post(two.url + "/v1/chat/completions", data=body).ok
    page.get_by_role("button", name="Unload one").click()
    card.get_by_text("Not loaded").wait_for()
    assert re.search(r"[\d.,]+ tokens/s here \(1 answer\)", card.inner_text())


def test_a_variant_has_a_name_and_options_of_its_own(two, visit, axe):
    page = opened(visit, two)
    page.get_by_role("button", name="Variant… one").click()
    assert barriers(page, axe) == []
    page.fill("#variant-name", "poet")
    page.fill("#variant-system", "You write poems.")
    page.fill("#variant-temperature", "0.25")
    page.fill("#variant-num_ctx", "256")
    page.get_by_role("button", name="Create").click()
    page.locator("[data-model='poet']").wait_for()
    shown = page.request.post(two.url + "/api/show", data={"model": "poet"}).json()
    assert "0.25" in shown["parameters"] and "256" in shown["parameters"] and shown["system"] == "You write poems."
    assert page.request.delete(two.url + "/models?model=one").status == 400, "the variant needs its file"
    page.clock.install()
    page.get_by_role("button", name="Delete poet").click()
    with page.expect_response(lambda reply: reply.request.method == "DELETE" and reply.ok and "poet" in reply.url):
        page.clock.fast_forward(11_000)


def test_a_deleted_model_comes_back_with_undo_and_is_gone_without(two, visit, tmp_path):
    page = opened(visit, two)
    page.get_by_role("button", name="Delete one").click()
    page.get_by_text("Deleted one.").wait_for()
    assert page.locator("[data-model='one']").count() == 0
    page.get_by_role("button", name="Undo").click()
    page.locator("[data-model='one']").wait_for()
    assert (tmp_path / "one.gguf").exists()
    page.clock.install()
    page.get_by_role("button", name="Delete one").click()
    with page.expect_response(lambda reply: reply.request.method == "DELETE"):
        page.clock.fast_forward(11_000)
    assert not (tmp_path / "one.gguf").exists()


def test_without_the_right_it_only_shows(serve, visit, tmp_path):
    keys = tmp_path / "keys.toml"
    made = subprocess.run(
        [sys.executable, "-m", "llamasrv", "key", "eve", "--file", keys, "--scope", "infer"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    page = visit(serve("--fake", "--models-manage", "--api-key-file", keys).url + "/ui/models")
    page.fill("#key-input", re.search(r"\S{20,}", made)[0])
    page.click("#key-dialog button.primary")
    page.locator("#no-manage:visible").wait_for()
    assert page.is_hidden("#pull") and page.locator("#models button").count() == 0


def test_a_model_is_pulled_and_its_progress_shown(serve, visit, tmp_path):
    with fake_hub.running() as hub:
        hub.files["o/r"] = {"m-Q8_0.gguf": MODEL}
        hub.hold_after = 2**20 + 5
        tiny_models.llama(tmp_path / "one.gguf")
        server = serve(
            "--models-dir",
            tmp_path,
            "--no-check-models",
            "--models-manage",
            environ={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")},
        )
        page = opened(visit, server)
        page.fill("#pull-name", "hf:o/r:Q8_0")
        page.press("#pull-name", "Enter")
        page.locator("#pulls", has_text=re.compile(r"MiB / 3 MiB")).wait_for()
        assert page.locator("#pulls progress").evaluate("bar => bar.position") > 0
        hub.go_on.set()
        page.locator("#pulls", has_text="Pulled").wait_for()


def test_a_model_is_searched_for_pulled_paused_and_resumed(serve, visit, axe, tmp_path):
    with fake_hub.running() as hub:
        hub.files["o/Tiny-GGUF"] = {"Tiny-Q8_0.gguf": MODEL, "Tiny-Q4_0.gguf": MODEL[: 2**20]}
        hub.hold_after = 2**20 + 5
        tiny_models.llama(tmp_path / "one.gguf")
        server = serve(
            "--models-dir",
            tmp_path,
            "--no-check-models",
            "--models-manage",
            environ={"HF_ENDPOINT": hub.url, "HF_HOME": str(tmp_path / "home")},
        )
        page = opened(visit, server)
        page.fill("#hub-words", "tiny")
        page.press("#hub-words", "Enter")
        page.locator("#hub summary", has_text="o/Tiny-GGUF").click()
        offer = page.locator("#hub details li", has_text="Q8_0")
        offer.locator(".fit").wait_for()
        assert "3 MiB" in offer.inner_text() and barriers(page, axe) == []
        offer.get_by_role("button").click()
        page.locator("#pulls", has_text=re.compile(r"MiB / 3 MiB")).wait_for()
        page.locator("#pulls").get_by_role("button", name="Pause").click()
        resume = page.locator("#pulls").get_by_role("button", name="Resume")
        resume.wait_for()
        assert "Paused" in page.inner_text("#pulls") and page.locator("#pulls .error").count() == 0
        hub.hold_after = None
        hub.go_on.set()
        resume.click()
        page.locator("#pulls", has_text="Pulled").wait_for()
        assert hub.ranges[-1][1] > 0, "it went on where it was paused"
        assert (tmp_path / "o" / "Tiny-GGUF" / "Tiny-Q8_0.gguf").read_bytes() == MODEL


def test_what_cannot_be_pulled_says_why(two, visit, mistakes):
    page = opened(visit, two)
    page.fill("#pull-name", "no such name!")
    page.press("#pull-name", "Enter")
    page.locator("#pulls .error", has_text="is not a repository").wait_for()
    assert "400" in mistakes.pop()
