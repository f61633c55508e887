"""Plain sockets and figures: what an SDK hides."""

from __future__ import annotations

import http.client
import json
import os
import socket
import time
import urllib.request
from pathlib import Path


def post(server, path, body, *, timeout=30):
    """(status, headers, body) of one request on a connection of its own. `body` is JSON or bytes as they are."""
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    connection = http.client.HTTPConnection(*server.address, timeout=timeout)
    try:
        connection.request("POST", path, data, {"Content-Type": "application/json"})
        reply = connection.getresponse()
        return reply.status, dict(reply.getheaders()), reply.read()
    finally:
        connection.close()


def open_request(server, path, body):
    """A socket on which this request was sent, and nothing read yet."""
    data = json.dumps(body).encode()
    sock = socket.create_connection(server.address, timeout=30)
    sock.sendall(b"POST %b HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%b" % (path.encode(), len(data), data))
    return sock


def figure(server, name, **labels):
    """One of the metrics."""
    with urllib.request.urlopen(server.url + "/metrics", timeout=10) as reply:
        for line in reply.read().decode().splitlines():
            if line.startswith(name + "{") and all(f'{k}="{v}"' in line for k, v in labels.items()):
                return float(line.rpartition(" ")[2])
    return 0.0


def cpu_seconds(server):
    """Processor time that the server's processes have taken so far: other than a wall clock, it does not depend on what
    else the machine is doing. In steps of 10 ms."""
    pid = server.process.pid
    pids = [pid, *map(int, Path(f"/proc/{pid}/task/{pid}/children").read_text().split())]
    fields = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
    return sum(int(times[11]) + int(times[12]) for times in fields) / os.sysconf("SC_CLK_TCK")


def is_running(pid):
    """A zombie, which is its new parent's to bury, runs no more."""
    try:
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False


def wait_for(condition, timeout=60.0):
    end = time.monotonic() + timeout
    while not (found := condition()):
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.01)
    return found
