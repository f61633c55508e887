"""The playground listens and speaks, where the server has models that do."""

import pytest
from browsing import answers, say
from samples import wav


def replied(route, body):
    route.fulfill(json=body)


@pytest.fixture
def page(fake_server, visit):
    """On a server with a model that speaks and one that listens."""
    page = visit(fake_server.url)
    page.route("**/v1/audio/models", lambda route: replied(route, {"models": [{"id": "tts"}]}))
    page.route("**/v1/audio/voices*", lambda route: replied(route, {"voices": [{"id": "anna"}, {"id": "ben"}]}))
    page.route(
        "**/v1/models", lambda route: replied(route, {"data": [{"id": "fake", "meta": {"capabilities": ["audio"]}}]})
    )
    page.goto(fake_server.url)
    page.locator("body[data-ready]").wait_for()
    return page


def test_an_answer_is_read_aloud_in_pieces_and_stopped(page):
    spoken = []

    def speak(route):
        spoken.append(route.request.post_data_json)
        route.fulfill(content_type="audio/wav", body=wav(0.2 if len(spoken) < 3 else 20))

    page.route("**/v1/audio/speech", speak)
    page.evaluate("localStorage['llamasrv:voice'] = 'ben'")
    page.reload()
    page.locator("body.speaks").wait_for()
    page.locator("body[data-ready]").wait_for()
    say(page, "One **bold** word. " + "And a sentence that is about as long as others. " * 12)
    answers(page)
    button = page.locator(".turn.assistant").get_by_label("Read aloud")
    button.click()
    page.wait_for_function(
        "() => performance.getEntriesByType('resource').filter(e => e.name.endsWith('/speech')).length > 2"
    )
    assert button.get_attribute("aria-pressed") == "true"
    button.click()
    assert button.get_attribute("aria-pressed") == "false"
    assert spoken[0]["voice"] == "ben" and spoken[0]["model"] == "tts"
    assert spoken[0]["input"].startswith("You said: One bold word.") and len(spoken[0]["input"]) < 120
    assert all(len(one["input"]) < 400 for one in spoken)


def test_a_recording_becomes_the_message(page):
    sent = []

    def write_down(route):
        sent.append(route.request.post_data_buffer)
        route.fulfill(json={"text": " what I said "})

    page.route("**/v1/audio/transcriptions", write_down)
    page.fill("#prompt", "Before:")
    page.click("#microphone")
    page.get_by_text("Recording…").wait_for()
    assert page.get_attribute("#microphone", "aria-label") == "Stop recording"
    page.wait_for_timeout(300)  # of sound
    page.click("#microphone")
    page.wait_for_function("() => document.querySelector('#prompt').value === 'Before: what I said'")
    at = sent[0].index(b"RIFF")
    assert sent[0][at + 8 : at + 16] == b"WAVEfmt " and int.from_bytes(sent[0][at + 24 : at + 28], "little") == 16_000
    assert b'name="model"\r\n\r\nfake' in sent[0] and len(sent[0]) - at > 3_000


def test_without_such_models_there_are_no_buttons(playground):
    page = playground()
    page.route("**/v1/models", lambda route: replied(route, {"data": [{"id": "fake", "meta": {}}]}))
    page.reload()
    page.locator("body[data-ready]").wait_for()
    say(page, "hi")
    answers(page)
    assert page.is_hidden("#microphone") and page.locator(".speak:visible").count() == 0
