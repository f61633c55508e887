"""What a model sees and hears with: named, found beside it, or switched off; and who is told."""

from __future__ import annotations

import shutil

import pytest
from model import tiny_projectors, tiny_speech
from options import settings_with

from llamasrv import config
from llamasrv.commands import check
from llamasrv.config import paths
from llamasrv.domain.speech import LANE_CELLS, MAX_LANES
from llamasrv.errors import ConfigError
from llamasrv.models import gguf, memory
from llamasrv.models.details import with_projector
from llamasrv.startup import model_list
from llamasrv.startup import service as startup_service


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A text model with a projector for images beside it, and one for sounds elsewhere."""
    folder = tmp_path_factory.mktemp("files")
    (folder / "cat").mkdir()
    tiny_projectors.text_model(folder / "cat" / "Cat-1B-Q8_0.gguf", "llava")
    tiny_projectors.projector(folder / "cat" / "mmproj-Cat-1B-f16.gguf", "llava")
    tiny_projectors.projector(folder / "ears.gguf", "ultravox")
    return folder


@pytest.fixture(autouse=True)
def nothing_pulled(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "models_dir", lambda: tmp_path / "pulled")
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")


def only(**given):
    (model,) = model_list.models(settings_with(**given))
    return model, model.load_plan.options


def test_the_one_beside_a_model_is_taken(files):
    beside = files / "cat" / "mmproj-Cat-1B-f16.gguf"
    for given in (
        {"model_path": files / "cat" / "Cat-1B-Q8_0.gguf"},
        {"models_dir": files / "cat"},
        {"models_dir": files},
    ):
        model, options = only(**given)
        assert options.mmproj == beside == model.details.projector and options.mmproj_digest.startswith("sha256:")
        assert "vision" in model.details.capabilities and "audio" not in model.details.capabilities


def test_one_of_another_model_is_not(files, tmp_path):
    shutil.copy(files / "cat" / "Cat-1B-Q8_0.gguf", tmp_path / "Dog-1B-Q8_0.gguf")
    shutil.copy(files / "cat" / "mmproj-Cat-1B-f16.gguf", tmp_path)
    model, options = only(model_path=tmp_path / "Dog-1B-Q8_0.gguf")
    assert options.mmproj is None and model.details.capabilities == ("completion",)


def test_a_named_one_goes_before_it(files):
    model, options = only(model_path=files / "cat" / "Cat-1B-Q8_0.gguf", model_mmproj=files / "ears.gguf")
    assert options.mmproj == files / "ears.gguf" and model.details.capabilities == ("completion", "audio")


def test_it_may_be_switched_off(files):
    for given in ({"model_path": files / "cat" / "Cat-1B-Q8_0.gguf"}, {"models_dir": files}):
        model, options = only(model_mmproj_auto=False, **given)
        assert options.mmproj is None and model.details.projector is None and "vision" not in model.details.capabilities


def test_a_table_has_its_own(files, tmp_path):
    path = tmp_path / "llamasrv.toml"
    path.write_text(f"""
        [models.sees]
        path = "{files}/cat/Cat-1B-Q8_0.gguf"
        [models.hears]
        path = "{files}/cat/Cat-1B-Q8_0.gguf"
        mmproj = "{files}/ears.gguf"
        image_max_tokens = 64
        [models.reads]
        path = "{files}/cat/Cat-1B-Q8_0.gguf"
        mmproj_auto = false
    """)
    models = {model.name: model for model in model_list.models(config.load({}, environ={}, config=path))}
    assert {name: model.details.capabilities[1:] for name, model in models.items()} == {
        "sees": ("vision",),
        "hears": ("audio",),
        "reads": (),
    }
    assert models["hears"].load_plan.options.image_max_tokens == 64
    assert len({model.key for model in models.values()}) == 3


def test_a_file_that_is_none_is_refused_at_the_start(files):
    text = files / "cat" / "Cat-1B-Q8_0.gguf"
    with pytest.raises(ConfigError, match="model.mmproj = .*: not a projector for images or audio"):
        model_list.models(settings_with(model_path=text, model_mmproj=text))


def test_a_speech_pair_speaks_and_neither_hears_nor_writes(tmp_path):
    tiny_speech.model(tmp_path / "Voice-Q8_0.gguf", "pockettts")
    tiny_speech.projector(tmp_path / "mmproj-Voice.gguf", "pockettts")
    model, options = only(model_path=tmp_path / "Voice-Q8_0.gguf", model_mmproj=tmp_path / "mmproj-Voice.gguf")
    assert model.details.capabilities == ("speech",) and options.mmproj == tmp_path / "mmproj-Voice.gguf"
    assert (options.parallel, options.context_cells) == (MAX_LANES, MAX_LANES * LANE_CELLS)
    assert with_projector(model.details, None).capabilities == ("completion",)


def test_a_speech_pair_is_checked_as_it_will_be_loaded(tmp_path, capsys):
    path = tiny_speech.model(tmp_path / "Voice-Q8_0.gguf", "pockettts")
    projector = tiny_speech.projector(tmp_path / "mmproj-Voice.gguf", "pockettts")
    assert check.run(settings_with(model_path=path, model_mmproj=projector), print_config=False) == 0
    out = capsys.readouterr().out
    assert "Speech: " in out and f"{MAX_LANES * LANE_CELLS} cells" in out


def test_a_vocoder_of_its_own_is_counted_before_a_speech_pair_is_loaded(tmp_path):
    sizes = {kind: tiny_speech.projector(tmp_path / f"{kind}.gguf", kind) for kind in tiny_speech.KINDS}
    needs = {kind: memory.projector_bytes(gguf.read_header(path)) for kind, path in sizes.items()}
    assert needs["qwen3tts"] == 4 * sizes["qwen3tts"].stat().st_size
    assert needs["pockettts"] == sizes["pockettts"].stat().st_size + memory.FRAMES_WORK


def test_the_projector_of_another_speech_model_is_refused_at_the_start(files, tmp_path):
    tiny_speech.projector(tmp_path / "mmproj.gguf", "pockettts")
    with pytest.raises(ConfigError, match="generates speech for pockettts models; .* is a llama model"):
        only(model_path=files / "cat" / "Cat-1B-Q8_0.gguf", model_mmproj=tmp_path / "mmproj.gguf")


@pytest.mark.parametrize(
    ("kind", "key"),
    [
        ("qwen3tts", "clip.gen.audio.attention.head_count_kv"),
        ("qwen3tts", "clip.has_audio_encoder"),
        ("pockettts", "clip.has_gen_audio_encoder"),
    ],
)
def test_a_speech_projector_that_lacks_a_key_is_refused_at_the_start(tmp_path, kind, key):
    """`check` called it valid, and the load failed, or the library ended the worker."""
    model = tiny_speech.model(tmp_path / "voice.gguf", kind)
    projector = tiny_speech.projector(tmp_path / "mmproj.gguf", kind)
    data = projector.read_bytes()
    projector.write_bytes(data.replace(key.encode(), key[:-1].encode() + b"x"))
    with pytest.raises(ConfigError, match=f"not a whole projector of a speech model: it has no {key}"):
        only(model_path=model, model_mmproj=projector)


def test_bodies_may_be_larger_where_there_is_one(files):
    text = files / "cat" / "Cat-1B-Q8_0.gguf"
    for given, size in (({}, 32 << 20), ({"model_mmproj_auto": False}, 4 << 20)):
        settings = settings_with(model_path=text, **given)
        options = startup_service.web_options(
            settings, takes_media=startup_service.takes_media(settings, model_list.models(settings))
        )
        assert options.limits.body_bytes == size


def test_the_marker_is_drawn_anew_unless_it_is_given(monkeypatch):
    def marker(**given):
        return startup_service.web_options(settings_with(**given)).limits.media_marker

    assert marker() != marker() and marker(media_marker="<img>") == "<img>"
    monkeypatch.setenv("LLAMA_MEDIA_MARKER", "<__media__>")
    assert marker() == "<__media__>"
