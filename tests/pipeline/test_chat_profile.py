"""What is found out once about a loaded model's template."""

import pytest
from recording_backend import RecordingBackend

from llamasrv.pipeline.chat_profile import ChatProfile

TURNS = (
    "{% for m in messages %}{% if m.reasoning_content %}<think>\n{{ m.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ m.content }}{% endfor %}"
)
WHEN_TOLD = "{% if enable_thinking is defined and enable_thinking %}<think>\n{% endif %}"
ALWAYS_OPEN = "<think>\n"
BY_ITSELF = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n\n{% endif %}"
REFUSES = "{% if enable_thinking is defined %}{{ raise_exception('no') }}{% endif %}"


@pytest.mark.parametrize(
    "prompt, is_expected", [(WHEN_TOLD, True), (ALWAYS_OPEN, False), (BY_ITSELF, False), (REFUSES, False), ("", False)]
)
def test_it_is_known_whether_a_model_thinks_only_on_request(prompt, is_expected):
    backend = RecordingBackend()
    profile = ChatProfile.of(TURNS + prompt, backend.info, backend.vocab)
    assert profile.format.reasoning is not None and profile.thinks_on_request is is_expected
