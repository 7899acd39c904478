"""`cbmi humaneval serve`: each annotator's private page, and the ratings that it sends.

A rating is on disk before its request is answered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from cbmi.errors import UserError
from cbmi.humaneval.schemes import CRITERIA, HIGHEST, LOWEST, MOST_SPANS, PENALTIES, Rating, Span
from cbmi.humaneval.study import Study, StudyFileError, open_study
from cbmi.progress import say
from cbmi.reporting.cells import FACTORS
from cbmi.serving.web import (
    Body,
    HostNames,
    address,
    allowed_hosts,
    application,
    listen,
    page,
    read_body,
    serve,
)


class SpanRequest(Body):
    """An error as the page sends it; characters are counted as Unicode code points."""

    start: Annotated[int, Field(ge=0, le=2**31)]
    end: Annotated[int, Field(ge=0, le=2**31)]
    severity: Literal["minor", "major"]


class MarkingRequest(Body):
    """All errors of an item; none: it has none."""

    item: Annotated[int, Field(ge=1, le=2**53)]
    spans: Annotated[list[SpanRequest], Field(max_length=MOST_SPANS)]


class RatingRequest(Body):
    """A rating as the page sends it."""

    # Up to 2^53: JavaScript counts no further without rounding.
    item: Annotated[int, Field(ge=1, le=2**53)]
    criterion: Literal["adequacy", "fluency"]
    value: Annotated[int, Field(ge=LOWEST, le=HIGHEST)]


def annotation_app(study: Study, hosts: HostNames) -> Starlette:
    """The annotators' pages. A page is found by its annotator's secret token only.

    SQLite may wait for a lock, so all calls of the study go to a thread.
    """

    async def health(request: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def annotator(request: Request) -> str:
        name = await run_in_threadpool(study.annotator, request.path_params["token"])
        if name is None:
            raise HTTPException(404, "There is no such page; check the link you were given.")
        return name

    async def wrong_link(request: Request) -> Response:
        answer = page("wrong-link.html.jinja", {"factors": FACTORS})
        answer.status_code = 404
        return answer

    async def show(request: Request) -> Response:
        name = await run_in_threadpool(study.annotator, request.path_params["token"])
        if name is None:
            return await wrong_link(request)
        scheme = await run_in_threadpool(study.scheme)
        view = {"criteria": CRITERIA, "factors": FACTORS, "name": name, "penalties": PENALTIES}
        return page("spans.html.jinja" if scheme == "spans" else "annotation.html.jinja", view)

    async def without_slash(request: Request) -> Response:
        if await run_in_threadpool(study.annotator, request.path_params["token"]) is None:
            return await wrong_link(request)
        return RedirectResponse(f"{request.url.path}/")

    async def items(request: Request) -> Response:
        name = await annotator(request)
        seen = await run_in_threadpool(study.items, name)
        return JSONResponse({"items": [item.to_json() for item in seen]})

    async def rate(request: Request) -> Response:
        name = await annotator(request)
        wanted = await read_body(request, RatingRequest)
        rating = Rating(wanted.item, wanted.criterion, wanted.value)
        await _kept(study.rate, name, [rating])
        return JSONResponse({"saved": wanted.model_dump()})

    async def mark(request: Request) -> Response:
        name = await annotator(request)
        wanted = await read_body(request, MarkingRequest)
        spans = [Span(span.start, span.end, span.severity) for span in wanted.spans]
        await _kept(study.mark, name, wanted.item, spans)
        return JSONResponse({"saved": wanted.model_dump()})

    routes = [
        Route("/", wrong_link),
        Route("/health", health),
        Route("/{token}", without_slash),
        Route("/{token}/", show),
        Route("/{token}/items", items),
        Route("/{token}/ratings", rate, methods=["POST"]),
        Route("/{token}/spans", mark, methods=["POST"]),
    ]
    return application(routes, hosts)


async def _kept(keep: Callable[..., None], *arguments: Any) -> None:
    """Write to the study; what cannot be written is an answer."""
    try:
        await run_in_threadpool(keep, *arguments)
    except StudyFileError as error:
        # The page tries again after 503, not after 422: the disk may be full for a while only.
        raise HTTPException(503, str(error)) from None
    except UserError as error:
        raise HTTPException(422, str(error)) from None


def private_links(study: Study, base: str) -> str:
    """Each annotator's name and private address, a line for each; `base`: the server's address."""
    lines = [f"{name}  {base}/{token}/" for name, token in study.annotators().items()]
    return "\n".join(lines)


def serve_study(folder: Path, host: str, port: int, names: Iterable[str] = ()) -> None:
    """Print the annotators' links, and serve their pages until stopped."""
    study = open_study(folder)
    sock = listen(host, port)
    app = annotation_app(study, allowed_hosts(host, names))
    print(private_links(study, address(sock)), flush=True)
    say("Give every annotator their own link (press Ctrl-C to stop; every rating is kept).")
    serve(app, sock)
