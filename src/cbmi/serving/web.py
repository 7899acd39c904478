"""What all servers share: JSON with limits, headers, errors in one sentence, and uvicorn."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import webbrowser
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel, ConfigDict, ValidationError
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute

from cbmi.config import sentence_of
from cbmi.errors import UserError
from cbmi.progress import say
from cbmi.reporting.pages import render_page

LARGEST_BODY = 256 * 1024  # bytes
PATIENCE = 30  # seconds that the body of a request may take
BACKLOG = 1024  # connections that wait to be accepted
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


async def read_body(request: Request, kind: type[BodyType]) -> BodyType:
    """The JSON of a request as a `kind`. Anything else raises an error of one sentence."""
    media_type = request.headers.get("content-type", "").split(";")[0].strip().lower()
    if media_type != "application/json":
        raise HTTPException(415, "The request should be JSON, with Content-Type: application/json.")
    content = bytearray()
    try:
        async with asyncio.timeout(PATIENCE):
            async for chunk in request.stream():
                content += chunk
                if len(content) > LARGEST_BODY:
                    raise HTTPException(413, f"The request is over {LARGEST_BODY:,} bytes.")
    except TimeoutError:
        raise HTTPException(408, f"The request was not complete after {PATIENCE} s.") from None
    try:
        return kind.model_validate(json.loads(content))
    except ValidationError as error:
        raise HTTPException(422, f"{sentence_of(error)}.") from None
    except (ValueError, RecursionError):
        raise HTTPException(400, "The request is not valid JSON in UTF-8.") from None


def application(
    routes: Sequence[BaseRoute], hosts: tuple[str, ...] | None, lifespan: Any = None
) -> Starlette:
    """An app with these routes that sends the headers in `SAFE` and answers errors as JSON.

    `hosts`: the only host names that a request may use; None for any. `lifespan`: as Starlette's.
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
    say(f"{request.method} {request.url.path}: {type(error).__name__}: {error}")
    return JSONResponse({"error": "Internal server error; see the server's terminal."}, 500)


class _Guard:
    """Middleware that refuses foreign host names and adds the headers in `SAFE`.

    A foreign host name means that a page elsewhere has pointed its name at this machine.
    """

    def __init__(self, app: Any, hosts: tuple[str, ...] | None) -> None:
        self.app = app
        self.hosts = hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.hosts is not None and _host(scope) not in self.hosts:
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


def allowed_hosts(host: str) -> tuple[str, ...] | None:
    """The host names that requests may use if the server listens on `host`; None for any.

    On a network any name is allowed: the names that this machine has there are not known.
    """
    return LOOPBACK if host in LOOPBACK else None


def listen(host: str, port: int) -> socket.socket:
    """A socket to serve on. Port 0 takes a free one."""
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
    """Serve until Ctrl-C or SIGTERM. `show`: a URL to open in the browser."""
    config = uvicorn.Config(
        app,
        # Below that level, every malformed request logs a line: anybody could fill the disk.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=20,
        timeout_graceful_shutdown=3,
        backlog=BACKLOG,
    )
    server = uvicorn.Server(config)
    app.state.stopping = lambda: server.should_exit
    if show is not None and _has_screen():
        with suppress(webbrowser.Error):
            webbrowser.open(show)
    with suppress(KeyboardInterrupt):
        server.run(sockets=[sock])


def _has_screen() -> bool:
    """Whether a browser with windows can be expected; one in the terminal would be in the way."""
    desktop = sys.platform in ("darwin", "win32")
    display = "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return (desktop or display) and sys.stderr.isatty()
