"""Real models side by side: a chat model, an embedding model and a larger one, with memory for two of them."""

from __future__ import annotations

import json
import random
import re
import signal
import threading
import urllib.error
import urllib.request

import pytest
import tiny_models

pytestmark = pytest.mark.processes  # `tox -e processes`

NUM_REQUESTS, NUM_CLIENTS = 200, 8


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("several")
    return {
        "chat": tiny_models.llama(folder / "chat.gguf"),
        "embed": tiny_models.bert(folder / "embed.gguf"),
        "large": tiny_models.llama(folder / "large.gguf", layers=24),
    }


def post(server, path, body, timeout=60):
    request = urllib.request.Request(server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return answer.read()


def get(server, path):
    with urllib.request.urlopen(server.url + path, timeout=60) as answer:
        return answer.read().decode()


def figures(server, name):
    return {
        model: float(v) for model, v in re.findall(rf'^{name}{{model="(\w+)"}} (\S+)$', get(server, "/metrics"), re.M)
    }


def resident(server):
    """Bytes of real memory that the worker holds."""
    master = server.process.pid
    (worker,) = open(f"/proc/{master}/task/{master}/children").read().split()
    return int(re.search(r"VmRSS:\s+(\d+) kB", open(f"/proc/{worker}/status").read())[1]) * 1024


def write(path, files, limit, more=""):
    cells = {"large": 32768}
    tables = "".join(
        f'[models.{name}]\npath = "{file}"\nctx_size = {cells.get(name, 2048)}\nparallel = 4\n'
        for name, file in files.items()
    )
    path.write_text(f'[models]\nmemory = "{limit}B"\n{tables}{more}')
    return path


def needs(server):
    return {m["id"]: m for m in json.loads(get(server, "/models"))["data"]}


ASK = {
    "chat": ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 8}),
    "embed": ("/v1/embeddings", {"input": "some text"}),
    "large": ("/v1/completions", {"prompt": "Once", "max_tokens": 8, "stream": True}),
}


def test_200_mixed_requests_with_memory_for_two(serve, files, tmp_path):
    """All requests are answered; loads and unloads are counted; in the end the process holds as much as estimated."""
    from llamasrv import config
    from llamasrv.startup import model_list

    path = write(tmp_path / "c.toml", files, 2**40)
    size = {m.name: m.memory for m in model_list.models(config.load(environ={}, config=path))}
    limit = size["large"] + max(size["chat"], size["embed"]) + 2**20
    assert limit < sum(size.values())
    server = serve("--config", write(path, files, limit), "--no-log-requests", "--no-check-models", "--threads", "1")
    for name in ("chat", "embed", "large"):  # what is made once for all is made now
        post(server, ASK[name][0], {"model": name, **ASK[name][1]})
    warm = resident(server) - sum(size[name] for name, on in figures(server, "llamasrv_model_loaded").items() if on)
    names = random.Random(1).choices(list(ASK), [2, 2, 1], k=NUM_REQUESTS)
    failed = []

    def client():
        while names:
            try:
                name = names.pop()
                answer = post(server, ASK[name][0], {"model": name, **ASK[name][1]})
                assert b"error" not in answer and (name != "large" or answer.endswith(b"data: [DONE]\n\n"))
            except IndexError:
                return
            except Exception as error:
                failed.append((name, error))

    clients = [threading.Thread(target=client) for _ in range(NUM_CLIENTS)]
    for one in clients:
        one.start()
    for one in clients:
        one.join(110)
    assert not failed and not names
    post(server, ASK["large"][0], {"model": "large", **ASK["large"][1]})  # beside which nothing else counts much
    loads, unloads = figures(server, "llamasrv_model_loads_total"), figures(server, "llamasrv_model_unloads_total")
    loaded = figures(server, "llamasrv_model_loaded")
    assert all(loads[name] - unloads[name] == loaded[name] for name in ASK)
    assert sum(loads.values()) > 3 and 0 < sum(loaded.values()) <= 2
    assert sum(figures(server, "llamasrv_model_memory_bytes").values()) <= limit
    estimate = warm + sum(size[name] for name in ASK if loaded[name])
    print(f"{sum(loads.values()):.0f} loads; {resident(server) >> 20} MiB, by estimate {estimate / 2**20:.0f} MiB")
    assert 0.9 * estimate <= resident(server) <= 1.1 * estimate, (resident(server), estimate)


def test_sighup_does_not_disturb_running_requests(serve, files, tmp_path):
    path = write(tmp_path / "c.toml", {"chat": files["chat"]}, 0)
    server = serve("--config", path, "--no-check-models", "--threads", "1")
    request = urllib.request.Request(
        server.url + "/v1/completions",
        json.dumps({"prompt": "Once", "max_tokens": 500, "stream": True, "ignore_eos": True}).encode(),
        {"Content-Type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        stream.readline()
        write(path, {"chat": files["chat"], "embed": files["embed"]}, 0, '[aliases]\n"gpt-4o" = "chat"\n')
        server.signal(signal.SIGHUP)
        server.wait_for("configuration reloaded; models: chat, embed")
        assert b"data: [DONE]" in stream.read()
    assert json.loads(post(server, *_named("embed", "embed")))["data"]
    assert json.loads(post(server, *_named("gpt-4o", "chat")))["model"] == "chat"
    assert figures(server, "llamasrv_model_loads_total")["chat"] == 1
    path.write_text("[models]\nnonsense = 1")
    server.signal(signal.SIGHUP)
    server.wait_for("keeping the old one: .*nonsense")
    assert json.loads(post(server, *_named("gpt-4o", "chat")))["model"] == "chat"
    write(path, {"embed": files["embed"], "large": files["large"]}, 0)  # of several, none answers to any name
    server.signal(signal.SIGHUP)
    server.wait_for("chat is unloaded")
    with pytest.raises(urllib.error.HTTPError, match="404"):
        post(server, *_named("chat", "chat"))


def _named(model, kind):
    path, body = ASK[kind]
    return path, {"model": model, **body}


def test_a_file_that_aborts_the_library_takes_no_other_model_down(serve, files, tmp_path):
    """Its header is valid, so it is listed; the trial in another process finds the fault."""
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "good.gguf").write_bytes(files["chat"].read_bytes())
    data = bytearray(files["chat"].read_bytes())
    key = b"llama.attention.head_count"
    at = data.index(key) + len(key) + 4
    data[at : at + 4] = bytes(4)
    (folder / "bad.gguf").write_bytes(data)
    server = serve("--models-dir", folder, "--threads", "1", environ={"XDG_CACHE_HOME": str(tmp_path)})
    server.wait_for("serves on demand")
    with pytest.raises(urllib.error.HTTPError) as caught:
        post(server, *_named("bad", "chat"))
    assert caught.value.code == 503 and b"could not be loaded" in caught.value.read()
    assert json.loads(post(server, *_named("good", "chat")))["model"] == "good"
    marks = (tmp_path / "llamasrv/loaded").read_text().splitlines()
    assert sum(mark.startswith("sha256:") for mark in marks) == 1
