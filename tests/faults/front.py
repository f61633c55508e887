"""nginx in front of servers, with the file that ships, and raw HTTP over sockets."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

import pytest

CONF = Path(__file__).resolve().parents[2] / "conf"
NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class Nginx:
    """conf/nginx.conf with other ports, in a folder of its own. `address` is where it listens."""

    def __init__(self, folder, addresses, edit=lambda text: text):
        if NGINX is None:
            pytest.skip("there is no nginx on this machine")
        self.address = ("127.0.0.1", free_port())
        self.folder = folder
        text = (CONF / "nginx.conf").read_text()
        rest = "max_fails=1 fail_timeout=2s max_conns=128;"
        servers = "".join(f"server {host}:{port} {rest}\n" for host, port in addresses)
        temporary = "".join(
            f"{name}_temp_path {folder}/{name};\n" for name in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
        )
        for old, new in (
            (f"server 127.0.0.1:8080 {rest}", servers),
            ("listen 8000", f"listen 127.0.0.1:{self.address[1]}"),
            ("pid /run/nginx.pid;", f"pid {folder}/nginx.pid;"),
            ("worker_processes auto;", "worker_processes 1;"),
            ("worker_rlimit_nofile 65536;", "worker_rlimit_nofile 8192;"),
            ("error_log stderr warn;", f"error_log {folder}/error.log warn;"),
            ("access_log off;", f"access_log {folder}/access.log llamasrv;\n{temporary}"),
        ):
            assert old in text, old
            text = text.replace(old, new)
        # Its workers would be somebody else, who may not write to this folder.
        user = f" user {pwd.getpwuid(0).pw_name};" if os.geteuid() == 0 else ""
        file = folder / "nginx.conf"
        file.write_text(edit(text.replace("    access_log /var", "    # access_log /var")))
        self.process = subprocess.Popen(
            [NGINX, "-c", str(file), "-e", f"{folder}/error.log", "-g", f"daemon off;{user}"], stdin=subprocess.DEVNULL
        )
        end = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(self.address, timeout=1).close()
                break
            except OSError:
                assert self.process.poll() is None and time.monotonic() < end, (folder / "error.log").read_text()
                time.sleep(0.02)

    @property
    def url(self):
        return f"http://{self.address[0]}:{self.address[1]}"

    def requests(self):
        """Lines of its access log."""
        self.process.send_signal(signal.SIGUSR1)
        return (self.folder / "access.log").read_text().splitlines()

    def end(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(10)


def worker_of(server):
    """The process id of a server's worker."""
    pid = server.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return int(children[0]) if children else None


def talk(address, *pieces, timeout=10.0, half_close=False):
    """Send these bytes on a connection of its own, and read until the other side closes or says no more."""
    with socket.create_connection(address, timeout=timeout) as sock:
        try:
            for piece in pieces:
                sock.sendall(piece)
            if half_close:
                sock.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # it has heard enough
        data = b""
        try:
            while piece := sock.recv(65536):
                data += piece
        except ConnectionResetError:
            pass
        return data


def request(path, body=b"", *, method="POST", headers=(), version="1.1", host="localhost"):
    """The bytes of one request, whose connection is closed after it."""
    lines = [f"{method} {path} HTTP/{version}", f"Host: {host}", "Connection: close", *headers]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body


def status_of(reply):
    return int(reply.split(b" ", 2)[1]) if reply.startswith(b"HTTP/") else None


def body_of(reply):
    return reply.partition(b"\r\n\r\n")[2]


def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid):
    """Bytes of memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def allocated(pid):
    """The same without what is mapped from files, whose pages come and go with their use."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("RssAnon:")[2].split()[0]) * 1024
