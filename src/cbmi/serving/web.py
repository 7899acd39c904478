"""What all servers share: JSON with limits, headers, errors in one sentence, and uvicorn."""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import os
import resource
import socket
import sys
import threading
import time
import webbrowser
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute
from uvicorn.protocols.http.h11_impl import H11Protocol

from cbmi.errors import UserError
from cbmi.progress import say
from cbmi.reporting.pages import render_page
from cbmi.schema import sentence_of
from cbmi.signals import stop_signals

LARGEST_BODY = 256 * 1024  # bytes
PATIENCE = 30  # seconds that the body of a request may take
BACKLOG = 1024  # connections that wait to be accepted
REQUEST_PATIENCE = 10  # seconds that the first lines of a request may take
MOST_CONNECTIONS = 1000  # at a time; beyond that, the one that has been idle longest is closed
SPARE_FILES = 100  # file descriptors that are not for connections
LINES_PER_MINUTE = 20  # of errors that the terminal shows
ROUNDS_TO_READ = 10  # of the event loop: a connection is accepted, set up and read in three
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    # Links hold private tokens.
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
BodyType = TypeVar("BodyType", bound="Body")


class Body(BaseModel):
    """The JSON of a request. An unknown key is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


def media_type(request: Request) -> str:
    """What a request says that its body is."""
    return request.headers.get("content-type", "").split(";")[0].strip().lower()


async def read_body(request: Request, kind: type[BodyType]) -> BodyType:
    """The JSON of a request as a `kind`. Anything else raises an error of one sentence."""
    if media_type(request) != "application/json":
        raise HTTPException(415, "The request should be JSON, with Content-Type: application/json.")
    try:
        values = json.loads(await read_content(request))
    except (ValueError, RecursionError):
        raise HTTPException(400, "The request is not valid JSON in UTF-8.") from None
    return checked(kind, values)


def checked(kind: type[BodyType], values: Any) -> BodyType:
    """The values of a request as a `kind`."""
    try:
        return kind.model_validate(values)
    except ValidationError as error:
        raise HTTPException(422, f"{sentence_of(error)}.") from None


async def read_content(request: Request) -> bytes:
    """The body of a request, within limits of size and time."""
    content = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                content += chunk
                if len(content) > LARGEST_BODY:
                    raise HTTPException(413, f"The request is over {LARGEST_BODY:,} bytes.")
    except TimeoutError:
        raise HTTPException(408, f"The request was not complete after {PATIENCE} s.") from None
    return bytes(content)


class HostNames(NamedTuple):
    """The host names that a request may use.

    A page elsewhere can point its own name at this machine, but not a number.
    """

    names: frozenset[str]
    any_address: bool = False  # whether a request may use any IP address

    def allow(self, host: str) -> bool:
        return host in self.names or (self.any_address and _is_address(host))


def _is_address(host: str) -> bool:
    try:
        ipaddress.ip_address(host)
    except ValueError:
        return False
    return True


def application(routes: Sequence[BaseRoute], hosts: HostNames, lifespan: Any = None) -> Starlette:
    """An app with these routes that sends the headers in `SAFE` and answers errors as JSON.

    `lifespan`: as Starlette's.
    """
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, hosts=hosts)],
        exception_handlers={
            HTTPException: _error_response,
            ClientDisconnect: _nobody_reads,
            Exception: _server_error,
        },
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.stopping = lambda: False  # `serve` replaces it
    return app


async def _error_response(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, headers=error.headers)


async def _nobody_reads(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # the client has gone


async def _server_error(request: Request, error: Exception) -> Response:
    if _errors_shown.passes():
        say(f"{request.method} {request.url.path}: {type(error).__name__}: {error}")
    return JSONResponse({"error": "Internal server error; see the server's terminal."}, 500)


class _Guard:
    """Middleware that refuses foreign host names and adds the headers in `SAFE`.

    A foreign host name means that a page elsewhere has pointed its name at this machine.
    """

    def __init__(self, app: Any, hosts: HostNames) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if not self.hosts.allow(_host(scope)):
            response = JSONResponse(
                {"error": "This server does not answer to that host name."}, 421, headers=SAFE
            )
            await response(scope, receive, send)
            return

        async def send_with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                for key, value in SAFE.items():
                    message["headers"].append((key.lower().encode(), value.encode()))
            await send(message)

        await self.app(scope, receive, send_with_headers)


def _host(scope: Any) -> str:
    """The host name that a request uses, without port and without the brackets of IPv6."""
    headers: dict[bytes, bytes] = dict(scope["headers"])
    value = headers.get(b"host", b"").decode("latin-1").lower()
    if value.startswith("["):
        return value.partition("]")[0].lstrip("[")
    return value.partition(":")[0]


def page(name: str, view: Mapping[str, Any]) -> HTMLResponse:
    """A template of this package, filled in."""
    return HTMLResponse(render_page("cbmi.serving", name, view))


def allowed_hosts(host: str, more: Iterable[str] = ()) -> HostNames:
    """The host names that requests may use if the server listens on `host`.

    On a network these are the names that this machine knows itself by, and any IP address. `more`:
    further names, such as a proxy's.
    """
    further = {name.lower() for name in more}
    if host in LOOPBACK:
        return HostNames(frozenset({*LOOPBACK, *further}))
    own = {socket.gethostname().lower(), socket.getfqdn().lower()}
    own |= {f"{name.partition('.')[0]}.local" for name in own}
    return HostNames(frozenset({*LOOPBACK, *own, *further, host.lower()}), any_address=True)


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on. Port 0 takes a free one."""
    if not host.strip():
        raise UserError("--host: name an address to listen on, such as 127.0.0.1.")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)  # clients that come before the server is ready wait
    except OSError as error:
        sock.close()
        raise UserError(
            f"--host {host} --port {port}: cannot be served on: {error.strerror or error}."
        ) from None
    except OverflowError:
        sock.close()
        raise UserError(f"--port: {port} should be between 0 and 65535.") from None
    return sock


def address(sock: socket.socket) -> str:
    """The URL to open. A server that listens everywhere is named by this machine's name."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        host = socket.gethostname()
    elif ":" in host:  # IPv6
        host = f"[{host}]"
    return f"http://{host}:{port}"


def serve(app: Starlette, sock: socket.socket, show: str | None = None) -> None:
    """Serve until Ctrl-C, SIGTERM or SIGHUP. `show`: a URL to open in the browser."""
    _allow_many_files()
    limit = _LimitedLines()
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(limit)
    config = uvicorn.Config(
        app,
        http=_Connection,
        ws="none",
        # Below that level, every malformed request logs a line: anybody could fill the disk.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=3,
        backlog=BACKLOG,
    )
    server = _Server(config)
    app.state.stopping = lambda: server.should_exit
    if show is not None and _has_screen():
        with suppress(webbrowser.Error):
            webbrowser.open(show)

    def stop(*_: object) -> None:
        server.should_exit = True

    # uvicorn has handlers of its own for Ctrl-C and SIGTERM, but raises the signal again once it
    # has stopped. Here that does nothing, so that what surrounds the server is ended in order.
    with stop_signals(stop):
        server.run(sockets=[sock])


class _Server(uvicorn.Server):
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop, once every request that was sent before has been read: each gets an answer.

        A connection that is closed with unread data is reset, and its client learns nothing.
        """
        for _ in range(ROUNDS_TO_READ):
            await asyncio.sleep(0)
        await super().shutdown(sockets)


def _allow_many_files() -> None:
    """Raise this process's limit of open files as far as connections need it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST_CONNECTIONS + SPARE_FILES
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def _most_connections() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft == resource.RLIM_INFINITY:
        return MOST_CONNECTIONS
    return max(1, min(MOST_CONNECTIONS, soft - SPARE_FILES))


class _Connection(H11Protocol):
    """A connection. Those that send nothing, or too slowly, do not keep others out."""

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self.idle_since = self.loop.time()
        self.timer: asyncio.TimerHandle | None = None
        self._await_request()
        if len(self.connections) > _most_connections():
            self._make_room()

    def data_received(self, data: bytes) -> None:
        if self.is_idle():
            self._await_request()
        super().data_received(data)
        if not self.is_idle():
            self._stop_timer()
            self.idle_since = self.loop.time()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        super().connection_lost(exc)

    def is_idle(self) -> bool:
        """Whether no request of this connection is being answered."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _await_request(self) -> None:
        """Close the connection if the next request does not come in time."""
        if self.timer is None:
            self.timer = self.loop.call_later(REQUEST_PATIENCE, self._give_up)

    def _give_up(self) -> None:
        self.timer = None
        if self.is_idle():
            self.transport.abort()

    def _stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    def _make_room(self) -> None:
        """Close the connection that has been idle longest; this one, if all others are busy."""
        others = [one for one in self.connections if one is not self and _can_go(one)]
        oldest = min(others, key=_idle_since, default=self)
        oldest.transport.abort()


def _can_go(connection: Any) -> bool:
    """Whether it is idle, and not about to go anyway."""
    is_open = isinstance(connection, _Connection) and not connection.transport.is_closing()
    return is_open and connection.is_idle()


def _idle_since(connection: Any) -> float:
    return float(connection.idle_since)


class _LimitedLines(logging.Filter):
    """Lets a few lines a minute through: nobody can fill the disk with what a server says."""

    def __init__(self) -> None:
        super().__init__()
        self.lock = threading.Lock()
        self.minute = 0
        self.count = 0

    def filter(self, record: logging.LogRecord) -> bool:
        return self.passes()

    def passes(self) -> bool:
        with self.lock:
            minute = int(time.monotonic() // 60)
            if minute != self.minute:
                self.minute = minute
                self.count = 0
            self.count += 1
            return self.count <= LINES_PER_MINUTE


_errors_shown = _LimitedLines()


def _has_screen() -> bool:
    """Whether a browser with windows can be expected; one in the terminal would be in the way."""
    desktop = sys.platform in ("darwin", "win32")
    display = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return (desktop or display) and sys.stderr.isatty()
