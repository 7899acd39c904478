"""`cbmi serve`: a page on which one translates, sees what each word owes to the source, and edits; with an API."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any, Literal

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cbmi.analysis.heatmap import FACTORS, cells
from cbmi.analysis.score import Scorer
from cbmi.analysis.words import EDGES, Word, words
from cbmi.data.vocabulary import SPECIALS, Vocabulary
from cbmi.progress import say
from cbmi.serving.api import EXAMPLES, LONGEST, MOST, Pair, ScoreRequest, TranslateRequest, openapi, rows
from cbmi.serving.batching import Batcher, Busy
from cbmi.serving.web import address, allowed_hosts, application, listen, page, read_body, serve
from cbmi.training.trained import LONGEST_LINE, Trained

INVENTED = math.log(2)  # CBMI below which a content word owes the source next to nothing
COMMON = 0.04  # of the vocabulary: its first pieces, in the order in which BPE found them, are the function words
WORK = 8 * 2_000  # characters times beam that are computed at a time
BYTES = 256  # pieces of single bytes, after the special ones


class Inspector:
    """A model behind a batcher, and the pages in front of it."""

    def __init__(self, model: Trained) -> None:
        self.model, self.scorer = model, Scorer(model)
        self.batcher = Batcher(self._compute, WORK)

    def app(self, hosts: tuple[str, ...] | None) -> Starlette:
        @asynccontextmanager
        async def lifespan(app: Starlette):
            yield
            self.batcher.stop()

        routes = [
            Route("/", self._page),
            Route("/docs", self._docs),
            Route("/openapi.json", self._openapi),
            Route("/health", self._health),
            Route("/translate", self._translate, methods=["POST"]),
            Route("/score", self._score, methods=["POST"]),
        ]
        return application(routes, hosts, lifespan)

    async def _page(self, request: Request) -> Response:
        data = self.model.config.data
        view = {"run": str(self.model.run.path), "source": data.source, "target": data.target, "factors": FACTORS}
        return page("inspector.html.jinja", view | {"longest": LONGEST, "most": MOST})

    async def _docs(self, request: Request) -> Response:
        api = openapi()
        tables = {name: rows(schema) for name, schema in api["components"]["schemas"].items()}
        view = {"api": api, "rows": tables, "examples": EXAMPLES, "address": str(request.base_url).rstrip("/")}
        return page("docs.html.jinja", view | {"factors": FACTORS})

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi())

    async def _health(self, request: Request) -> Response:
        data = self.model.config.data
        return JSONResponse({"status": "ready", "source": data.source, "target": data.target})

    async def _translate(self, request: Request) -> Response:
        wanted = await read_body(request, TranslateRequest)
        if wanted.nbest > wanted.beam:
            raise HTTPException(422, f"nbest: {wanted.nbest} is more than the beam's width, {wanted.beam}.")
        key = ("translate", wanted.beam, wanted.length_penalty, wanted.nbest)
        sources = [_one_line(text) for text in wanted.source]
        for place, text in enumerate(sources):
            self._check_length(f"source.{place}", self.model.source, text)
        cost = wanted.beam
        return JSONResponse(
            {"translations": await self._submit(request, key, sources, lambda text: cost * len(text))}
        )

    async def _score(self, request: Request) -> Response:
        wanted = await read_body(request, ScoreRequest)
        pairs = [(_one_line(pair.source), _one_line(pair.target)) for pair in wanted.pairs]
        for place, pair in enumerate(pairs):
            for side, vocabulary, text in zip(
                Pair.model_fields, (self.model.source, self.model.target), pair, strict=True
            ):
                self._check_length(f"pairs.{place}.{side}", vocabulary, text)
        scored = await self._submit(request, ("score",), pairs, lambda pair: sum(map(len, pair)))
        return JSONResponse({"pairs": scored})

    def _check_length(self, where: str, vocabulary: Vocabulary, text: str) -> None:
        """Nothing is cut in silence."""
        pieces = len(vocabulary.encode([text])[0])
        if pieces > LONGEST_LINE:
            raise HTTPException(422, f"{where}: {pieces:,} pieces are more than the model reads, {LONGEST_LINE:,}.")

    async def _submit(self, request: Request, key: tuple, things: list[Any], cost: Callable[[Any], int]) -> list[Any]:
        """The batcher's results; who has gone is not computed for."""
        task = asyncio.ensure_future(self.batcher.submit(key, things, cost))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=0.5)
                if task.done():
                    break
                if request.app.state.stopping():
                    raise HTTPException(503, "The server is being stopped.")
                if await request.is_disconnected():
                    raise ClientDisconnect
            return task.result()
        except Busy:
            raise HTTPException(503, "Too many requests are waiting; try again.", {"Retry-After": "1"}) from None
        finally:
            task.cancel()

    def _compute(self, key: tuple[Literal["translate", "score"], Any], things: list[Any]) -> list[Any]:
        """Called by the batcher's thread alone."""
        if key[0] == "score":
            return [self._scored(record) for record in self.scorer.score(things)]
        _, beam, length_penalty, nbest = key
        settings = {"beam": beam, "length_penalty": length_penalty, "nbest": nbest}
        found = self.model.hypotheses(things, **settings)
        flat = [(place, one) for place, several in enumerate(found) for one in several]
        texts = [self.model.target.decode(one.ids) for _, one in flat]
        pairs = [(things[place], text) for (place, _), text in zip(flat, texts, strict=True)]
        answers: list[list[dict[str, Any]]] = [[] for _ in things]
        for (place, one), record in zip(flat, self.scorer.score(pairs), strict=True):
            figures = {"score": one.score, "log_probability": one.log_probability}
            answers[place].append(self._scored(record) | figures)
        return answers

    def _scored(self, record: dict[str, Any]) -> dict[str, Any]:
        """What the API says of a record."""
        joined, (shown, _) = words(record["pieces"]), cells(record)
        result = [
            {key: cell[key] for key in ("text", "space", "level", "figures")}
            | {key: round(cell[key], 6) for key in ("nmt", "lm", "cbmi")}
            | {"end": word.control}
            | {"invented": cell["cbmi"] < INVENTED and self._content_word(word, record["pieces"])}
            for word, cell in zip(joined, shown, strict=True)
        ]
        return {"target": record["target"], "sentence_cbmi": record["sentence_cbmi"], "words": result}

    def _content_word(self, word: Word, pieces: list[str]) -> bool:
        """Whether a word is neither punctuation nor one of the commonest: those are single pieces that BPE found
        first, since it joins the most frequent pairs first."""
        if word.control or not EDGES.sub("", word.text):
            return False
        own = [pieces[place] for place in word.pieces]
        spelt = [piece for piece in own if EDGES.sub("", piece.removeprefix("▁"))]
        common = SPECIALS + BYTES + COMMON * len(self.model.target)
        return len(spelt) > 1 or self.model.target.id_of(spelt[0]) >= common


def _one_line(text: str) -> str:
    """A model reads one line."""
    return " ".join(text.replace("\0", " ").split())


def serve_inspector(model: Trained, host: str, port: int, show: bool) -> None:
    """Serve the page and the API until stopped."""
    sock = listen(host, port)
    app = Inspector(model).app(allowed_hosts(host))
    here = address(sock)
    say(f"{here}  (API: {here}/docs; Ctrl-C ends it)")
    serve(app, sock, here if show else None)
