"""`cbmi serve`: a page to translate on, see what each word owes to the source, and edit; an API."""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple

import numpy as np
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from cbmi.data.prepare import open_corpus
from cbmi.data.vocabulary import SPECIALS, Vocabulary
from cbmi.data.words import OUTER_PUNCTUATION, WORD_START, Word
from cbmi.errors import UserError
from cbmi.inference.base import LONGEST_LINE, Model
from cbmi.inference.scoring import DIGITS, PairScorer, ScoredPair
from cbmi.progress import say
from cbmi.reporting.cells import FACTORS, word_cells
from cbmi.serving.api import (
    EXAMPLES,
    LONGEST,
    MOST,
    Scored,
    ScoredHypothesis,
    ScoredWord,
    ScoreRequest,
    TranslateRequest,
    field_rows,
    openapi,
)
from cbmi.serving.batching import Batcher, Busy
from cbmi.serving.web import (
    HostNames,
    address,
    allowed_hosts,
    application,
    checked,
    listen,
    media_type,
    page,
    read_body,
    read_content,
    serve,
)

INVENTED = math.log(2)  # a content word whose CBMI is below it owes the source next to nothing
# The pieces that BPE found first, this share of the vocabulary, are the function words: it joins
# the most frequent pairs first.
COMMON = 0.04
BYTES = 256  # pieces of single bytes, after the special ones
WORK = 8 * 2_000  # characters times beam that are computed at a time
TEXT = "text/plain"
# Text that a vocabulary without byte pieces does not know, and what sentencepiece makes of it.
UNKNOWN_PIECE = "<unk>"
UNKNOWN_MARK = "⁇"
BREAKS = re.compile(r"[\0\r\n]+")
EXAMPLES_SHOWN = 3
EXAMPLE_PIECES = (6, 30)  # the fewest and the most
CHECK_EVERY = 0.5  # seconds between two looks at whether the client is still there


class _SearchKey(NamedTuple):
    """How to translate: requests with equal settings are computed together."""

    beam: int
    length_penalty: float
    nbest: int


_SCORE = "score"  # the batcher's key of all pairs to score


class Inspector:
    """A model behind a batcher, and the pages in front of it."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.scorer = PairScorer(model)
        self.batcher = Batcher(self._compute, WORK)

    def app(self, hosts: HostNames) -> Starlette:
        """The pages and the API."""

        @asynccontextmanager
        async def lifespan(app: Starlette) -> AsyncIterator[None]:
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
        source, target = self.model.languages
        view = {
            "run": str(self.model.path),
            "coloured": self.model.has_language_model,
            "examples": self._examples(),
            "source": source,
            "target": target,
            "factors": FACTORS,
            "longest": LONGEST,
            "most": MOST,
        }
        return page("inspector.html.jinja", view)

    def _examples(self) -> list[str]:
        """A few sources of the validation set, if it is there."""
        with suppress(UserError):
            source = open_corpus(self.model.path, "valid").source
            fewest, most = EXAMPLE_PIECES
            fitting = np.flatnonzero((source.lengths >= fewest) & (source.lengths <= most))
            texts = []
            for place in fitting[:50]:
                ids = source.select(np.array([place])).ids
                texts.append(self.model.source.decode(ids.tolist()))
            return list(dict.fromkeys(texts))[:EXAMPLES_SHOWN]
        return []

    async def _docs(self, request: Request) -> Response:
        api = openapi()
        schemas = api["components"]["schemas"]
        view = {
            "api": api,
            "rows": {name: field_rows(schema) for name, schema in schemas.items()},
            "examples": EXAMPLES,
            "address": str(request.base_url).rstrip("/"),
            "factors": FACTORS,
        }
        return page("docs.html.jinja", view)

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi())

    async def _health(self, request: Request) -> Response:
        source, target = self.model.languages
        return JSONResponse({"status": "ready", "source": source, "target": target})

    async def _translate(self, request: Request) -> Response:
        if media_type(request) == TEXT:
            return await self._translate_text(request)
        wanted = await read_body(request, TranslateRequest)
        return JSONResponse({"translations": await self._translations(request, wanted)})

    async def _translate_text(self, request: Request) -> Response:
        """Lines of text for lines of text; settings are in the query."""
        # Unlike JSON, any page may send text to any server.
        origin = request.headers.get("origin")
        own = f"{request.url.scheme}://{request.headers.get('host')}"
        if origin is not None and origin != own:
            raise HTTPException(403, "Pages of other servers may not send text here.")
        try:
            text = (await read_content(request)).decode()
        except UnicodeDecodeError:
            raise HTTPException(400, "The text is not valid UTF-8.") from None
        lines = text.removesuffix("\n").split("\n")
        values: dict[str, Any] = {"source": lines}
        for key, value in request.query_params.items():
            if key not in ("beam", "length_penalty"):
                raise HTTPException(422, f"{key}: the query may have beam and length_penalty only.")
            with suppress(ValueError, RecursionError):
                value = json.loads(value)
            values[key] = value
        wanted = checked(TranslateRequest, values)
        best = []
        for answers in await self._translations(request, wanted):
            best.append(answers[0]["target"] if answers else "")
        return PlainTextResponse("".join(f"{line}\n" for line in best))

    async def _translations(self, request: Request, wanted: TranslateRequest) -> list[Any]:
        """The n best translations of each source."""
        if wanted.nbest > wanted.beam:
            raise HTTPException(
                422, f"nbest: {wanted.nbest} is more than the beam's width, {wanted.beam}."
            )
        sources = [_one_line(text) for text in wanted.source]
        for place, text in enumerate(sources):
            _check_length(f"source.{place}", self.model.source, text)

        def cost(text: str) -> int:
            return wanted.beam * len(text)

        search = _SearchKey(wanted.beam, wanted.length_penalty, wanted.nbest)
        return await self._submit(request, search, sources, cost)

    async def _score(self, request: Request) -> Response:
        wanted = await read_body(request, ScoreRequest)
        pairs = [(_one_line(pair.source), _one_line(pair.target)) for pair in wanted.pairs]
        for place, (source, target) in enumerate(pairs):
            _check_length(f"pairs.{place}.source", self.model.source, source)
            _check_length(f"pairs.{place}.target", self.model.target, target)

        def cost(pair: tuple[str, str]) -> int:
            return len(pair[0]) + len(pair[1])

        scored = await self._submit(request, _SCORE, pairs, cost)
        return JSONResponse({"pairs": scored})

    async def _submit(
        self, request: Request, key: Hashable, inputs: Sequence[Any], cost: Callable[[Any], int]
    ) -> list[Any]:
        """The batcher's results; nothing is computed for a client that has gone."""
        task = asyncio.ensure_future(self.batcher.submit(key, inputs, cost))
        try:
            while not task.done():
                await asyncio.wait({task}, timeout=CHECK_EVERY)
                if task.done():
                    break
                if request.app.state.stopping():
                    raise HTTPException(503, "The server is being stopped.")
                if await request.is_disconnected():
                    raise ClientDisconnect
            return task.result()
        except Busy:
            raise HTTPException(
                503, "Too many requests are waiting; try again.", {"Retry-After": "1"}
            ) from None
        finally:
            task.cancel()

    def _compute(self, key: Any, inputs: list[Any]) -> list[Any]:
        """The answers to inputs of one key, as JSON; called by the batcher's thread alone."""
        if isinstance(key, _SearchKey):
            return self._translated(inputs, key)
        return [self._scored(pair).model_dump() for pair in self.scorer.score(inputs)]

    def _translated(self, sources: list[str], search: _SearchKey) -> list[list[dict[str, Any]]]:
        """The n best translations of each source, scored word by word."""
        found = self.model.hypotheses(
            sources,
            beam=search.beam,
            length_penalty=search.length_penalty,
            nbest=search.nbest,
        )
        # All translations are scored together, then dealt back to their sources.
        pairs = []
        for source, hypotheses in zip(sources, found, strict=True):
            for hypothesis in hypotheses:
                pairs.append((source, self.model.target.decode(hypothesis.ids)))
        scored = self.scorer.score(pairs)
        answers = []
        for hypotheses in found:
            answer = []
            for hypothesis in hypotheses:
                own = self._scored(next(scored))
                translation = ScoredHypothesis(
                    **own.model_dump(),
                    score=hypothesis.score,
                    log_probability=hypothesis.log_probability,
                )
                answer.append(translation.model_dump())
            answers.append(answer)
        return answers

    def _scored(self, pair: ScoredPair) -> Scored:
        """What the API says of a pair."""
        scored = []
        target = ""
        for word, cell in zip(pair.words, word_cells(pair).words, strict=True):
            text = "" if word.control else word.text
            if any(pair.tokens[place] == UNKNOWN_PIECE for place in word.pieces):
                text = text.replace(UNKNOWN_PIECE, UNKNOWN_MARK)
            start = len(target) + (word.space and not word.control)
            target = target.ljust(start) + text
            is_invented = cell.cbmi is not None and cell.cbmi < INVENTED
            scored.append(
                ScoredWord(
                    text=text,
                    start=start,
                    end=len(target),
                    log_p=round(cell.nmt, DIGITS),
                    log_p_lm=_rounded(cell.lm),
                    cbmi=_rounded(cell.cbmi),
                    weight=_rounded(cell.weight),
                    invented=is_invented and self._is_content_word(word, pair.tokens),
                )
            )
        return Scored(
            target=target,
            log_p=round(pair.likelihood, DIGITS),
            cbmi=None if pair.log_p_lm is None else pair.sentence_cbmi,
            words=scored,
        )

    def _is_content_word(self, word: Word, pieces: Sequence[str]) -> bool:
        """Whether a word is neither punctuation nor one of the commonest words.

        The commonest are single pieces, among the first that BPE found.
        """
        if word.control or not OUTER_PUNCTUATION.sub("", word.text):
            return False
        spelt = []  # its pieces without those of punctuation alone
        for place in word.pieces:
            if OUTER_PUNCTUATION.sub("", pieces[place].removeprefix(WORD_START)):
                spelt.append(pieces[place])
        if len(spelt) > 1:
            return True
        single_bytes = BYTES if self.model.target.has_bytes() else 0
        first_rare = SPECIALS + single_bytes + COMMON * len(self.model.target)
        return self.model.target.id_of(spelt[0]) >= first_rare


def _check_length(where: str, vocabulary: Vocabulary, text: str) -> None:
    """Refuse what the model would truncate: nothing is cut in silence."""
    pieces = len(vocabulary.encode([text])[0])
    if pieces > LONGEST_LINE:
        raise HTTPException(
            422, f"{where}: {pieces:,} pieces are more than the model reads, {LONGEST_LINE:,}."
        )


def _rounded(value: float | None) -> float | None:
    return None if value is None else round(value, DIGITS)


def _one_line(text: str) -> str:
    """Text as the model reads it: on one line, without NUL characters."""
    return BREAKS.sub(" ", text).strip(" ")


def serve_inspector(
    model: Model, host: str, port: int, show: bool, names: Iterable[str] = ()
) -> None:
    """Serve the page and the API until stopped; `show` opens the page in the browser."""
    sock = listen(host, port)
    app = Inspector(model).app(allowed_hosts(host, names))
    here = address(sock)
    say(f"{here}  (API: {here}/docs; press Ctrl-C to stop)")
    serve(app, sock, here if show else None)
