"""Titles by the model: asked for behind everything else, and never over one that somebody gave."""

from browsing import answers, say


def test_the_model_names_a_conversation_once_unless_it_has_a_name(playground):
    page = playground()
    page.evaluate("localStorage['llamasrv:titles'] = 'yes'")
    page.reload()
    page.locator("body[data-ready]").wait_for()
    asked = []

    def name(route):
        body = route.request.post_data_json
        if body.get("service_tier") != "flex":
            return route.continue_()
        asked.append(body)
        message = {"role": "assistant", "content": '**"Fish in the harbour."**\nMore'}
        route.fulfill(json={"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    page.route("**/v1/chat/completions", name)
    say(page, "Which fish live in a harbour?")
    page.locator("#talk-list .title", has_text="Fish in the harbour").wait_for()
    assert page.inner_text("#talk-list .title") == "Fish in the harbour"
    assert [message["role"] for message in asked[0]["messages"]] == ["user", "assistant", "user"]
    say(page, "And seals?")
    answers(page, 2)
    assert len(asked) == 1
    page.reload()
    page.locator("#talk-list .title", has_text="Fish in the harbour").wait_for()
