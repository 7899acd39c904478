"""Settings of a run's data: which corpora, which vocabulary, which segmentations."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainSerializer, model_validator

from cbmi.schema import Flag, Name, NonNegativeInt, PositiveFloat, PositiveInt, Settings


def _one_or_two(value: Any) -> Any:
    files = [value] if isinstance(value, str) else value
    if not isinstance(files, list | tuple) or len(files) not in (1, 2):
        raise ValueError(
            "should name two aligned files, source and target, or one that holds both sides"
        )
    return files


Files = Annotated[tuple[str, ...], BeforeValidator(_one_or_two)]


class CorpusSettings(Settings):
    """A part of the training data."""

    files: Files  # two aligned files, or one that holds both sides: .tsv, .tmx, .po, …
    # How often an epoch has each of its pairs, on average.
    weight: Annotated[PositiveFloat, Field(le=1000)] = 1.0


def _as_corpora(value: Any) -> Any:
    """Files alone are a corpus of weight 1."""
    names_files = isinstance(value, str) or (
        isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    )
    if names_files:
        return [{"files": _one_or_two(value)}]
    if isinstance(value, list | tuple) and all(isinstance(one, list | tuple) for one in value):
        return [{"files": one} for one in value]
    return value


def _as_written(corpora: tuple[CorpusSettings, ...]) -> Any:
    """A single corpus of weight 1 is its files."""
    if len(corpora) == 1 and corpora[0].weight == 1:
        return list(corpora[0].files)
    return [corpus.model_dump(mode="json") for corpus in corpora]


Corpora = Annotated[
    tuple[CorpusSettings, ...],
    Field(min_length=1),
    BeforeValidator(_as_corpora),
    PlainSerializer(_as_written),
]


class VocabularySettings(Settings):
    # Pieces, among them 256 for single bytes and 4 special ones.
    size: Annotated[int, Field(ge=300, lt=1 << 31, strict=True)] = 32000
    shared: Flag = True  # one vocabulary for both sides
    # Existing sentencepiece models to use instead of learning: of both sides, or of each.
    model: str | None = None
    source: str | None = None
    target: str | None = None

    @model_validator(mode="before")
    @classmethod
    def _one_for_each_side(cls, values: Any) -> Any:
        if isinstance(values, dict) and ("source" in values or "target" in values):
            return {"shared": False} | values
        return values

    @model_validator(mode="after")
    def _learnt_or_given(self) -> VocabularySettings:
        if (self.source is None) != (self.target is None):
            raise ValueError("source and target go together: a sentencepiece model for each side")
        if self.model is not None and self.source is not None:
            raise ValueError("give either model, for both sides, or source and target")
        is_given = self.files() is not None
        if is_given and "size" in self.model_fields_set and self.size != 32000:
            raise ValueError("size has no meaning with an existing model, which has its own")
        if is_given and self.shared != (self.model is not None):
            raise ValueError("shared: a model for both sides is shared, one for each is not")
        return self

    def files(self) -> tuple[str, ...] | None:
        """The existing models, one or two; None: the vocabulary is learnt."""
        if self.model is not None:
            return (self.model,)
        if self.source is not None and self.target is not None:
            return (self.source, self.target)
        return None


class SegmentationSettings(Settings):
    """BPE-dropout: epoch e is trained on sampled segmentation e mod `samples` of every pair."""

    dropout: Annotated[float, Field(gt=0, lt=1, strict=True)] = 0.1  # of merges
    samples: Annotated[int, Field(ge=1, le=100, strict=True)] = 8
    sides: Literal["both", "source", "target"] = "both"
    seed: NonNegativeInt = 1  # not the run's: runs that differ by seed share their data


class DataSettings(Settings):
    source: Name  # language codes
    target: Name
    train: Corpora  # files, or several corpora with weights
    valid: Files | None = None
    test: dict[Name, Files] = Field(default_factory=dict)
    vocabulary: VocabularySettings = VocabularySettings()
    # Pieces per side, end of sentence included; longer training pairs are left out.
    max_length: PositiveInt = 256
    segmentations: SegmentationSettings | None = None  # None: pieces as BPE gives them
    drop_copies: Flag = False  # leave out training pairs whose target equals their source

    @property
    def languages(self) -> tuple[str, str]:
        return self.source, self.target

    def train_files(self) -> tuple[str, ...]:
        """All files of the training data."""
        files: list[str] = []
        for corpus in self.train:
            files += corpus.files
        return tuple(files)
