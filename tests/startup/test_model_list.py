"""From settings to models: which there are, what each is set to, and what changes when the settings do."""

from __future__ import annotations

import shutil
import threading

import pytest
from model.tiny_models import llama, lora
from options import settings_with
from serving import wait_until

from llamasrv import config, startup
from llamasrv.config import Settings, paths
from llamasrv.engine.base.interface import LoadFailed, NoMemory
from llamasrv.engine.base.options import Adapter, EngineOptions
from llamasrv.engine.base.use import HOST, FailedAllocation
from llamasrv.errors import ConfigError, InvalidRequest, ModelNotFound
from llamasrv.models import derived, memory
from llamasrv.models.derived import DerivedModel
from llamasrv.models.loader import ModelLoader
from llamasrv.models.registry import Registry
from llamasrv.startup import model_list
from llamasrv.startup import service as startup_service


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    return llama(tmp_path_factory.mktemp("models") / "tiny.gguf")


@pytest.fixture(autouse=True)
def nothing_pulled(monkeypatch, tmp_path):
    monkeypatch.setattr(paths, "models_dir", lambda: tmp_path / "pulled")
    monkeypatch.setattr(paths, "cache_dir", lambda: tmp_path / "cache")


@pytest.fixture
def folder(tmp_path, tiny):
    """A folder of models with these files in it."""

    def make(*names, place="folder"):
        for name in names:
            path = tmp_path / place / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tiny.read_bytes())
        return tmp_path / place

    return make


@pytest.fixture
def settings(tmp_path):
    def make(text, **flags):
        path = tmp_path / "llamasrv.toml"
        path.write_text(text)
        return config.load(flags, environ={}, config=path)

    return make


def names(settings):
    return [model.name for model in model_list.models(settings)]


def test_a_single_model_is_loaded_at_the_start_and_stays(tiny):
    (model,) = model_list.models(settings_with(model_path=tiny))
    assert (model.name, model.settings.at_start, model.settings.keep_alive) == ("tiny", True, -1)
    assert model.details.architecture == "llama" and model.memory > model.details.size and model.context == 2048


def test_tables_come_with_options_of_their_own(settings, tiny):
    s = settings(f"""
        [engine]
        ctx_size = 512
        parallel = 2
        [sampling]
        temp = 0.1
        [models]
        keep_alive = 9
        [models.a]
        path = "{tiny}"
        ctx_size = 1024
        temp = 0.7
        n_predict = 5
        chat_template = "chatml"
        alias = ["x", "y"]
        [models."b:7b"]
        path = "{tiny}"
        keep_alive = -1
        load = true
    """)
    a, b = model_list.models(s)
    assert (a.name, a.settings.aliases, a.load_plan.options.context_cells, a.load_plan.options.parallel) == (
        "a",
        ("x", "y"),
        1024,
        2,
    )
    own = a.settings
    assert (own.sampling, a.num_predict, own.keep_alive, own.at_start) == ({"temperature": 0.7}, 5, 9, False)
    assert "im_start" in own.chat_template and "im_start" in a.details.template
    assert (b.name, b.load_plan.options.context_cells, b.settings.sampling) == ("b:7b", 512, {"temperature": 0.1})
    assert (b.settings.keep_alive, b.settings.at_start, b.settings.chat_template) == (-1, True, None)


def test_a_folder_is_served_and_a_table_may_set_options_for_a_file_in_it(settings, folder):
    place = folder("m-Q8_0.gguf", "n-Q8_0.gguf")
    s = settings(f'[models]\ndir = "{place}"\n[models."m:Q8_0"]\nctx_size = 256')
    models = model_list.models(s)
    assert [(m.name, m.settings.is_found) for m in models] == [("m:Q8_0", False), ("n:Q8_0", True)]
    assert models[0].load_plan.options.context_cells == 256 and "m" in models[0].settings.aliases


def test_a_file_is_served_once(settings, folder):
    place = folder("m.gguf")
    assert names(settings(f'[models]\ndir = "{place}"\n[models.own]\npath = "{place}/m.gguf"')) == ["own"]


def test_a_named_model_goes_before_a_folder(folder, tiny):
    assert names(settings_with(model_path=tiny, models_dir=folder("m.gguf"))) == ["tiny", "m"]


def test_what_was_pulled_is_served_where_no_model_is_named(folder, tiny):
    folder("m.gguf", place="pulled")
    assert names(Settings()) == ["m"]
    assert names(settings_with(model_path=tiny)) == ["tiny"]


def test_without_any_model_the_embedded_one_serves(monkeypatch, tiny):
    monkeypatch.setattr(paths, "demo_model", lambda: tiny)
    (model,) = model_list.models(Settings())
    assert (model.name, model.settings.at_start) == ("demo", True)


def test_what_is_made_of_the_embedded_one_does_not_displace_it(monkeypatch, tmp_path, tiny):
    """A client's /api/create took the demonstration model from all others, and running chats went on with the new one."""
    monkeypatch.setattr(paths, "demo_model", lambda: tiny)
    derived.write(tmp_path, DerivedModel("mine", "demo", str(tiny)))
    assert names(settings_with(models_dir=tmp_path)) == ["demo", "mine"]
    monkeypatch.setattr(paths, "demo_model", lambda: tmp_path / "other.gguf")
    assert names(settings_with(models_dir=tmp_path)) == ["mine"]


def test_a_table_may_name_the_embedded_one(monkeypatch, tiny, settings):
    monkeypatch.setattr(paths, "demo_model", lambda: tiny)
    assert names(settings(f'[models.demo]\n[models.other]\npath = "{tiny}"')) == ["demo", "other"]


def test_the_default_goes_first(settings, tiny):
    text = f'[models.a]\npath = "{tiny}"\n[models.b]\npath = "{tiny}"\nalias = "main"'
    assert names(settings(text, models_default="main")) == ["b", "a"]
    with pytest.raises(ConfigError, match=r"models\.default = 'aa': no such model; did you mean a\?"):
        model_list.models(settings(text, models_default="aa"))


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ('[models.a]\npath = "/no/such.gguf"', r"models\.a: /no/such\.gguf: No such file"),
        ("[models.a]", r"models\.a: no path, and no model of that name in models\.dir"),
    ],
)
def test_a_table_without_a_model_is_refused(settings, text, refusal):
    with pytest.raises(ConfigError, match=refusal):
        model_list.models(settings(text))


def test_a_broken_file_in_the_folder_is_left_out(folder):
    place = folder("good.gguf")
    (place / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    assert names(settings_with(models_dir=place)) == ["good"]


def test_one_of_several_leaves_memory_for_another(folder, monkeypatch):
    place = folder("m.gguf", "n.gguf")
    monkeypatch.setattr(memory, "available_memory", lambda: 40 << 20)
    alone = model_list.models(settings_with(model_path=place / "m.gguf"))[0]
    beside = model_list.models(settings_with(models_dir=place))[0]
    assert beside.memory <= 20 << 20 and beside.context <= alone.context


def test_one_that_never_fits_is_listed_all_the_same(folder, monkeypatch):
    place = folder("m.gguf", "n.gguf")
    assert names(settings_with(models_dir=place, models_memory=1 << 20)) == ["m", "n"]


# Settings that change while serving


@pytest.fixture
def serving(settings, monkeypatch):
    """A registry of fake models made from settings, which may be read again."""
    from llamasrv.engine.backend import context
    from llamasrv.engine.backend.fake import open_fake_backend

    monkeypatch.setattr(context, "open_model", lambda path, options, progress: open_fake_backend(progress))
    services = []

    def start(text):
        services.append(startup_service.build(settings(text).having(models={"check": False}, store={"url": "none"})))
        return services[-1].registry

    yield start
    for service in services:
        assert service.registry.stop(10)


def load(model, registry):
    registry.loader.load(model)
    assert registry.loader.wait(model, 10)


def test_models_come_change_and_go_and_the_others_do_not_notice(serving, settings, tiny):
    table = f'[models.{{}}]\npath = "{tiny}"\n'
    registry = serving(table.format("stays") + table.format("goes") + table.format("changes"))
    for model in registry.models:
        load(model, registry)
    stays, goes, changes = registry.models
    engine = stays.current
    stays.touch(7.0)  # a request wants it to stay that long; it went by the operator's time after any change
    startup_service.update_models(
        registry,
        settings(
            table.format("stays")
            + "temp = 0.5\n"
            + table.format("changes")
            + "ctx_size = 256\n"
            + table.format("comes")
        ),
    )
    assert [model.name for model in registry.models] == ["stays", "changes", "comes"]
    assert registry.find("stays") is stays and stays.current is engine
    assert stays.settings.sampling == {"temperature": 0.5} and stays.stay == 7.0
    assert registry.find("changes") is not changes
    with pytest.raises(ModelNotFound):
        registry.find("goes")
    wait_until(lambda: goes.state == changes.state == "unloaded")
    assert engine.status.state == "ready"


def test_aliases_change_too(serving, settings, tiny):
    text = f'[models.m]\npath = "{tiny}"\n'
    registry = serving(text + '[aliases]\n"old" = "m"')
    startup_service.update_models(registry, settings(text + '[aliases]\n"new" = "m"\n"*" = "m"'))
    assert registry.find("new").name == registry.find("anything").name == "m"


def test_wrong_settings_change_nothing(serving, settings, tiny):
    registry = serving(f'[models.m]\npath = "{tiny}"\n')
    before = registry.models
    with pytest.raises(ConfigError):
        startup_service.update_models(registry, settings('[models.m]\npath = "/no/such.gguf"'))
    assert registry.models is before


def test_the_last_of_two_changes_at_once_wins(serving, settings, tiny, monkeypatch):
    """Listing the models of a large folder takes a while; one that began before a change and ended after it undid it."""
    table = f'[models.{{}}]\npath = "{tiny}"\n'
    registry = serving(table.format("first"))
    updates = startup_service.ModelUpdates(registry, settings(table.format("first")))
    listing, go_on = threading.Event(), threading.Event()
    models = model_list.models

    def slowly(given):
        if not listing.is_set():
            listing.set()
            assert go_on.wait(10)
        return models(given)

    monkeypatch.setattr(model_list, "models", slowly)
    older = threading.Thread(target=updates.refresh)
    older.start()
    assert listing.wait(10)
    newer = threading.Thread(target=updates.use, args=(settings(table.format("second")),))
    newer.start()
    newer.join(0.2)  # it would be done by now, did it not wait
    go_on.set()
    for thread in (older, newer):
        thread.join(10)
    assert [model.name for model in registry.models] == ["second"]
    updates.refresh()
    assert [model.name for model in registry.models] == ["second"]


def test_new_models_of_the_start_are_loaded_at_once(serving, settings, tiny):
    text = f'[models.m]\npath = "{tiny}"\n'
    registry = serving(text)
    assert registry.readiness().state == "ready" and registry.default.state == "unloaded"
    startup_service.update_models(registry, settings(text + "load = true"))
    wait_until(lambda: registry.default.state == "loaded")


# LoRA adapters


@pytest.fixture
def adapter(tmp_path):
    return lora(tmp_path / "sql.gguf")


def test_a_models_adapters_come_with_its_table(tiny, adapter, settings):
    found = settings(
        f'[models.own]\npath = "{tiny}"\n[models.own.adapters]\nsql = {{path = "{adapter}", scale = 0.5}}\n'
    )
    (model,) = model_list.models(found)
    (known,) = model.adapters
    assert (known.name, known.scale) == ("sql", 0.5) and known.digest.startswith("sha256:")
    (bare,) = model_list.models(settings_with(model_path=tiny))
    assert model.memory == bare.memory + adapter.stat().st_size and not bare.adapters


def test_adapters_of_one_model_are_not_those_of_a_folder(tiny, adapter, folder):
    made = model_list.models(
        settings_with(model_path=tiny, model_adapters=(Adapter("sql", str(adapter)),), models_dir=folder("m.gguf"))
    )
    assert [len(model.adapters) for model in made] == [1, 0]


def test_a_changed_adapter_is_another_model(tiny, tmp_path):
    keys = []
    for seed in (1, 2):
        path = lora(tmp_path / "a.gguf", seed=seed)
        keys.append(model_list.models(settings_with(model_path=tiny, model_adapters=(Adapter("a", str(path)),)))[0].key)
    assert keys[0] != keys[1]


def test_an_adapter_in_a_folder_is_no_model(folder, tmp_path):
    lora(folder("m.gguf") / "adapter.gguf")
    assert names(settings_with(models_dir=tmp_path / "folder")) == ["m"]


@pytest.mark.parametrize("name, reason", [("none.gguf", "No such file"), ("tiny.gguf", "not a LoRA adapter")])
def test_a_file_that_is_no_adapter_is_refused_at_the_start(tiny, name, reason):
    with pytest.raises(ConfigError, match=reason):
        model_list.models(settings_with(model_path=tiny, model_adapters=(Adapter("a", str(tiny.with_name(name))),)))


def test_pulled_models_are_served_beside_others_where_clients_may_pull(tiny, folder):
    folder("p.gguf", place="pulled")
    assert names(settings_with(model_path=tiny)) == ["tiny"]
    assert names(settings_with(model_path=tiny, models_manage=True)) == ["tiny", "p"]


@pytest.mark.parametrize("asked, longest", [(None, 500), (100, 100), (1000, 500), (0, 256)])
def test_a_sequence_may_be_bounded_below_the_pool(asked, longest):
    """llama-server gives each of several slots its share; here that bounds the length alone, the pool is one."""
    options = EngineOptions(context_cells=512, parallel=2, sequence_tokens=asked)
    assert options.longest_sequence(500) == longest


def test_the_model_of_the_command_line_may_sleep(tiny):
    def stay(seconds):
        return model_list.models(settings_with(model_path=tiny, model_sleep_idle_seconds=seconds))[
            0
        ].settings.keep_alive

    assert stay(None) < 0 and stay(2.5) == 2.5


def test_a_repository_that_was_pulled_is_served_by_its_name(folder, tmp_path):
    folder("m-Q4_K_M.gguf", place="pulled/owner/repo")
    found = startup.filled_in(settings_with(model_hf_repo="owner/repo:Q4_K_M"))
    (model,) = [m for m in model_list.models(found) if m.settings.at_start]
    assert model.name == "owner/repo:Q4_K_M" and model.details.path.name == "m-Q4_K_M.gguf"


def test_a_repository_that_was_not_pulled_is_reported(tmp_path):
    with pytest.raises(
        ConfigError, match=r"model\.hf_repo = 'owner/repo': not found in .*; run `llamasrv pull hf:owner/repo`"
    ):
        startup.filled_in(settings_with(model_hf_repo="owner/repo"))


@pytest.fixture
def cached(tmp_path, tiny, monkeypatch):
    """`cached("o/r", "m-Q8_0.gguf")`: a file of a repository in the Hub's own cache; returns that folder."""
    hub = tmp_path / "hub"
    monkeypatch.setenv("LLAMA_CACHE", str(hub))

    def make(repo, *names, commit="abc"):
        here = hub / f"models--{repo.replace('/', '--')}"
        for path in [here / "snapshots" / commit / name for name in names]:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(tiny.read_bytes())
        (here / "refs").mkdir(exist_ok=True)
        (here / "refs" / "main").write_text(commit)
        return hub

    return make


def test_what_the_hubs_own_cache_has_need_not_be_fetched(cached):
    """Whoever comes from llama-server has models there, and was told to pull them again."""
    cached("owner/repo", "old-Q4_K_M.gguf", commit="old")
    hub = cached("owner/repo", "m-Q8_0.gguf", "m-Q4_K_M.gguf", commit="new")
    found = startup.filled_in(settings_with(model_hf_repo="owner/repo:Q4_K_M"))
    assert found.model.path == hub / "models--owner--repo" / "snapshots" / "new" / "m-Q4_K_M.gguf"
    assert found.model.alias == ("owner/repo:Q4_K_M",)


def preset(tmp_path, text, **more):
    path = tmp_path / "models.ini"
    path.write_text(text)
    return config.load({"models_preset": path, **more}, environ={})


@pytest.mark.parametrize(("switch", "listed"), [("", True), ("dedup-cache-models = 1\n", False)])
def test_a_preset_names_a_repository_and_may_hide_its_entry(cached, tmp_path, switch, listed):
    hub = cached("o/a", "a-F32.gguf")
    cached("o/b", "b-F32.gguf")
    made = model_list.models(preset(tmp_path, f"[mine]\nhf-repo = o/a\n{switch}", models_dir=hub))
    assert [model.name for model in made] == ["mine", *(["o/a:F32"] if listed else []), "o/b:F32"]
    assert ("o/a:F32" in made[0].settings.aliases) is not listed


@pytest.mark.parametrize("switch", ["dedup-cache-models = 1\n", ""])
def test_a_preset_names_the_repository_of_its_draft_model(cached, tmp_path, switch):
    hub = cached("o/a", "a-F32.gguf")
    cached("o/small", "small-F32.gguf")
    text = f"[mine]\nhf-repo = o/a\nspec-draft-hf = o/small\n{switch}"
    mine, *others = model_list.models(preset(tmp_path, text, models_dir=hub))
    assert mine.load_plan.options.draft_model.name == "small-F32.gguf"
    assert [model.name for model in others] == ([] if switch else ["o/a:F32", "o/small:F32"])


def test_a_section_may_be_named_by_its_repository(cached, tmp_path):
    cached("o/a", "a-F32.gguf")
    (only,) = model_list.models(preset(tmp_path, "[o/a:F32]\nc = 512\n"))
    assert only.name == "o/a:F32" and only.load_plan.options.context_cells == 512


def test_a_repository_of_a_preset_that_is_nowhere_is_reported(cached, tmp_path):
    cached("o/a", "a-F32.gguf")
    with pytest.raises(ConfigError, match=r"models\.mine: model\.hf_repo = 'o/c': .*run `llamasrv pull hf:o/c`"):
        model_list.models(preset(tmp_path, "[mine]\nhf-repo = o/c\n"))


def test_a_preset_is_read_again_where_that_is_asked_for(cached, tmp_path):
    """llama-server reads it at ?reload=1; here the models stayed those of the start."""
    hub = cached("o/a", "a-F32.gguf")
    file = tmp_path / "models.ini"

    def preset_of(*names):
        file.write_text("".join(f"[{name}]\nhf-repo = o/a\n" for name in names))

    preset_of("one", "two")
    settings = config.load({"models_preset": file, "models_dir": hub}, environ={})
    registry = Registry(model_list.models(settings), loader=ModelLoader())
    updates = startup_service.ModelUpdates(registry, settings)
    preset_of("two", "three")
    updates.reread()
    assert [model.name for model in registry.models] == ["two", "three", "o/a:F32"]
    file.write_text("[four]\nhf-repo = o/none\n")
    with pytest.raises(InvalidRequest, match="The models are unchanged: models.four"):
        updates.reread()
    updates.refresh()
    assert [model.name for model in registry.models] == ["two", "three", "o/a:F32"]
    assert registry.stop(10)


# Memory that is missing


@pytest.fixture
def opening(monkeypatch):
    """What `open_model` is called with; it fails for memory as often as `failing` says."""
    from llamasrv.engine.backend import context

    class Opening(list):
        failing, refused = 0, None

    calls = Opening()

    def open_model(path, options, progress):
        calls.append(options.context_cells)
        if len(calls) <= calls.failing:
            raise NoMemory(f"{path}: cannot create a context of {options.context_cells} tokens", calls.refused)
        return "backend"

    monkeypatch.setattr(context, "open_model", open_model)
    return calls


def test_a_load_that_fails_for_memory_is_tried_once_with_less(folder, opening):
    place, progress = folder("m.gguf"), print
    load_plan = model_list.models(settings_with(model_path=place / "m.gguf"))[0].load_plan
    opening.failing = 1
    assert load_plan.open_backend(progress) == "backend"
    assert opening == [load_plan.options.context_cells, load_plan.options.context_cells // 2]


def test_then_it_says_what_to_do(folder, opening):
    load_plan = model_list.models(settings_with(model_path=folder("m.gguf") / "m.gguf"))[0].load_plan
    opening.failing = 2
    with pytest.raises(LoadFailed, match="a smaller plan failed as well. Free memory that other programs use"):
        load_plan.open_backend(print)
    assert len(opening) == 2


@pytest.mark.parametrize(
    ("refused", "said"),
    [
        (FailedAllocation("CUDA1", 3 << 30, 1 << 30), "could not allocate 3.0 GiB on CUDA1, which has 1.0 GiB free"),
        (FailedAllocation("RPC0", 3 << 30), "could not allocate 3.0 GiB on RPC0; a smaller plan"),
        (FailedAllocation(HOST, 5 << 20), "could not allocate 5 MiB of this machine's memory, which has 40 MiB free"),
    ],
)
def test_it_says_how_much_was_missing_and_where(folder, opening, monkeypatch, refused, said):
    """It said that the memory was not enough, and of which device nobody knew."""
    load_plan = model_list.models(settings_with(model_path=folder("m.gguf") / "m.gguf"))[0].load_plan
    monkeypatch.setattr(memory, "available_memory", lambda: 40 << 20)
    opening.failing, opening.refused = 2, refused
    with pytest.raises(LoadFailed) as failure:
        load_plan.open_backend(print)
    assert said in str(failure.value) and "\n" not in str(failure.value)


def test_a_context_that_was_asked_for_is_not_made_smaller(folder, opening):
    load_plan = model_list.models(settings_with(model_path=folder("m.gguf") / "m.gguf", engine_ctx_size=4096))[
        0
    ].load_plan
    opening.failing = 1
    with pytest.raises(NoMemory, match="4096"):
        load_plan.open_backend(print)
    assert opening == [4096]


def test_a_folder_that_is_such_a_cache_goes_before_the_hubs_own(cached, tmp_path):
    """A preset's file was taken from the one, and its entry was listed from the other."""
    hub = cached("o/a", "a-F32.gguf")
    copy = tmp_path / "copy"
    shutil.copytree(hub, copy)
    (only,) = model_list.models(preset(tmp_path, "[mine]\nhf-repo = o/a\ndedup-cache-models = 1\n", models_dir=copy))
    assert copy in only.details.path.parents
