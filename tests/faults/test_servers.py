"""Servers that others can reach: idle and slow connections, foreign host names, private files."""

from __future__ import annotations

import http.client
import re
import resource
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from lengths import AT_LENGTH
from tasks import cbmi, environment, refused, write_run, write_task

IDLE = 2000 if AT_LENGTH else 1200

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("servers")
    write_task(folder, train=40, valid=4)
    stages = [{"name": "ce", "language_model": "train", "steps": 4}]
    assert cbmi("train", write_run(folder, stages=stages)).returncode == 0
    command = ["humaneval", "create", "--source", folder / "test.src", "--sample", "3"]
    systems = ["--system", f"a={folder / 'test.tgt'}", "--system", f"b={folder / 'test.src'}"]
    result = cbmi(*command, *systems, "-o", folder / "study")
    assert result.returncode == 0, result.stderr.decode()
    return folder


@pytest.fixture(params=["serve", "humaneval"])
def server(folder, request, tmp_path) -> Iterator[tuple[int, Path]]:
    """The port of a running server, and the file with what it says."""
    said = tmp_path / "said.txt"
    if request.param == "serve":
        command = ["serve", str(folder / "run"), "--port", "0", "--no-open"]
    else:
        command = ["humaneval", "serve", str(folder / "study"), "--port", "0"]
    with open(said, "wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "cbmi", *command],
            env=environment(),
            stdout=output,
            stderr=output,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (1024, 1024)),
        )
    try:
        yield port_in(said), said
    finally:
        process.terminate()
        process.wait(30)


def port_in(said: Path) -> int:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        found = re.search(r"http://[^/:\s]+:(\d+)", said.read_text())
        if found:
            return int(found.group(1))
        time.sleep(0.1)
    raise AssertionError(said.read_text())


def health(port: int, host: str = "127.0.0.1") -> int:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request("GET", "/health", headers={"Host": host})
        return connection.getresponse().status
    finally:
        connection.close()


def test_idle_and_slow_connections_do_not_stop_a_server(server):
    port, said = server
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(hard, IDLE + 200)), hard))
    idle = []
    try:
        for number in range(IDLE):
            one = socket.create_connection(("127.0.0.1", port), timeout=20)
            if number % 2:
                one.sendall(b"GET /health HTTP/1.1\r\nHost: 127")  # and no more
            idle.append(one)
            if number % 400 == 0:
                assert health(port) == 200, number
        assert health(port) == 200
        assert len(said.read_bytes()) < 20_000
    finally:
        for one in idle:
            one.close()
    assert health(port) == 200


def test_foreign_host_names_are_refused(server):
    port, _ = server
    assert health(port, "localhost") == 200
    assert health(port, "evil.example") == 421


def test_a_study_is_its_owners_alone(folder):
    assert stat.S_IMODE((folder / "study").stat().st_mode) == 0o700
    assert stat.S_IMODE((folder / "study" / "study.db").stat().st_mode) == 0o600


def test_no_host_is_refused(folder):
    message = refused("serve", folder / "run", "--host", "", "--port", "0", "--no-open")
    assert "--host: name an address to listen on" in message


def test_on_a_network_addresses_and_own_names_are_allowed():
    from cbmi.serving.web import allowed_hosts

    hosts = allowed_hosts("0.0.0.0")
    assert hosts.allow("192.168.1.5")
    assert hosts.allow(socket.gethostname().lower())
    assert not hosts.allow("evil.example")
    assert not allowed_hosts("127.0.0.1").allow("192.168.1.5")
