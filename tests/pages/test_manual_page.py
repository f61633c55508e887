"""The manual in the browser."""


def test_a_question_is_typed_and_answered_by_keyboard_alone(fake_server, visit):
    page = visit(f"{fake_server.url}/ui/docs")
    page.focus("#find")
    page.keyboard.type("why was my request slow")
    page.keyboard.press("Enter")
    page.wait_for_url("**/ui/docs?q=*")
    assert "slow" in page.inner_text("main :is(h2, h3)").lower()


ANSWERS = [
    ("limit a key to 10 requests a minute", "--requests-per-minute 10"),
    ("throttle a user", "--requests-per-minute 10"),
    ("two models on one GPU", "--memory-limit 20GiB"),
    ("why was my request slow", "prefill"),
    ("rotate keys without downtime", "delete the table"),
    ("api token expire", "expires ends a key"),
    ("who uses how much", "usage --days 7"),
    ("three machines", "--store redis://"),
    ("move to a newer version", "CHANGES.md"),
    ("out of memory", "--cache-type-k"),
    ("no GPU found", "--list-devices"),
    ("https", "--ssl-cert-file"),
    ("autostart", "systemctl enable --now"),
    ("behind a proxy", "server_name"),
]


def test_each_question_is_answered_on_the_first_screen(fake_server, visit):
    page = visit(f"{fake_server.url}/ui/docs")
    for words, answer in ANSWERS:
        page.fill("#find", words)
        page.press("#find", "Enter")
        page.wait_for_url("**/ui/docs?q=" + words.replace(" ", "+"))
        place = page.locator("main :is(p, pre, td)").filter(has_text=answer).first.bounding_box()
        assert place is not None and place["y"] + place["height"] < page.viewport_size["height"], words
