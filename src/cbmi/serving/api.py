"""The inspector's HTTP API: what is asked and answered, and the same as OpenAPI."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, NamedTuple

from pydantic import Field

from cbmi.serving.web import Body
from cbmi.version import __version__

LONGEST = 2_000  # characters of a sentence
MOST = 64  # sentences of a request

Text = Annotated[str, Field(max_length=LONGEST)]
OfLanguageModel = float | None  # None: the run has no language model


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


class ScoredWord(Body):
    """A word of a translation. Logarithms are natural; a word's are the sums over its pieces."""

    text: Annotated[str, Field(description="empty for the end of the sentence")]
    start: Annotated[int, Field(description="place of its first character in the target")]
    end: Annotated[int, Field(description="place after its last character")]
    log_p: Annotated[float, Field(description="log p_NMT")]
    log_p_lm: OfLanguageModel
    cbmi: Annotated[OfLanguageModel, Field(description="log_p − log_p_lm")]
    weight: Annotated[OfLanguageModel, Field(description="mean token weight of its pieces")]
    invented: Annotated[
        bool, Field(description="a content word that owes the source next to nothing")
    ]


class Scored(Body):
    """A translation with its words; the last one is the end of the sentence."""

    target: Annotated[str, Field(description="on one line, as the model reads it")]
    log_p: Annotated[float, Field(description="mean of log p_NMT over the tokens")]
    cbmi: Annotated[OfLanguageModel, Field(description="mean over the tokens")]
    words: list[ScoredWord]


class ScoredHypothesis(Scored):
    """A translation that the model found."""

    score: Annotated[
        float, Field(description="log-probability over length to the power of length_penalty")
    ]
    log_probability: Annotated[float, Field(description="of the whole translation")]


class TranslateAnswer(Body):
    """The n best translations of every source; none for an empty one."""

    translations: list[list[ScoredHypothesis]]


class ScoreAnswer(Body):
    """The pairs in order."""

    pairs: list[Scored]


class Endpoint(NamedTuple):
    """A POST request that the API answers."""

    summary: str
    request: type[Body]
    answer: type[Body]


ENDPOINTS = {
    "/translate": Endpoint(
        "Translate sentences; each gets its n best translations, scored word by word.",
        TranslateRequest,
        TranslateAnswer,
    ),
    "/score": Endpoint(
        "Score pairs: how much each word of the target owes to the source.",
        ScoreRequest,
        ScoreAnswer,
    ),
}
EXAMPLES: dict[str, dict[str, Any]] = {
    "/translate": {"source": ["A sentence."], "beam": 4, "nbest": 2},
    "/score": {"pairs": [{"source": "A sentence.", "target": "Ein Satz."}]},
}
# By status: why a request is refused. Each answer is {"error": sentence}.
ERRORS = {
    "400": "not JSON",
    "408": "not complete in time",
    "413": "too large",
    "415": "not application/json",
    "422": "a value is wrong",
    "503": "too many requests wait",
}


def openapi() -> dict[str, Any]:
    """The API as an OpenAPI document."""
    schemas: dict[str, Any] = {}
    paths: dict[str, Any] = {}
    for path, endpoint in ENDPOINTS.items():
        for kind in (endpoint.request, endpoint.answer):
            schema = kind.model_json_schema(ref_template="#/components/schemas/{model}")
            schemas.update(schema.pop("$defs", {}))
            schemas[kind.__name__] = schema
        paths[path] = {"post": _operation(endpoint)}
    translate = paths["/translate"]["post"]
    text = {"schema": {"type": "string"}}
    translate["description"] = (
        "Also plain text: sent as text/plain, one sentence per line, it is answered in kind, with "
        "the best translation of each line. The query may have beam and length_penalty."
    )
    translate["requestBody"]["content"]["text/plain"] = text
    translate["responses"]["200"]["content"]["text/plain"] = text
    paths["/health"] = {
        "get": {
            "summary": "Whether the server is ready.",
            "responses": {"200": {"description": "it is"}},
        }
    }
    info = {
        "title": "cbmi",
        "version": __version__,
        "description": "Translations and what they owe to the source.",
    }
    return {"openapi": "3.1.0", "info": info, "paths": paths, "components": {"schemas": schemas}}


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    """What OpenAPI says of an endpoint."""
    responses: dict[str, Any] = {
        "200": {"description": "done", "content": _json_of(endpoint.answer)}
    }
    for status, reason in ERRORS.items():
        responses[status] = {"description": f'{reason}; {{"error": sentence}}'}
    return {
        "summary": endpoint.summary,
        "requestBody": {"required": True, "content": _json_of(endpoint.request)},
        "responses": responses,
    }


def _json_of(kind: type[Body]) -> dict[str, Any]:
    reference = f"#/components/schemas/{kind.__name__}"
    return {"application/json": {"schema": {"$ref": reference}}}


class FieldRow(NamedTuple):
    """A field of a schema as people read it."""

    key: str
    kind: str
    limits: str


LIMITS = {
    "minimum": "at least",
    "maximum": "at most",
    "maxItems": "at most",
    "maxLength": "length at most",
}


def field_rows(schema: Mapping[str, Any]) -> list[FieldRow]:
    """The fields of a schema, for the page that documents the API."""
    rows = []
    for key, field in schema["properties"].items():
        parts = [f"{words} {field[limit]:,}" for limit, words in LIMITS.items() if limit in field]
        if "default" in field:
            parts.append(f"default {field['default']}")
        if "description" in field:
            parts.append(field["description"])
        rows.append(FieldRow(key, _kind(field), "; ".join(parts)))
    return rows


def _kind(field: Mapping[str, Any]) -> str:
    if "items" in field:
        return f"list of {_kind(field['items'])}"
    if "$ref" in field:
        return str(field["$ref"]).rpartition("/")[2]
    if "anyOf" in field:
        return " or ".join(_kind(choice) for choice in field["anyOf"])
    return str(field.get("type", ""))
