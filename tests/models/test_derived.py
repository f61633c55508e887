"""Models made of others: what is kept of them, what they say before a conversation, files that clients bring."""

from __future__ import annotations

import hashlib

import pytest

from llamasrv.chat.template import ChatTemplate
from llamasrv.domain.request import ChatPrompt, Message
from llamasrv.errors import InvalidRequest, LlamasrvError
from llamasrv.models import derived
from llamasrv.models.derived import BlobWriter, DerivedModel

CHATML = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
PIRATE = DerivedModel(
    "Pirate:small",
    "base",
    "base.gguf",
    template=CHATML,
    system="Arr.",
    messages=(("user", "hi"), ("assistant", "ahoy")),
    parameters={"temperature": 0.5},
    stop=("X",),
    num_predict=5,
    num_ctx=64,
    license="MIT",
)


def shown(one, *messages):
    template = ChatTemplate(one.with_preamble(CHATML), "", "", ())
    return template.render(ChatPrompt(tuple(Message(role, text) for role, text in messages))).text


def test_what_is_written_is_read_again(tmp_path):
    derived.write(tmp_path, PIRATE)
    (found,) = derived.read(tmp_path)
    assert found.modified > 0 and found == DerivedModel(**{**vars(PIRATE), "modified": found.modified})
    assert found.file(tmp_path) == tmp_path / "base.gguf"
    assert DerivedModel("a", "b", "/elsewhere/c.gguf").file(tmp_path).is_absolute()


def test_a_name_is_taken_once_whatever_its_case(tmp_path):
    derived.write(tmp_path, PIRATE)
    derived.write(tmp_path, DerivedModel("pirate:SMALL", "other", "other.gguf"))
    assert [one.base for one in derived.read(tmp_path)] == ["other"]
    derived.delete(tmp_path, "PIRATE:small")
    assert derived.read(tmp_path) == []


def test_a_name_never_leaves_the_folder(tmp_path):
    derived.write(tmp_path / "in", DerivedModel("../../x:y", "b", "c.gguf"))
    assert [path.parent.name for path in tmp_path.rglob("*.json")] == [".made"]


def test_what_is_broken_is_left_out(tmp_path, caplog):
    derived.write(tmp_path, PIRATE)
    (tmp_path / ".made" / "bad.json").write_text('{"name": 3}')
    (tmp_path / ".made" / "worse.json").write_text("{")
    assert len(derived.read(tmp_path)) == 1 and caplog.text.count("skipping") == 2
    assert derived.read(tmp_path / "nowhere") == []


def test_too_many_are_refused(tmp_path):
    derived.write(tmp_path, PIRATE, max_models=1)
    derived.write(tmp_path, PIRATE, max_models=1)
    with pytest.raises(InvalidRequest):
        derived.write(tmp_path, DerivedModel("other", "b", "c.gguf"), max_models=1)


def test_too_much_is_refused(tmp_path):
    with pytest.raises(InvalidRequest):
        derived.write(tmp_path, PIRATE, max_bytes=100)


# What is said before a conversation


def test_a_system_prompt_and_an_exchange_come_before_each_conversation():
    assert shown(PIRATE, ("user", "Hello")) == "<system>Arr.<user>hi<assistant>ahoy<user>Hello<assistant>"


def test_a_conversation_with_a_system_prompt_keeps_its_own():
    text = shown(PIRATE, ("system", "Own."), ("user", "Hello"))
    assert text == "<system>Own.<user>hi<assistant>ahoy<user>Hello<assistant>"


def test_without_either_the_template_is_as_it_was():
    assert DerivedModel("a", "b", "c").with_preamble(CHATML) == CHATML


@pytest.mark.parametrize(
    "words", ['"quoted" \\ back', "{{ 7 * 7 }} {% raw %} {# no #}", "line\nü 🎈\u2028", "%} }}", "'"]
)
def test_words_of_all_kinds_stay_as_they_are(words):
    assert shown(DerivedModel("a", "b", "c", system=words), ("user", "Hi")) == f"<system>{words}<user>Hi<assistant>"


# Files that clients bring


def test_a_file_is_kept_if_its_digest_is_right(tmp_path):
    digest = "sha256:" + hashlib.sha256(b"GGUF...").hexdigest()
    writer = BlobWriter(tmp_path, digest, 7)
    writer.add(b"GGUF"), writer.add(b"...")
    writer.finish()
    writer.close()
    assert derived.blob(tmp_path, digest).read_bytes() == b"GGUF..."
    assert derived.blob(tmp_path, digest.replace(":", "-")) == derived.blob(tmp_path, digest)


def test_another_file_than_was_announced_is_thrown_away(tmp_path):
    writer = BlobWriter(tmp_path, "sha256:" + "0" * 64, None)
    writer.add(b"x")
    with pytest.raises(InvalidRequest):
        writer.finish()
    writer.close()
    assert list((tmp_path / ".blobs").iterdir()) == []


@pytest.mark.parametrize("digest", ["", "md5:" + "0" * 64, "sha256:0", "sha256:" + "g" * 64, "sha256:../" + "0" * 61])
def test_a_digest_that_is_none_is_refused(tmp_path, digest):
    with pytest.raises(InvalidRequest):
        derived.blob(tmp_path, digest)


def test_a_file_that_does_not_fit_on_the_disk_is_refused_at_once(tmp_path):
    with pytest.raises(LlamasrvError) as error:
        BlobWriter(tmp_path, "sha256:" + "0" * 64, 10**18)
    assert error.value.status == 507 and list((tmp_path / ".blobs").iterdir()) == []


def test_a_file_goes_with_the_last_model_that_is_made_of_it(tmp_path):
    place = derived.blob(tmp_path, "sha256:" + "0" * 64)
    place.parent.mkdir()
    place.write_bytes(b"GGUF")
    for name in ("one", "two"):
        derived.write(tmp_path, DerivedModel(name, "", f".blobs/{place.name}"))
    assert derived.users(tmp_path, (place,)) == ["one", "two"]
    derived.delete(tmp_path, "one")
    assert place.exists()
    derived.delete(tmp_path, "two")
    assert not place.exists()
