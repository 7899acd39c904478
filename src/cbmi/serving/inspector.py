"""`cbmi serve`: a page to translate on, see what each word owes to the source, and edit; an API."""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Callable, Hashable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from cbmi.data.vocabulary import SPECIALS, Vocabulary
from cbmi.data.words import OUTER_PUNCTUATION, WORD_START, Word
from cbmi.inference.model import LONGEST_LINE, TrainedModel
from cbmi.inference.scoring import DIGITS, PairScorer, ScoredPair
from cbmi.progress import say
from cbmi.reporting.cells import FACTORS, word_cells
from cbmi.serving.api import (
    EXAMPLES,
    LONGEST,
    MOST,
    Scored,
    ScoredHypothesis,
    ScoreRequest,
    TranslateRequest,
    WordFigures,
    field_rows,
    openapi,
)
from cbmi.serving.batching import Batcher, Busy
from cbmi.serving.web import (
    HostNames,
    address,
    allowed_hosts,
    application,
    listen,
    page,
    read_body,
    serve,
)

INVENTED = math.log(2)  # a content word whose CBMI is below it owes the source next to nothing
# The pieces that BPE found first, this share of the vocabulary, are the function words: it joins
# the most frequent pairs first.
COMMON = 0.04
BYTES = 256  # pieces of single bytes, after the special ones
WORK = 8 * 2_000  # characters times beam that are computed at a time
CHECK_EVERY = 0.5  # seconds between two looks at whether the client is still there


class _SearchKey(NamedTuple):
    """How to translate: requests with equal settings are computed together."""

    beam: int
    length_penalty: float
    nbest: int


_SCORE = "score"  # the batcher's key of all pairs to score


class Inspector:
    """A model behind a batcher, and the pages in front of it."""

    def __init__(self, model: TrainedModel) -> None:
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
        data = self.model.config.data
        view = {
            "run": str(self.model.run.path),
            "source": data.source,
            "target": data.target,
            "factors": FACTORS,
            "longest": LONGEST,
            "most": MOST,
        }
        return page("inspector.html.jinja", view)

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
        data = self.model.config.data
        return JSONResponse({"status": "ready", "source": data.source, "target": data.target})

    async def _translate(self, request: Request) -> Response:
        wanted = await read_body(request, TranslateRequest)
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
        translations = await self._submit(request, search, sources, cost)
        return JSONResponse({"translations": translations})

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
                    target=own.target,
                    sentence_cbmi=own.sentence_cbmi,
                    words=own.words,
                    score=hypothesis.score,
                    log_probability=hypothesis.log_probability,
                )
                answer.append(translation.model_dump())
            answers.append(answer)
        return answers

    def _scored(self, pair: ScoredPair) -> Scored:
        """What the API says of a pair."""
        figures = []
        for word, cell in zip(pair.words, word_cells(pair).words, strict=True):
            invented = cell.cbmi < INVENTED and self._is_content_word(word, pair.tokens)
            figures.append(
                WordFigures(
                    text=cell.text,
                    space=cell.space,
                    end=cell.control,
                    nmt=round(cell.nmt, DIGITS),
                    lm=round(cell.lm, DIGITS),
                    cbmi=round(cell.cbmi, DIGITS),
                    level=cell.level,
                    figures=cell.figures,
                    invented=invented,
                )
            )
        return Scored(target=pair.target, sentence_cbmi=pair.sentence_cbmi, words=figures)

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
        first_rare = SPECIALS + BYTES + COMMON * len(self.model.target)
        return self.model.target.id_of(spelt[0]) >= first_rare


def _check_length(where: str, vocabulary: Vocabulary, text: str) -> None:
    """Refuse what the model would truncate: nothing is cut in silence."""
    pieces = len(vocabulary.encode([text])[0])
    if pieces > LONGEST_LINE:
        raise HTTPException(
            422, f"{where}: {pieces:,} pieces are more than the model reads, {LONGEST_LINE:,}."
        )


def _one_line(text: str) -> str:
    """Text as the model reads it: on one line, without NUL characters."""
    return " ".join(text.replace("\0", " ").split())


def serve_inspector(
    model: TrainedModel, host: str, port: int, show: bool, names: Iterable[str] = ()
) -> None:
    """Serve the page and the API until stopped; `show` opens the page in the browser."""
    sock = listen(host, port)
    app = Inspector(model).app(allowed_hosts(host, names))
    here = address(sock)
    say(f"{here}  (API: {here}/docs; press Ctrl-C to stop)")
    serve(app, sock, here if show else None)
