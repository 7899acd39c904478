"""Servers as people start them: processes of their own on a free port."""

from __future__ import annotations

import http.client
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from tasks import environment


@contextmanager
def server(*arguments: str | Path) -> Iterator[tuple[subprocess.Popen, list[str]]]:
    """The process of a command that serves, and the addresses that it has printed."""
    command = [sys.executable, "-m", "cbmi", *map(str, arguments), "--port", "0"]
    process = subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    try:
        said = []
        addresses = []
        while not (said and "press Ctrl-C to stop" in said[-1]):
            line = process.stdout.readline()
            assert line, "".join(said)
            said.append(line)
            addresses += re.findall(r"http://[\d.]+:\d+\S*", line)
        yield process, addresses
    finally:
        process.terminate()
        process.wait(20)
        process.stdout.close()


def ask(
    address: str, path: str, body: Any = None, headers: dict[str, str] | None = None
) -> tuple[int, Any]:
    """Status and JSON (otherwise text) of a GET, or of a POST if there is a body."""
    if body is not None:
        return answer_of(post(address, path, body, headers))
    connection = _connect(address)
    connection.request("GET", path, headers=headers or {})
    return answer_of(connection)


def post(
    address: str, path: str, body: Any, headers: dict[str, str] | None = None
) -> http.client.HTTPConnection:
    """A connection that has sent a POST, and waits for its answer."""
    connection = _connect(address)
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    all_headers = {"Content-Type": "application/json"} | (headers or {})
    connection.request("POST", path, content, all_headers)
    return connection


def _connect(address: str) -> http.client.HTTPConnection:
    parts = urlsplit(address)
    return http.client.HTTPConnection(parts.hostname, parts.port, timeout=60)


def answer_of(connection: http.client.HTTPConnection) -> tuple[int, Any]:
    """Status and JSON (otherwise text)."""
    try:
        answer = connection.getresponse()
        text = answer.read().decode()
    finally:
        connection.close()
    if answer.headers.get_content_type() == "application/json":
        return answer.status, json.loads(text)
    return answer.status, text
