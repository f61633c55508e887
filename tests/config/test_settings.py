"""Options: where they come from, what is refused and how it is told, and the documents made from them."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
import textwrap

import pytest
from options import settings_with

from llamasrv import config
from llamasrv.config import OPTIONS, Settings, check, docgen, load
from llamasrv.config.option import convert, written
from llamasrv.config.settings import value_of
from llamasrv.domain.params import SamplingParams
from llamasrv.domain.prices import Prices
from llamasrv.engine.base.options import Adapter
from llamasrv.errors import ConfigError
from llamasrv.protocols.limits import Limits

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


@pytest.fixture
def toml(tmp_path):
    """Writes a configuration file; its path."""

    def write(text: str):
        path = tmp_path / "llamasrv.toml"
        path.write_text(text)
        return path

    return write


def value(settings, name):
    return next(value_of(settings, option) for option in OPTIONS if option.name == name)


def refusal(**arguments) -> str:
    with pytest.raises(ConfigError) as error:
        load(**({"environ": {}} | arguments))
    line = str(error.value)
    assert "\n" not in line
    return line


# Prices


def test_prices_are_a_table_or_json_and_cached_tokens_cost_as_others_unless_they_are_named(toml):
    file = toml('[models.a]\npath = "a.gguf"\nprices = {input = 2, cached = 0.5, output = 10}\n')
    (table,) = load(config=file, environ={}).tables
    assert table.values["model_prices"] == Prices(2.0, 0.5, 10.0)
    assert table.values["model_prices"].cost(1_000_000, 200_000, 10_000) == pytest.approx(1.6 + 0.1 + 0.1)
    settings = load(environ={"LLAMASRV_PRICES": '{"input": 1, "output": 2}', "LLAMASRV_CURRENCY": "eur"})
    assert settings.model.prices == Prices(1.0, 1.0, 2.0) and settings.server.currency == "EUR"


@pytest.mark.parametrize(
    "text, told",
    [
        ('{"input": 1}', "lacks 'output'"),
        ('{"input": -1, "output": 1}', "must be numbers for input"),
        ('{"input": 1, "output": "x"}', "must be numbers for input"),
        ('{"input": 1, "output": 1, "inputs": 2}', "'inputs' is not one of input, cached, output"),
        ("2.5", "must be numbers for input"),
    ],
)
def test_prices_that_are_wrong_are_refused(text, told):
    assert told in refusal(environ={"LLAMASRV_PRICES": text})


def test_a_currency_is_a_code(toml):
    assert "three letters" in refusal(environ={"LLAMASRV_CURRENCY": "dollars"})


# Sources


def test_without_anything_the_defaults_hold():
    assert load(environ={}) == Settings()


def test_the_environment_goes_before_the_file_and_flags_before_both(toml):
    path = toml("[server]\nport = 1\nhost = '127.0.0.3'\n[engine]\nparallel = 3\n")
    settings = load({"server_port": "3"}, environ={"LLAMASRV_PORT": "2", "LLAMASRV_PARALLEL": "2"}, config=path)
    assert (settings.server.port, settings.engine.parallel, settings.server.host) == (3, 2, "127.0.0.3")


def test_the_environment_may_name_the_file(toml):
    path = toml("[server]\nport = 99\n")
    assert load(environ={"LLAMASRV_CONFIG": str(path)}).server.port == 99


def test_settings_survive_the_way_through_the_environment():
    settings = load(
        {
            "model_alias": "a,b",
            "cache_ram": "3MiB",
            "engine_deterministic": True,
            "sampling_temp": "0.25",
            "server_port": 0,
            "engine_threads": 3,
            "engine_coalesce_ms": 1.5,
            "model_adapters": "sql=a.gguf@0.5",
        },
        environ={},
    )
    assert load(environ=config.as_environment(settings)) == settings


def test_variables_of_a_kubernetes_service_of_the_same_name_are_no_options():
    environ = {
        "LLAMASRV_SERVICE_HOST": "10.0.0.1",
        "LLAMASRV_SERVICE_PORT_HTTP": "80",
        "LLAMASRV_PORT": "tcp://10.0.0.1:80",
        "LLAMASRV_PORT_80_TCP_ADDR": "10.0.0.1",
    }
    assert load(environ=environ) == Settings()


def test_settings_of_a_process_can_be_set_once_for_its_children():
    code = """
        import os
        from llamasrv import config
        print(config.current().server.port, flush=True)
        config.use(config.load(environ={"LLAMASRV_PORT": "18"}))
        if not os.fork():
            print(config.current().server.port, flush=True)
            os._exit(0)
        os.wait()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        env={**os.environ, "LLAMASRV_PORT": "17"},
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["17", "18"], done.stderr


# Values


@pytest.mark.parametrize(
    ("name", "given", "value_"),
    [
        ("server_port", "8_081", 8081),
        ("server_port", 0, 0),
        ("engine_ctx_size", "0", None),
        ("engine_threads", -1, None),
        ("engine_n_gpu_layers", "ALL", None),
        ("engine_n_gpu_layers", "0", 0),
        ("limits_timeout", 0.0, None),
        ("models_memory", 0, None),
        ("engine_step_target_ms", "150", 0.15),
        ("sampling_temp", 1, 1.0),
        ("sampling_temp", "1e-1", 0.1),
        ("engine_deterministic", "on", True),
        ("engine_deterministic", "0", False),
        ("engine_flash_attn", "ON", "on"),
        ("model_alias", "a, b", ("a", "b")),
        ("model_alias", ("a", "b,c"), ("a", "b", "c")),
        ("sampling_samplers", "top_k;temperature", ("top_k", "temperature")),
        ("sampling_samplers", "Top-K;temp;adaptive-p", ("top_k", "temperature", "adaptive_p")),
        ("limits_body_bytes", "1.5M", 1_572_864),
        ("limits_body_bytes", "2000", 2000),
        ("limits_body_bytes", 4096, 4096),
        ("cache_ram", "100", 100 * 2**20),
        ("cache_ram", 1, 2**20),
        ("cache_ram", "1GiB", 2**30),
        ("cache_ram", "10B", 10),
    ],
)
def test_it_reads(name, given, value_):
    assert value(load({name: given}, environ={}), name) == value_


@pytest.mark.parametrize(
    ("name", "given", "reason"),
    [
        ("server_port", "abc", "must be a whole number, 0 to 65535"),
        ("server_port", "70000", "must be a whole number, 0 to 65535"),
        ("server_port", "9" * 5000, "must be"),
        ("server_port", True, "must be"),
        ("server_port", 1.5, "must be"),
        ("sampling_temp", "nan", "must be a number, 0 to 100"),
        ("sampling_temp", "-1", "must be"),
        ("models_keep_alive", "5m", "must be a number, -1 to 1e+09 (seconds)"),
        ("sampling_temp", [1], "must be"),
        ("engine_deterministic", "maybe", "must be true or false"),
        ("engine_deterministic", 1, "must be true or false"),
        ("engine_flash_attn", "of", "must be one of auto, on, off; did you mean off?"),
        ("model_alias", 5, "must be a list of strings"),
        ("model_alias", [5], "must be a list of strings"),
        ("model_chat_template", "", "must be text"),
        ("limits_body_bytes", "much", "must be a size like 4MiB"),
        ("limits_body_bytes", "1B", "must be from 1KiB to 1TiB"),
        ("sampling_samplers", "temprature", "unknown sampler 'temprature'; did you mean temperature?"),
    ],
)
def test_it_refuses(name, given, reason):
    assert reason in refusal(flags={name: given})


# What a refusal says


def test_an_unknown_key_is_reported_with_file_value_and_the_nearest_name(toml):
    path = toml("[server]\nprot = 8080\n")
    assert refusal(config=path) == f"{path}: server.prot = 8080: unknown key; did you mean server.port?"


def test_a_key_outside_its_table_is_reported_where_it_belongs(toml):
    assert refusal(config=toml("ctx_size = 4096\n")).endswith("did you mean engine.ctx_size?")
    assert refusal(config=toml("[server]\nctx_size = 4096\n")).endswith("did you mean engine.ctx_size?")


def test_an_unknown_table_is_reported(toml):
    """It was shown as a value, and the nearest name was that of any option."""
    path = toml("[sever]\nport = 1\n")
    assert refusal(config=path) == f"{path}: [sever]: unknown table; did you mean [server]?"
    assert refusal(config=toml("[zzzz]\nport = 1\n")).endswith("[zzzz]: unknown table")


def test_a_bad_value_is_reported_with_file_and_key(toml):
    path = toml("[engine]\nparallel = 'many'\n")
    assert refusal(config=path) == f"{path}: engine.parallel = 'many': must be a whole number, 1 to 256"


def test_an_unknown_variable_is_reported_with_the_nearest_name():
    line = refusal(environ={"LLAMASRV_PARALEL": "4"})
    assert line == "environment: LLAMASRV_PARALEL='4': unknown name; did you mean LLAMASRV_PARALLEL?"


def test_a_bad_flag_is_reported_with_its_name():
    assert refusal(flags={"server_port": "x"}).startswith("--port 'x': ")


def test_a_missing_file_is_reported(tmp_path):
    path = tmp_path / "none.toml"
    assert refusal(config=path) == f"{path}: No such file or directory"


def test_a_file_that_is_not_toml_is_reported_with_the_line(toml):
    assert re.search(r"not valid TOML: .*line 2", refusal(config=toml("[server]\nport: 1\n")))


def test_a_file_that_is_not_text_is_reported(tmp_path):
    path = tmp_path / "binary.toml"
    path.write_bytes(b"\xff\xfe\x00")
    assert refusal(config=path).endswith("not UTF-8 text")


def test_a_secret_is_never_shown(toml):
    assert "hush" not in refusal(config=toml("[server]\napi_key = [1, 'hush']\n"))
    assert "hush" not in repr(load({"server_api_key": "hush"}, environ={}))
    assert "hush" not in docgen.as_toml(load({"server_api_key": "hush"}, environ={}))


def test_a_secret_in_the_table_of_a_model_is_never_shown(toml):
    """The configuration in force showed the Hub's token of a model with its own."""
    settings = load(environ={}, config=toml("[models.one]\nhf_repo = 'o/r'\nhf_token = 'hush'\n"))
    shown = docgen.as_toml(settings)
    assert "hush" not in shown + repr(settings) and '# hf_token = "***"' in shown and 'hf_repo = "o/r"' in shown


# Options that only make sense together


@pytest.mark.parametrize(
    ("flags", "reason"),
    [
        ({"model_fake": True, "model_path": "m.gguf"}, "mutually exclusive"),
        ({"model_chat_template": "chatml", "model_chat_template_file": "t"}, "not both"),
        ({"engine_parallel": 64, "engine_batch_size": 32, "engine_ubatch_size": 32}, "each sequence needs one row"),
        ({"engine_ubatch_size": 4096, "engine_batch_size": 2048}, "is more than engine.batch_size = 2048"),
        ({"engine_cache_type_v": "q8_0", "engine_flash_attn": "off"}, "needs flash attention"),
    ],
)
def test_it_refuses_a_contradiction(flags, reason):
    assert reason in refusal(flags=flags)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "127.0.0.1,0.0.0.0"])
def test_it_refuses_to_listen_publicly_without_a_key(host, monkeypatch):
    monkeypatch.setattr(check, "in_container", lambda: False)
    assert "--api-key-file" in refusal(flags={"server_host": host})
    load({"server_host": host, "server_api_key": "k"}, environ={})
    load({"server_host": host, "server_allow_keyless": True}, environ={})


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "::1", "[::1]", "/run/llamasrv.sock", "127.0.0.1, ::1"])
def test_it_listens_locally_without_a_key(host):
    load({"server_host": host}, environ={})


# What others read


def test_keys_come_from_option_and_file(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# first\none\n\n  two \n")
    settings = load({"server_api_key": "zero", "server_api_key_file": str(path)}, environ={})
    assert settings.api_keys() == ("zero", "one", "two")


def test_a_key_file_without_a_key_is_refused(tmp_path):
    path = tmp_path / "keys"
    path.write_text("# nothing\n")
    with pytest.raises(ConfigError, match="contains no key"):
        load({"server_api_key_file": str(path)}, environ={}).api_keys()
    with pytest.raises(ConfigError, match="No such file"):
        load({"server_api_key_file": str(path) + "x"}, environ={}).api_keys()


def test_only_sampling_options_that_were_given_are_defaults_for_requests():
    assert load(environ={}).sampling_defaults() == {}
    given = load({"sampling_temp": 0.5, "sampling_typical": 0.9, "sampling_seed": -1}, environ={}).sampling_defaults()
    assert given == {"temperature": 0.5, "typical_p": 0.9, "seed": None}


def test_every_sampling_option_is_a_sampling_parameter():
    names = set(SamplingParams._fields)
    settings = {o.name: 1 for o in OPTIONS if o.section == "sampling"}
    assert set(settings_with(**settings).sampling_defaults()) <= names


def test_limits_have_the_defaults_of_the_protocols():
    options = {o.name.removeprefix("limits_"): o.default for o in OPTIONS if o.section == "limits"}
    limits = dataclasses.asdict(Limits())
    assert {name: options[name] for name in options if name in limits} == {
        name: limits[name] for name in limits if name in options
    }
    assert len(set(options) & set(limits)) >= 10


@pytest.mark.parametrize(
    ("host", "port", "url"),
    [
        ("127.0.0.1", 8080, "http://127.0.0.1:8080"),
        ("0.0.0.0", 80, "http://127.0.0.1:80"),
        ("::1", 80, "http://[::1]:80"),
        ("/run/x.sock", 80, "unix:/run/x.sock"),
        ("127.0.0.1,::1", 80, "http://127.0.0.1:80"),
    ],
)
def test_the_url_is_what_a_client_on_this_machine_uses(host, port, url):
    assert settings_with(server_host=host, server_port=port).url == url


# Declarations and documents


def test_names_flags_and_variables_are_unique():
    for names in ([o.key for o in OPTIONS], [o.variable for o in OPTIONS], [f for o in OPTIONS for f in o.flags]):
        assert len(set(names)) == len(names)


@pytest.mark.parametrize("option", OPTIONS, ids=lambda o: o.name)
def test_a_default_is_a_value_that_would_be_accepted(option):
    if written(option, option.default) is not None:
        assert convert(option, written(option, option.default), "here") == option.default


def test_the_toml_document_names_every_option_and_changes_nothing(toml):
    text = docgen.as_toml()
    assert load(environ={}, config=toml(text)) == Settings()
    for option in OPTIONS:
        assert option.help in text and option.long_flag in text


def test_the_toml_document_without_its_comment_marks_is_the_defaults(toml):
    lines = [line[2:] if re.match(r"# \w+ = .+", line) else line for line in docgen.as_toml().splitlines()]
    assert load(environ={}, config=toml("\n".join(lines))) == Settings()
    keys = {f"{s}.{k}" for s, table in tomllib.loads("\n".join(lines)).items() for k in table}
    assert keys == {option.key for option in OPTIONS if written(option, option.default) is not None}


def test_printed_settings_can_be_read_again(toml):
    settings = load(
        {"sampling_temp": 0.3, "model_alias": "x", "model_path": 'a "b"\\c.gguf', "cache_ram": "1000B"}, environ={}
    )
    assert load(environ={}, config=toml(docgen.as_toml(settings))) == settings


def test_the_process_environment_is_read_by_default(monkeypatch):
    for name in [name for name in os.environ if name.startswith("LLAMASRV_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LLAMASRV_CTX_SIZE", "1024")
    assert load().engine.context_cells == 1024


# LoRA adapters


def test_adapters_are_named_files_with_a_scale(toml):
    assert load({"model_adapters": ("sql=a/sql.gguf@0.5,b/polite.gguf",)}).engine.adapters == (
        Adapter("sql", "a/sql.gguf", 0.5),
        Adapter("polite", "b/polite.gguf", 1.0),
    )
    settings = load(config=toml('[model.adapters]\nsql = "a.gguf"\nother = {path = "b.gguf", scale = 2}\n'))
    assert settings.engine.adapters == (Adapter("sql", "a.gguf"), Adapter("other", "b.gguf", 2.0))
    assert load(environ=config.as_environment(settings)).engine.adapters == settings.engine.adapters


def test_a_models_table_has_adapters_of_its_own(toml):
    settings = load(config=toml('[models.qwen]\npath = "q.gguf"\n[models.qwen.adapters]\nsql = "a.gguf"\n'))
    assert settings.of(settings.tables[0]).engine.adapters == (Adapter("sql", "a.gguf"),)
    assert settings.engine.adapters == ()


@pytest.mark.parametrize(
    "adapters", ['["a=1.gguf", "A=2.gguf"]', '["a b=1.gguf"]', "{a = 1}", "{a = {file = 'x'}}", "3"]
)
def test_adapters_that_make_no_sense_are_reported(toml, adapters):
    with pytest.raises(ConfigError, match="model.adapters = "):
        load(config=toml(f"[model]\nadapters = {adapters}\n"))


# Tables of models


def tables(path):
    return {table.name: table for table in load(environ={}, config=path).tables}


def test_a_models_table_has_options_of_its_own(toml):
    path = toml(
        '[engine]\nparallel = 2\n[models.a]\npath = "m.gguf"\nctx_size = 64\ntemp = 0.5\nload = true\n[models."b:7b"]'
    )
    settings = load(environ={}, config=path)
    a, b = settings.tables
    assert (a.name, a.load, b.name, b.load) == ("a", True, "b:7b", False)
    own = settings.of(a)
    assert (str(own.model.path), own.engine.context_cells, own.engine.parallel, own.sampling.temperature) == (
        "m.gguf",
        64,
        2,
        0.5,
    )
    assert settings.engine.context_cells is None and own.tables == ()


def test_a_table_knows_nothing_of_the_one_model_that_a_flag_names(toml):
    path = toml("[models.a]")
    settings = load({"model_path": "one.gguf", "model_alias": ("x",)}, environ={}, config=path)
    own = settings.of(settings.tables[0])
    assert own.model.path is None and own.model.alias == ()


def test_a_table_may_be_called_like_an_option(toml):
    settings = load(environ={}, config=toml('[models]\nmemory = "1GiB"\n[models.dir]\npath = "m.gguf"'))
    assert settings.models.memory == 2**30 and [table.name for table in settings.tables] == ["dir"]


def test_aliases_are_a_table(toml):
    settings = load(environ={}, config=toml('[aliases]\n"gpt-4o" = "qwen:7b"\n"*" = "small"'))
    assert settings.aliases == {"gpt-4o": "qwen:7b", "*": "small"}


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("[models.a]\nctx_sise = 5", r"models\.a\.ctx_sise = 5: unknown key; did you mean ctx_size\?"),
        ('[models.a]\nctx_size = "many"', r"models\.a\.ctx_size = 'many': must be a whole number"),
        ("[models.a]\nload = 1", r"models\.a\.load = 1: must be true or false"),
        ("[models.a]\nport = 1", r"models\.a\.port = 1: unknown key"),
        ("[models.a]\nbatch_size = 4", r"\[models\.a\]: engine\.batch_size: 4 is less than engine\.parallel"),
        ("[aliases]\nx = 1", r"aliases\.x = 1: must be the name of a model"),
        ('aliases = "x"', r"aliases = 'x': must be a table of names"),
    ],
)
def test_a_wrong_table_is_reported_with_its_place(toml, text, reason):
    assert re.search(reason, refusal(config=toml(text)))


def test_options_can_be_loaded_again_from_where_they_came(toml):
    path = toml("[engine]\nparallel = 3")
    settings = load({"engine_threads": 2}, environ={}, config=path)
    path.write_text("[engine]\nparallel = 4\nthreads = 9")
    again = config.load_again(settings)
    assert (again.engine.parallel, again.engine.threads) == (4, 2)


def test_several_addresses_are_listened_on():
    """An address of IPv6 goes into brackets; gunicorn took its last part for a port that is missing."""
    settings = settings_with(server_host="127.0.0.1,::1,/run/l.sock", server_port=80)
    assert settings.addresses == ["127.0.0.1:80", "[::1]:80", "unix:/run/l.sock"]


def test_a_model_of_the_hub_is_named_like_a_file(toml):
    model = load({"model_path": "hf:owner/repo:Q4_K_M"}, environ={}).model
    assert (model.path, model.hf_repo) == (None, "owner/repo:Q4_K_M")
    settings = load({}, environ={}, config=toml('[models.mine]\npath = "hf:owner/repo"'))
    assert settings.of(settings.tables[0]).model.hf_repo == "owner/repo"
