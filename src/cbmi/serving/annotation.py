"""`cbmi humaneval serve`: every annotator's private page, and the ratings it sends, kept as they come."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response
from starlette.routing import Route

from cbmi.analysis.heatmap import FACTORS
from cbmi.analysis.study import CRITERIA, HIGHEST, LOWEST, Study, open_study
from cbmi.errors import UserError
from cbmi.progress import say
from cbmi.serving.web import Body, address, allowed_hosts, application, listen, page, read_body, serve


class Rating(Body):
    item: Annotated[int, Field(ge=1, le=2**53)]
    criterion: Literal["adequacy", "fluency"]
    value: Annotated[int, Field(ge=LOWEST, le=HIGHEST)]


def annotation_app(study: Study, hosts: tuple[str, ...] | None) -> Starlette:
    async def annotator(request: Request) -> str:
        name = await run_in_threadpool(study.annotator, request.path_params["token"])
        if name is None:
            raise HTTPException(404, "There is no such page; look at the link you were given.")
        return name

    async def show(request: Request) -> Response:
        await annotator(request)
        return page("annotation.html.jinja", {"criteria": CRITERIA, "factors": FACTORS})

    async def without_slash(request: Request) -> Response:
        await annotator(request)
        return RedirectResponse(f"{request.url.path}/")

    async def items(request: Request) -> Response:
        name = await annotator(request)
        return JSONResponse({"items": await run_in_threadpool(study.items, name)})

    async def rate(request: Request) -> Response:
        name = await annotator(request)
        rating = await read_body(request, Rating)
        try:
            await run_in_threadpool(study.rate, name, [(rating.item, rating.criterion, rating.value)])
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        return JSONResponse({"saved": rating.model_dump()})

    routes = [
        Route("/{token}", without_slash),
        Route("/{token}/", show),
        Route("/{token}/items", items),
        Route("/{token}/ratings", rate, methods=["POST"]),
    ]
    return application(routes, hosts)


def links(study: Study, base: str) -> str:
    """Each annotator's private address."""
    return "\n".join(f"{name}  {base}/{token}/" for name, token in study.annotators().items())


def serve_study(folder: Path, host: str, port: int) -> None:
    """Serve the annotators' pages until stopped; prints their links."""
    study = open_study(folder)
    sock = listen(host, port)
    app = annotation_app(study, allowed_hosts(host))
    print(links(study, address(sock)), flush=True)
    say("Give every annotator their own link; Ctrl-C ends the server, and every rating is kept.")
    serve(app, sock)
