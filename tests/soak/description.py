"""Requests made up from /openapi.json: what the description allows, and what it does not.

Never a 5xx, never a hang, and every answer is of a status and a kind that the description names.
"""

from __future__ import annotations

import pytest

schemathesis = pytest.importorskip("schemathesis")

from clients.conftest import wait_until_ready  # noqa: E402
from clients.talk import figure, post  # noqa: E402
from conftest import ServerProcess  # noqa: E402
from hypothesis import HealthCheck, Phase, settings  # noqa: E402
from schemathesis.checks import not_a_server_error  # noqa: E402
from schemathesis.specs.openapi.checks import (  # noqa: E402
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)
from serving import RunningService  # noqa: E402


def description():
    running = RunningService()
    try:
        return running.client.get("/openapi.json").get_json()
    finally:
        running.close()


schema = schemathesis.openapi.from_dict(description())
# Those that never end, or that end the server's usefulness for the other tests.
schema = schema.exclude(path_regex="stream|/models/(load|unload|sse)|/api/(pull|delete|copy|create|push)|^/debug$")
CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]


@pytest.fixture(scope="module")
def target():
    options = ("--no-log-requests", "--props", "--max-answer-tokens", "8", "--timeout", "5")
    server = ServerProcess(["--port", "0", "--fake", *options])
    yield wait_until_ready(server)
    alive = post(server, "/v1/completions", {"prompt": "Hello", "max_tokens": 2})
    assert alive[0] == 200
    assert figure(server, "llamasrv_restarts_total") == 0 and "Traceback" not in server.log
    server.end()


@schema.parametrize()
@settings(
    max_examples=4,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
def test_an_operation_answers_as_it_is_described(case, target):
    case.call_and_validate(base_url=target.url, timeout=30, checks=CHECKS)
