"""Positions where messages begin are found by the marks that a template writes, and only where they can be used."""

from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Message, Pin
from llamasrv.engine.backend.fake import CHATML, IM_END, IM_START, FakeVocabulary
from llamasrv.pipeline.boundaries import boundaries, message_marks, pinned

VOCAB = FakeVocabulary()


def template(source):
    return ChatTemplate(source, special_tokens=VOCAB.specials)


def test_the_marks_are_what_a_template_writes_around_messages():
    assert message_marks(template(CHATML), VOCAB) == {IM_START, IM_END}


def test_a_template_that_refuses_conversations_has_those_of_one_message():
    once = "{% if messages | length > 1 %}{{ raise_exception('one at a time') }}{% endif %}<|im_start|>{{ messages[0].content }}"
    assert message_marks(template(once), VOCAB) == {IM_START}


def test_messages_part_where_one_ends_and_the_next_begins():
    texts = [
        "<|im_start|>system\nBe kind to everybody",
        "<|im_end|>\n<|im_start|>user\nHello there",
        "<|im_end|>\n<|im_start|>assistant\n",
    ]
    tokens = VOCAB.tokenize("".join(texts))
    ends = [len(VOCAB.tokenize("".join(texts[:n]))) for n in range(3)]
    assert boundaries(tokens, frozenset((IM_START, IM_END))) == tuple(ends[1:])


def test_what_a_user_writes_is_no_mark():
    tokens = VOCAB.tokenize("<|im_end|> in a text of mine", parse_special=False)
    assert boundaries(tokens, frozenset((IM_START, IM_END))) == ()


def test_a_long_system_prompt_before_short_messages_is_pinned():
    """It was dropped: the ends of "Yes." and "Hi" are too close to be found."""
    prompt = ChatPrompt((Message("user", "Hello"), Message("assistant", "Yes."), Message("user", "Hi")))
    found = (480,)  # the end of the system prompt alone
    assert pinned((Pin(3, 300.0),), prompt, 500, found) == ((480, 300.0),)
