"""prometheus.yml, alerts.yml and grafana.json: what they ask for is there."""

from __future__ import annotations

import json
import re

import pytest
from faults.front import CONF
from prometheus_client.parser import text_string_to_metric_families
from serving import RunningService

from llamasrv.domain.key import Key
from llamasrv.web.service import WebOptions

yaml = pytest.importorskip("yaml")

HELLO = {"messages": [{"role": "user", "content": "Hello"}]}
FUNCTIONS = {
    "abs", "by", "changes", "clamp_min", "group_left", "histogram_quantile", "increase", "max", "min", "on", "rate",
    "sum", "up", "instance", "job", "model", "key", "le", "route", "status", "code", "reason", "part",
}  # fmt: skip


@pytest.fixture(scope="module")
def samples():
    """The names of /metrics after some traffic, with their labels."""
    key = Key("ann", Key.of("ann", "secret").digest)
    running = RunningService(web=WebOptions(keys=(key,)))
    for path in ("/v1/chat/completions", "/nope"):
        running.client.post(path, json=HELLO, headers={"X-Api-Key": "secret"})
    text = running.client.get("/metrics", headers={"X-Api-Key": "secret"}).get_data(as_text=True)
    running.close()
    found: dict[str, set[str]] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            found.setdefault(sample.name, {"instance", "job"}).update(sample.labels)
    return found


def expressions():
    for group in yaml.safe_load((CONF / "alerts.yml").read_text())["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    for panel in json.loads((CONF / "grafana.json").read_text())["panels"]:
        for target in panel["targets"]:
            yield panel["title"], target["expr"]


@pytest.mark.parametrize("where, expression", list(expressions()))
def test_every_metric_that_is_asked_for_exists_with_its_labels(samples, where, expression):
    bare = re.sub(r'"[^"]*"', '""', expression)
    names = set(re.findall(r"[a-z_][a-z_:]*(?![a-z_]*\()", re.sub(r"\[[^]]*\]|\{[^}]*\}|\$\w+", " ", bare)))
    asked = {name for name in names if name not in FUNCTIONS}
    assert asked or "up" in names
    assert asked <= set(samples), where
    for name, selector in re.findall(r"(\w+)\{([^}]*)\}", bare):
        labels = set(re.findall(r"(\w+)=~?", selector))
        assert name == "up" or labels <= samples[name], (where, name)
    for grouped in re.findall(r"by \(([^)]*)\)", bare):
        labels = {label.strip() for label in grouped.split(",")}
        assert all(labels <= samples[name] for name in asked), (where, labels)
    assert expression.count("(") == expression.count(")")


def test_every_alert_says_what_to_look_at():
    rules = [rule for group in yaml.safe_load((CONF / "alerts.yml").read_text())["groups"] for rule in group["rules"]]
    assert len(rules) >= 8
    for rule in rules:
        assert rule["annotations"]["summary"] and rule["annotations"]["description"] and rule["labels"]["severity"]


def test_prometheus_scrapes_and_reads_the_alerts():
    document = yaml.safe_load((CONF / "prometheus.yml").read_text())
    assert document["rule_files"] == ["alerts.yml"]
    assert document["scrape_configs"][0]["job_name"] == "llamasrv"


def test_no_panel_lies_on_another():
    taken = set()
    for panel in json.loads((CONF / "grafana.json").read_text())["panels"]:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken and at["x"] + at["w"] <= 24, panel["title"]
        taken |= cells
