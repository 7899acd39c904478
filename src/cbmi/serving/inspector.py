"""`cbmi serve`: a page on which one translates, sees what each word owes to the source, and edits; with an API."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Annotated, Any, Literal

from pydantic import Field
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cbmi import __version__
from cbmi.analysis.heatmap import FACTORS, cells
from cbmi.analysis.score import Scorer
from cbmi.analysis.words import EDGES, Word, words
from cbmi.data.vocabulary import SPECIALS, Vocabulary
from cbmi.progress import say
from cbmi.serving.batching import Batcher, Busy
from cbmi.serving.web import Body, address, allowed_hosts, application, listen, page, read_body, serve
from cbmi.training.trained import LONGEST_LINE, Trained

LONGEST = 2_000  # characters of a sentence
MOST = 64  # sentences of a request
INVENTED = math.log(2)  # CBMI below which a content word owes the source next to nothing
COMMON = 0.04  # of the vocabulary: its first pieces, in the order in which BPE found them, are the function words
WORK = 8 * 2_000  # characters times beam that are computed at a time
BYTES = 256  # pieces of single bytes, after the special ones

EXAMPLES = {
    "/translate": {"source": ["A sentence."], "beam": 4, "nbest": 2},
    "/score": {"pairs": [{"source": "A sentence.", "target": "Ein Satz."}]},
}

Text = Annotated[str, Field(max_length=LONGEST)]


class TranslateRequest(Body):
    """What to translate, and how."""

    source: Annotated[list[Text], Field(min_length=1, max_length=MOST)]
    beam: Annotated[int, Field(ge=1, le=8)] = 4
    nbest: Annotated[int, Field(ge=1, le=8)] = 1
    length_penalty: Annotated[float, Field(ge=0, le=5, allow_inf_nan=False)] = 0.6


class Pair(Body):
    """A source and a translation of it."""

    source: Text
    target: Text


class ScoreRequest(Body):
    """Pairs to score; sentence weights are not among the figures, they depend on a whole corpus."""

    pairs: Annotated[list[Pair], Field(min_length=1, max_length=MOST)]


class WordFigures(Body):
    """A word of a translation; CBMI = log p_NMT − log p_LM, in nats."""

    text: str
    space: Annotated[bool, Field(description="whether a space stands before it")]
    end: Annotated[bool, Field(description="whether it is the end of the sentence")]
    nmt: Annotated[float, Field(description="log p_NMT")]
    lm: Annotated[float, Field(description="log p_LM")]
    cbmi: float
    level: Annotated[
        str, Field(description="colour: p1 to p4 more likely with the source, n1 to n4 less, z the same")
    ]
    figures: Annotated[str, Field(description="p_NMT, p_LM, CBMI and the token's weight as people read them")]
    invented: Annotated[bool, Field(description="a content word that owes the source next to nothing")]


class Scored(Body):
    """A translation with its words."""

    target: str
    sentence_cbmi: float
    words: list[WordFigures]


class Hypothesis(Scored):
    """A translation that the model found."""

    score: Annotated[float, Field(description="log-probability over length to the power of length_penalty")]
    log_probability: float


class TranslateAnswer(Body):
    """The n best translations of every source; none for an empty one."""

    translations: list[list[Hypothesis]]


class ScoreAnswer(Body):
    """The pairs in order."""

    pairs: list[Scored]


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
        return page("inspector.html.jinja", view | {"longest": LONGEST})

    async def _docs(self, request: Request) -> Response:
        api = openapi()
        rows = {name: _rows(schema) for name, schema in api["components"]["schemas"].items()}
        view = {"api": api, "rows": rows, "examples": EXAMPLES, "address": str(request.base_url).rstrip("/")}
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
                if not task.done() and await request.is_disconnected():
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
        result = []
        for word, cell in zip(joined, shown, strict=True):
            nmt, lm, cbmi = (sum(record[key][place] for place in word.pieces) for key in ("nmt", "lm", "cbmi"))
            result.append(
                {
                    "text": cell["text"],
                    "space": cell["space"],
                    "end": word.control,
                    "nmt": round(nmt, 6),
                    "lm": round(lm, 6),
                    "cbmi": round(cbmi, 6),
                    "level": cell["level"],
                    "figures": cell["figures"],
                    "invented": cbmi < INVENTED and self._content_word(word, record["pieces"]),
                }
            )
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


def openapi() -> dict[str, Any]:
    """The API in OpenAPI's words."""
    bodies = {"/translate": (TranslateRequest, TranslateAnswer), "/score": (ScoreRequest, ScoreAnswer)}
    says = {
        "/translate": "Translate sentences; each gets its n best translations, scored word by word.",
        "/score": "Score pairs: how much each word of the target owes to the source.",
    }
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, (asked, answered) in bodies.items():
        for kind in (asked, answered):
            schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas |= schema.pop("$defs", {}) | {kind.__name__: schema}
        errors = {
            "400": "not JSON",
            "413": "too large",
            "415": "not application/json",
            "422": "a value is wrong",
            "503": "too many requests wait",
        }
        paths[path] = {
            "post": {
                "summary": says[path],
                "requestBody": {"required": True, "content": _json_of(asked.__name__)},
                "responses": {
                    "200": {"description": "done", "content": _json_of(answered.__name__)},
                    **{status: {"description": f'{why}; {{"error": sentence}}'} for status, why in errors.items()},
                },
            }
        }
    paths["/health"] = {
        "get": {"summary": "Whether the server is ready.", "responses": {"200": {"description": "it is"}}}
    }
    info = {"title": "cbmi", "version": __version__, "description": "Translations and what they owe to the source."}
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _rows(schema: dict[str, Any]) -> list[dict[str, str]]:
    """The fields of a schema as people read them."""

    def kind(of: dict[str, Any]) -> str:
        if "items" in of:
            return f"list of {kind(of['items'])}"
        return of["$ref"].split("/")[-1] if "$ref" in of else of.get("type", "")

    limits = {"minimum": "at least", "maximum": "at most", "maxItems": "at most", "maxLength": "length at most"}
    rows = []
    for key, of in schema["properties"].items():
        says = [f"{words} {of[name]:,}" for name, words in limits.items() if name in of]
        says += [f"{of['default']} if left out"] if "default" in of else []
        rows.append(
            {"key": key, "kind": kind(of), "limits": "; ".join([*says, of.get("description", "")]).strip("; ")}
        )
    return rows


def _json_of(name: str) -> dict[str, Any]:
    return {"application/json": {"schema": {"$ref": f"#/components/schemas/{name}"}}}


def serve_inspector(model: Trained, host: str, port: int, show: bool) -> None:
    """Serve the page and the API until stopped."""
    sock = listen(host, port)
    app = Inspector(model).app(allowed_hosts(host))
    here = address(sock)
    say(f"{here}  (API: {here}/docs; Ctrl-C ends it)")
    serve(app, sock, here if show else None)
