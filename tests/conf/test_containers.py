"""Container files, compose and Kubernetes manifests: as their tools and schemas want them, and true to the server.

No image is built and no cluster is there: what is checked is what is written. Where a tool is missing its tests skip.
"""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from faults.front import CONF
from serving import RunningService

from llamasrv.config import OPTIONS, load
from llamasrv.domain.key import Key
from llamasrv.web.service import WebOptions

yaml = pytest.importorskip("yaml")

IMAGES = ("Containerfile", "Containerfile.cuda")
HADOLINT = shutil.which("hadolint") or shutil.which("hadolint", path=str(Path(sys.executable).parent))


def installed(module):
    reason = f"{module} is not installed"
    return pytest.mark.skipif(importlib.util.find_spec(module) is None, reason=reason)


def compose():
    return yaml.safe_load((CONF / "compose.yml").read_text())


def manifests():
    return {one["kind"]: one for one in yaml.safe_load_all((CONF / "kubernetes.yml").read_text())}


def pod():
    return manifests()["Deployment"]["spec"]["template"]["spec"]


@pytest.fixture
def settings(tmp_path):
    """What the configuration in the cluster says."""
    path = tmp_path / "llamasrv.toml"
    path.write_text(manifests()["ConfigMap"]["data"]["llamasrv.toml"])
    return load(config=path, environ={})


# Tools and schemas


@pytest.mark.skipif(HADOLINT is None, reason="hadolint is not installed")
@pytest.mark.parametrize("name", IMAGES)
def test_a_container_file_passes_the_linter(name):
    done = subprocess.run(
        [HADOLINT, "--failure-threshold", "info", CONF / name], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stdout + done.stderr


@installed("check_jsonschema")
def test_compose_has_the_shape_of_its_schema():
    command = [
        sys.executable,
        "-m",
        "check_jsonschema",
        "--builtin-schema",
        "vendor.compose-spec",
        CONF / "compose.yml",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@installed("kubernetes_validate")
@pytest.mark.parametrize("kind", sorted(manifests()))
def test_a_manifest_has_the_shape_of_its_schema(kind):
    import kubernetes_validate

    kubernetes_validate.validate(manifests()[kind], kubernetes_validate.latest_version(), strict=True)


# What they say of the server


@pytest.mark.parametrize("name", IMAGES)
def test_an_image_is_made_of_what_is_there_and_runs_without_rights(name):
    text = (CONF / name).read_text().replace("\\\n", " ")
    for line in re.findall(r"^COPY (?!--from)(.*)$", text, re.MULTILINE):
        for source in line.split()[:-1]:
            assert (CONF.parent / source).exists(), source
    stage = text.rpartition("\nFROM ")[2]
    assert re.search(r"^USER 10001:10001$", stage, re.MULTILINE) and '"/models"' in stage
    assert re.search(r"^HEALTHCHECK .*health\.py", stage, re.MULTILINE) and "\nEXPOSE 8080" in stage
    assert text.index("ARG CMAKE_ARGS") < text.index("pip install")
    flags = re.findall(r'"(--[\w-]+)"', stage)
    assert flags and set(flags) <= {flag for option in OPTIONS for flag in option.flags}


def test_the_services_find_each_other_where_the_shipped_files_say():
    services = compose()["services"]
    assert set(services) == {"llamasrv", "nginx", "prometheus", "grafana"}
    assert all(services[name]["network_mode"] == "service:llamasrv" for name in ("nginx", "prometheus", "grafana"))
    assert "server 127.0.0.1:8080" in (CONF / "nginx.conf").read_text()
    assert "listen 8000" in (CONF / "nginx.conf").read_text()
    assert yaml.safe_load((CONF / "prometheus.yml").read_text())["scrape_configs"][0]["static_configs"][0][
        "targets"
    ] == ["127.0.0.1:8080"]
    assert all(port.startswith("127.0.0.1:") for port in services["llamasrv"]["ports"])
    for service in services.values():
        for volume in service["volumes"]:
            if volume.startswith("./"):
                assert (CONF / volume.partition(":")[0]).is_file(), volume
    for content in compose()["configs"].values():
        assert yaml.safe_load(content["content"])["apiVersion"] == 1


def test_a_pod_has_the_time_to_finish_its_answers(settings):
    (container,) = pod()["containers"]
    server, waits = settings.server, int(container["lifecycle"]["preStop"]["exec"]["command"][1])
    assert server.host == "0.0.0.0" and server.drain_timeout > 30
    assert pod()["terminationGracePeriodSeconds"] >= waits + server.drain_notice + server.drain_timeout + 10
    assert float(compose()["services"]["llamasrv"]["stop_grace_period"].removesuffix("s")) >= 30 + 10


def test_a_pod_runs_without_rights_and_reads_what_is_mounted(settings):
    (container,) = pod()["containers"]
    assert pod()["securityContext"]["runAsNonRoot"] and container["securityContext"]["readOnlyRootFilesystem"]
    assert container["securityContext"]["capabilities"]["drop"] == ["ALL"]
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    assert set(mounts) == {volume["name"] for volume in pod()["volumes"]}
    assert str(settings.models.dir) == mounts["models"]
    assert settings.server.api_key_file.parent == Path(mounts["keys"])


def test_one_replica_at_a_time_may_go_and_all_are_found():
    found = manifests()
    labels = found["Deployment"]["spec"]["template"]["metadata"]["labels"]
    assert found["Deployment"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["Service"]["spec"]["selector"].items() <= labels.items()
    assert found["PodDisruptionBudget"]["spec"]["selector"]["matchLabels"].items() <= labels.items()
    assert found["PodDisruptionBudget"]["spec"]["maxUnavailable"] == 1


# In front of them


@pytest.fixture(scope="module")
def running():
    service = RunningService()
    yield service
    service.close()


def of_the_gateway():
    return {one["kind"]: one for one in yaml.safe_load_all((CONF / "kubernetes-gateway.yml").read_text())}


def text(most, pattern="", least=1):
    return {"type": "string", "minLength": least, "maxLength": most, "pattern": pattern}


def listed(items, most, least=0):
    return {"type": "array", "items": items, "minItems": least, "maxItems": most, "uniqueItems": True}


def exactly(required="", **properties):
    wanted = {"type": "object", "properties": properties, "additionalProperties": False}
    return {**wanted, "required": required.split()}


DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$"
NAME = text(253)
REFERENCE = {
    "group": text(253, "^$|^" + DOMAIN, 0),
    "kind": text(63, "^[a-zA-Z]([-a-zA-Z0-9]*[a-zA-Z0-9])?$"),
    "name": NAME,
}
PORT = exactly("number", number={"type": "integer", "minimum": 1, "maximum": 65535})
LABELS = {
    "type": "object",
    "additionalProperties": text(63, "^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$", 0),
}
# What these kinds allow, as far as the files have a use for it.
SPECS = {
    # The Inference Extension's v1, with its rule that a service as the picker has a port.
    ("inference.networking.k8s.io/v1", "InferencePool"): exactly(
        "selector targetPorts endpointPickerRef",
        selector=exactly("matchLabels", matchLabels=LABELS),
        targetPorts=listed(PORT, 8, 1),
        endpointPickerRef=exactly("name port", **REFERENCE, port=PORT, failureMode={"enum": ["FailOpen", "FailClose"]}),
    ),
    # The Gateway API's v1, with its rules for paths.
    ("gateway.networking.k8s.io/v1", "HTTPRoute"): exactly(
        "parentRefs rules",
        parentRefs=listed(exactly("name", name=NAME, namespace=text(63), sectionName=NAME), 32),
        hostnames=listed(text(253, r"^(\*\.)?" + DOMAIN), 16),
        rules=listed(
            exactly(
                "backendRefs",
                matches=listed(
                    exactly(
                        path=exactly(
                            "type value",
                            type={"enum": ["Exact", "PathPrefix"]},
                            value=text(1024, r"^/(?!.*(//|/\.\.?(/|$)|%2[fF]|#))"),
                        )
                    ),
                    64,
                ),
                backendRefs=listed(exactly("name", **REFERENCE), 16),
                timeouts=exactly(request=text(30, r"^([0-9]{1,5}(h|m|s|ms)){1,4}$")),
            ),
            16,
            1,
        ),
    ),
    # KEDA's v1alpha1; what kinds of metrics there are is the autoscaler's.
    ("keda.sh/v1alpha1", "ScaledObject"): exactly(
        "scaleTargetRef triggers",
        scaleTargetRef=exactly("name", name=NAME),
        minReplicaCount={"type": "integer"},
        maxReplicaCount={"type": "integer"},
        cooldownPeriod={"type": "integer"},
        triggers=listed(
            exactly(
                "type metadata",
                type=text(63),
                metricType={"enum": ["Value", "AverageValue", "Utilization"]},
                metadata={"type": "object", "additionalProperties": {"type": "string"}},
            ),
            100,
            1,
        ),
    ),
}


@installed("kubernetes_validate")
@pytest.mark.parametrize("kind", sorted(of_the_gateway()))
def test_what_is_in_front_has_the_shape_of_its_schema(kind):
    import jsonschema
    import kubernetes_validate

    one = of_the_gateway()[kind]
    spec = SPECS.get((one["apiVersion"], kind))
    if spec is None:
        kubernetes_validate.validate(one, kubernetes_validate.latest_version(), strict=True)
    else:
        assert set(one) == {"apiVersion", "kind", "metadata", "spec"}
        jsonschema.validate(one["spec"], spec)


FAULTS = {
    "a picker without a port": ("InferencePool", lambda spec: spec["endpointPickerRef"].pop("port")),
    "a port twice": ("InferencePool", lambda spec: spec["targetPorts"].append(spec["targetPorts"][0])),
    "the old selector": ("InferencePool", lambda spec: spec.update(selector=spec["selector"]["matchLabels"])),
    "an ingress's path": ("HTTPRoute", lambda spec: spec["rules"][0]["matches"][0]["path"].update(type="Prefix")),
    "a path that is none": ("HTTPRoute", lambda spec: spec["rules"][0]["matches"][0]["path"].update(value="v1//x")),
    "a host with capitals": ("HTTPRoute", lambda spec: spec["hostnames"].append("LLM.example.com")),
    "a number as a time": ("HTTPRoute", lambda spec: spec["rules"][0]["timeouts"].update(request=0)),
    "a threshold that is no text": ("ScaledObject", lambda spec: spec["triggers"][0]["metadata"].update(threshold=1)),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_what_is_in_front_is_seen(fault):
    jsonschema = pytest.importorskip("jsonschema")
    kind, break_it = FAULTS[fault]
    one = of_the_gateway()[kind]
    break_it(one["spec"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(one["spec"], SPECS[one["apiVersion"], kind])


def test_the_pool_finds_the_pods_and_its_paths_are_of_the_api(running):
    front, behind = of_the_gateway(), manifests()
    labels = behind["Deployment"]["spec"]["template"]["metadata"]["labels"]
    for kind, selector in (("InferencePool", "selector"), ("NetworkPolicy", "podSelector")):
        assert front[kind]["spec"][selector]["matchLabels"].items() <= labels.items()
    (container,) = pod()["containers"]
    assert front["InferencePool"]["spec"]["targetPorts"] == [{"number": container["ports"][0]["containerPort"]}]
    assert front["ScaledObject"]["spec"]["scaleTargetRef"]["name"] == behind["Deployment"]["metadata"]["name"]
    (rule,) = front["HTTPRoute"]["spec"]["rules"]
    assert rule["backendRefs"][0]["name"] == front["InferencePool"]["metadata"]["name"]
    routes = [one.rule for one in running.app.url_map.iter_rules()]
    for match in rule["matches"]:
        assert any(route.startswith(match["path"]["value"]) for route in routes)


def test_the_picker_and_the_autoscaler_name_gauges_of_a_server(running):
    kinds = {
        path: dict(re.findall(r"^# TYPE (\S+) (\w+)$", running.client.get(path).get_data(as_text=True), re.MULTILINE))
        for path in ("/metrics", "/metrics/load")
    }
    query = of_the_gateway()["ScaledObject"]["spec"]["triggers"][0]["metadata"]["query"]
    names = re.findall(r"llamasrv_\w+", query)
    assert len(names) == 3 and all(kinds["/metrics"][name] == "gauge" for name in names)
    values = yaml.safe_load((CONF / "kubernetes-picker.yml").read_text())["inferenceExtension"]
    picker = yaml.safe_load(values["pluginsCustomConfig"][values["pluginsConfigFile"]])
    parameters = {one["type"]: one.get("parameters") for one in picker["plugins"]}
    engine = parameters["core-metrics-extractor"]["engineConfigs"][0]
    label = manifests()["Deployment"]["spec"]["template"]["metadata"]["labels"]["llm-d.ai/engine-type"]
    assert engine.pop("name") == label and len(engine) == 4
    for name in engine.values():
        assert kinds[parameters["metrics-data-source"]["path"]][name] == "gauge"
    used = {one["pluginRef"] for profile in picker["schedulingProfiles"] for one in profile["plugins"]}
    assert used <= set(parameters)


@pytest.mark.parametrize("keys", [False, True])
def test_the_health_check_tells_whether_the_server_is_ready(keys, tmp_path):
    key = Key("probe", Key.of("probe", "secret").digest)
    running = RunningService(web=WebOptions(keys=(key,) if keys else ()))
    (tmp_path / "key").write_text("secret\n")

    def check(**environ):
        command = [sys.executable, CONF / "health.py"]
        environ = {**os.environ, "PORT": str(port), **environ}
        return subprocess.run(command, env=environ, capture_output=True, text=True, timeout=30)

    from threading import Thread
    from wsgiref.simple_server import WSGIRequestHandler, make_server

    class Quiet(WSGIRequestHandler):
        def log_message(self, *arguments):
            pass

    server = make_server("127.0.0.1", 0, running.app, handler_class=Quiet)
    port = server.server_port
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        assert check(KEY_FILE=str(tmp_path / "key")).returncode == 0
        if keys:
            refused = check()
            assert refused.returncode == 1 and "not ready: HTTP Error 401" in refused.stderr
    finally:
        server.shutdown()
        server.server_close()
        running.close()
    assert check().returncode == 1
