"""The inspector's HTTP API: what is asked and answered, and the same in OpenAPI's words."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from cbmi import __version__
from cbmi.serving.web import Body

LONGEST = 2_000  # characters of a sentence
MOST = 64  # sentences of a request
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


def rows(schema: dict[str, Any]) -> list[dict[str, str]]:
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
