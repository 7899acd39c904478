"""What our servers share: JSON in and out with limits, headers, errors in one sentence, and uvicorn."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import webbrowser
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

from cbmi.analysis.pages import render_page
from cbmi.config import sentence_of
from cbmi.errors import UserError
from cbmi.progress import say

LARGEST_BODY = 256 * 1024  # bytes
PATIENCE = 30  # seconds that a request's body may take
BACKLOG = 1024  # connections that wait to be taken
LOOPBACK = ("127.0.0.1", "localhost", "::1")
SAFE = {
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",  # links hold private tokens
    "Cache-Control": "no-store",
}
Model = TypeVar("Model", bound="Body")


class Body(BaseModel):
    """A request's JSON; a key that nobody knows is an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


async def read_body(request: Request, kind: type[Model]) -> Model:
    """The request's JSON as a `kind`; anything else becomes an error of one sentence."""
    if request.headers.get("content-type", "").split(";")[0].strip().lower() != "application/json":
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


def application(routes: list[BaseRoute], hosts: tuple[str, ...] | None, lifespan: Any = None) -> Starlette:
    """Routes with the house's headers and errors; `hosts`: the only names that a request may call the server by."""
    app = Starlette(
        routes=routes,
        middleware=[Middleware(_Guard, hosts=hosts)],
        exception_handlers={HTTPException: _sentence, ClientDisconnect: _gone, Exception: _fault},
        lifespan=lifespan,
    )
    app.router.redirect_slashes = False
    app.state.stopping = lambda: False
    return app


async def _sentence(request: Request, error: Exception) -> Response:
    headers = error.headers if isinstance(error, HTTPException) else None
    return JSONResponse({"error": error.detail}, error.status_code, headers=headers)


async def _gone(request: Request, error: Exception) -> Response:
    return Response(status_code=400)  # nobody is there to read it


async def _fault(request: Request, error: Exception) -> Response:
    say(f"{request.method} {request.url.path}: {type(error).__name__}: {error}")
    return JSONResponse({"error": "The server met an error of its own; its terminal says more."}, 500)


class _Guard:
    """Refuses foreign host names (a page elsewhere that points its name at this machine) and adds headers."""

    def __init__(self, app: Any, hosts: tuple[str, ...] | None) -> None:
        self.app, self.hosts = app, hosts

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        if self.hosts is not None and _host(scope) not in self.hosts:
            response = JSONResponse({"error": "This server does not answer to that host name."}, 421, headers=SAFE)
            await response(scope, receive, send)
            return

        async def with_headers(message: Any) -> None:
            if message["type"] == "http.response.start":
                message["headers"] += [(key.lower().encode(), value.encode()) for key, value in SAFE.items()]
            await send(message)

        await self.app(scope, receive, with_headers)


def _host(scope: Any) -> str:
    value = dict(scope["headers"]).get(b"host", b"").decode("latin-1").lower()
    return value.partition("]")[0].lstrip("[") if value.startswith("[") else value.partition(":")[0]


def page(name: str, view: dict[str, Any]) -> HTMLResponse:
    """A page of this package."""
    return HTMLResponse(render_page("cbmi.serving", name, view))


def allowed_hosts(host: str) -> tuple[str, ...] | None:
    """On this machine alone, only its own names; on a network, any: the names it has there are not known."""
    return LOOPBACK if host in LOOPBACK else None


def listen(host: str, port: int) -> socket.socket:
    """The socket to serve on; port 0 takes a free one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((host, port))
        sock.listen(BACKLOG)  # who comes before the server is ready waits
    except OSError as error:
        sock.close()
        raise UserError(f"--host {host} --port {port}: cannot be served on: {error.strerror or error}.") from None
    except OverflowError:
        raise UserError(f"--port: {port} should be between 0 and 65535.") from None
    return sock


def address(sock: socket.socket) -> str:
    """What to open; of a server for all comers, by this machine's name."""
    host, port = sock.getsockname()[:2]
    if host in ("0.0.0.0", "::"):
        return f"http://{socket.gethostname()}:{port}"
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def serve(app: Starlette, sock: socket.socket, show: str | None = None) -> None:
    """Serve until Ctrl-C or SIGTERM; `show`: an address to open in the browser."""
    config = uvicorn.Config(
        app,
        log_level="error",  # a line for every malformed request would let anybody fill the disk
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
    """Whether a browser with windows can be expected; one of the terminal's would be in the way."""
    windows = sys.platform in ("darwin", "win32") or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ
    return windows and sys.stderr.isatty()
