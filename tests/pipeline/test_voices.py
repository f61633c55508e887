"""Voices: files of a folder, the model's own, and the names that every client sends."""

from __future__ import annotations

import pytest

from llamasrv.errors import InvalidRequest
from llamasrv.pipeline.voices import DEFAULT, MAX_CLIP_BYTES, STANDARD, Voice, clips, names_of, voice_named


@pytest.fixture
def folder(tmp_path):
    for name in ("mia.wav", "bo.MP3", "notes.txt", ".hidden.wav", "empty.wav"):
        (tmp_path / name).write_bytes(b"" if name == "empty.wav" else b"sound")
    (tmp_path / "folder.wav").mkdir()
    with open(tmp_path / "large.wav", "wb") as file:
        file.truncate(MAX_CLIP_BYTES + 1)
    return tmp_path


def test_the_sounds_of_a_folder_are_its_voices(folder):
    found = clips(folder)
    assert list(found) == [".hidden", "bo", "mia"] and found["mia"].read() == b"sound"
    assert clips(folder / "nothing") == {}


def test_another_file_of_the_same_name_is_another_voice(folder):
    before = clips(folder)["mia"].key
    (folder / "mia.wav").write_bytes(b"another sound")
    assert clips(folder)["mia"].key != before


def test_a_clip_goes_before_the_models_own_and_those_before_the_usual_names(folder):
    known = clips(folder)
    assert voice_named("mia", known, ("mia",)) == Voice(known["mia"])
    assert voice_named("RYAN", known, ("Vivian", "Ryan")) == Voice(speaker="Ryan")
    assert voice_named("alloy", known, ("Vivian",)) == Voice(known[".hidden"], others=(known["bo"], known["mia"]))
    assert voice_named("alloy", {}, ("Vivian",)) == Voice(speaker="Vivian")
    assert voice_named(None, {}, ()) == voice_named("Nova", {}, ()) == voice_named("Kore", {}, ()) == Voice()


def test_the_default_voice_has_that_name(folder):
    (folder / f"{DEFAULT}.wav").write_bytes(b"sound")
    known = clips(folder)
    assert voice_named(None, known, ("Vivian",)).clip == voice_named("alloy", known, ()).clip == known[DEFAULT]


def test_an_unknown_voice_is_refused_with_those_that_there_are(folder):
    with pytest.raises(InvalidRequest, match="Unknown voice 'zoe'. This model has .hidden, bo, mia, Vivian;") as caught:
        voice_named("zoe", clips(folder), ("Vivian",))
    assert caught.value.param == "voice"


def test_every_name_is_listed_once(folder):
    (folder / "alloy.wav").write_bytes(b"sound")
    names = names_of(clips(folder), ("Vivian", "mia"))
    assert names[:5] == [".hidden", "alloy", "bo", "mia", "Vivian"] and len(names) == 5 + len(STANDARD) - 1
