"""Nothing that one client sends stops another: hostile requests of every kind beside streams. `tox -e soak` sends 2,000."""

from __future__ import annotations

import pytest
from clients.talk import figure
from faults.beside_streams import KINDS, run
from faults.front import worker_of

pytestmark = pytest.mark.processes  # `tox -e processes`


def test_hostile_requests_stop_no_stream_and_no_worker(serve, tmp_path):
    (tmp_path / "models").mkdir()
    server = serve(
        "--no-log-requests",
        "--body-timeout",
        "2",
        "--files",
        str(tmp_path / "files"),
        "--models-manage",
        "--models-dir",
        str(tmp_path / "models"),
    )
    assert server.url
    worker = worker_of(server)
    outcome = run(server.address, len(KINDS), seed=1)
    assert not outcome.failures and not outcome.broken and outcome.streams > 0
    assert worker_of(server) == worker and figure(server, "llamasrv_restarts_total") == 0
    assert "Traceback" not in server.log
