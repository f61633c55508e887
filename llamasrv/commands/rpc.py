"""`llamasrv rpc`: computes layers for a server on another machine."""

from __future__ import annotations

import signal
import sys

from llamasrv.engine.base.machine import available_cores
from llamasrv.errors import ConfigError
from llamasrv.startup.model_options import check_rpc


def run(host: str, port: int, threads: int) -> int:
    check_rpc("rpc")
    from llamasrv.engine.backend import rpc as backend_rpc

    if host not in ("127.0.0.1", "localhost"):
        print(f"llamasrv: anyone who can reach {host}:{port} can use this machine without a key", file=sys.stderr)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # the library call never returns
    backend_rpc.serve(host, port, threads or available_cores())
    raise ConfigError(f"rpc: cannot listen on {host}:{port}")
