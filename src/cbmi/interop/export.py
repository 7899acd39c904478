"""`cbmi export`: a trained run as a folder that other programs load.

Every export is loaded again and has to give the run's own scores before it takes its place.
"""

from __future__ import annotations

import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from cbmi.data.prepare import open_corpus
from cbmi.data.vocabulary import EOS, SPECIALS
from cbmi.errors import UserError
from cbmi.files import atomic_file, atomic_folder, temporary_folder, to_json
from cbmi.inference.exported import (
    FORMAT,
    LANGUAGE_MODEL,
    NOTE,
    ExportedModel,
    vocabulary_names,
)
from cbmi.inference.model import TrainedModel
from cbmi.interop import ct2, hf
from cbmi.interop.argos import write_package
from cbmi.interop.card import model_card
from cbmi.interop.ct2 import QUANTIZATIONS
from cbmi.model import Packed, pack_sentences
from cbmi.model.fusion import GoldScores
from cbmi.progress import say

KINDS = ("ctranslate2", "huggingface", "argos")
TOLERANCE = 1e-4  # of log p of a token
CHECKED = 20  # pairs

TokenScorer = Callable[[Packed, Packed], GoldScores]


class ExportSettings(NamedTuple):
    kind: str
    quantization: str | None = None
    language_model: bool = False
    licence: str | None = None


def export_run(
    run: str | Path, output: Path, settings: ExportSettings, checkpoint: str | None = None
) -> None:
    """Write the folder or package, verified; an earlier export in its place is replaced."""
    _check(settings, output)
    model = TrainedModel(run, checkpoint, "cpu", "fp32")
    if model.fusion:
        raise UserError(
            f"{run}: it was trained by fusion, so translator and language model are one; "
            "such a model cannot be exported."
        )
    if settings.language_model:
        model.language_model()  # says what is wrong if there is none
    shared = model.config.data.vocabulary.shared
    if settings.kind == "argos" and not shared:
        raise UserError(f"{run}: Argos Translate needs one vocabulary for both sides.")
    names = vocabulary_names(shared)
    quantization = settings.quantization or "float32"
    card = model_card(model, settings.kind, quantization, settings.licence, names)
    if settings.kind == "argos":
        with temporary_folder(output.resolve().parent, "export") as folder:
            _write_ctranslate2(model, folder, settings._replace(kind="ctranslate2"))
            with atomic_file(output) as package:
                write_package(folder, model.languages, card, package)
    else:
        write = _write_ctranslate2 if settings.kind == "ctranslate2" else _write_huggingface
        with atomic_folder(output) as folder:
            write(model, folder, settings)
            (folder / "README.md").write_text(card, encoding="utf-8")
    say(
        f"Wrote {output}: {settings.kind}, {quantization}; its float32 weights were verified "
        f"against {model.folder}."
    )


@contextmanager
def quantized(run: str | Path, checkpoint: str | None = None) -> Iterator[Path]:
    """A folder with the run in int8, and its language model if it has one, as long as needed."""
    has_language_model = TrainedModel(run, checkpoint, "cpu", "fp32").has_language_model
    with tempfile.TemporaryDirectory() as folder:
        output = Path(folder) / Path(run).name
        settings = ExportSettings("ctranslate2", "int8", has_language_model)
        export_run(run, output, settings, checkpoint)
        yield output


def _check(settings: ExportSettings, output: Path) -> None:
    if settings.kind not in KINDS:
        raise UserError(f"--to: '{settings.kind}' is not one of {', '.join(KINDS)}.")
    known = tuple(hf.DTYPES) if settings.kind == "huggingface" else QUANTIZATIONS
    if settings.quantization not in (None, *known):
        raise UserError(
            f"--quantization: '{settings.quantization}' is not one of {', '.join(known)}."
        )
    if settings.kind == "argos":
        if settings.language_model:
            raise UserError("--language-model: a package for Argos Translate has no place for it.")
        if output.suffix != ".argosmodel" or output.is_dir():
            raise UserError(f"-o: {output} should be a file that ends in .argosmodel.")
        if output.exists() and not zipfile.is_zipfile(output):
            raise UserError(f"{output}: there is something else already; name another file.")
    elif output.exists():
        is_ours = output.is_dir() and (output / NOTE).exists()
        if not is_ours and (not output.is_dir() or any(output.iterdir())):
            raise UserError(f"{output}: there is something else already; name another folder.")


def _write_ctranslate2(model: TrainedModel, folder: Path, settings: ExportSettings) -> None:
    """In float32 first, which is verified; then as it was asked for."""
    names = vocabulary_names(model.config.data.vocabulary.shared)
    for name, vocabulary in zip(names, (model.source, model.target), strict=True):
        (folder / name).write_bytes(vocabulary.model)
    (folder / NOTE).write_text(to_json(_note(model, settings)), encoding="utf-8")

    def write(quantization: str | None) -> None:
        ct2.save_translator(model.translator, (model.source, model.target), folder, quantization)
        if settings.language_model:
            place = folder / LANGUAGE_MODEL
            ct2.save_language_model(model.language_model(), model.target, place, quantization)

    write(None)
    _verify(model, ExportedModel(folder, "cpu").token_scores, settings)
    if settings.quantization not in (None, "float32"):
        write(settings.quantization)
        ExportedModel(folder, "cpu")  # it can be loaded


def _write_huggingface(model: TrainedModel, folder: Path, settings: ExportSettings) -> None:
    """Likewise."""
    (folder / NOTE).write_text(to_json(_note(model, settings)), encoding="utf-8")
    place = folder / LANGUAGE_MODEL if settings.language_model else None

    def write(dtype: str) -> None:
        hf.save_translator(model, folder, dtype)
        if place is not None:
            hf.save_language_model(model, place, dtype)

    write("float32")
    _verify(model, hf.load_scorer(folder, place), settings)
    texts = []
    for source, target in _rows(model):
        texts.append((model.source.decode(source), model.target.decode(target)))
    hf.check_tokenizer(folder, (model.source, model.target), texts)
    if settings.quantization not in (None, "float32"):
        write(settings.quantization or "float32")
        hf.load_scorer(folder, place)  # it can be loaded


def _note(model: TrainedModel, settings: ExportSettings) -> dict[str, Any]:
    """What cbmi has to know of the folder, and where it came from."""
    source, target = model.languages
    return {
        "format": FORMAT,
        "kind": settings.kind,
        "source": source,
        "target": target,
        "shared": model.config.data.vocabulary.shared,
        "cbmi": model.cbmi_settings(),
        "quantization": settings.quantization or "float32",
        "weights": model.digests(),
    }


def _verify(model: TrainedModel, exported: TokenScorer, settings: ExportSettings) -> None:
    """Refuse an export that does not give the run's own scores."""
    for source, target in _pairs(model):
        expected = model.token_scores(source, target)
        found = exported(source, target)
        kinds = [("translator", expected.nmt, found.nmt)]
        if settings.language_model and expected.lm is not None and found.lm is not None:
            kinds.append(("language model", expected.lm, found.lm))
        for name, own, other in kinds:
            if len(own) != len(other):
                raise UserError(
                    f"the exported {name} scores {len(other)} tokens where the run has {len(own)}; "
                    "nothing was written."
                )
            difference = float((own.double() - other.double()).abs().max())
            if not difference <= TOLERANCE:
                raise UserError(
                    f"the exported {name} differs from the run's by {difference:.2g} in log p of a "
                    "token; nothing was written."
                )


def _pairs(model: TrainedModel) -> list[tuple[Packed, Packed]]:
    """Some pairs of the run's own text, the longest among them; random ones if it has none."""
    rows = _rows(model)
    return [(pack_sentences([source]), pack_sentences([target])) for source, target in rows]


def _rows(model: TrainedModel) -> list[tuple[list[int], list[int]]]:
    for part in ("valid", "train"):
        try:
            corpus = open_corpus(model.run.path, part)
        except UserError:
            continue
        by_length = np.argsort(corpus.target.lengths, kind="stable")
        chosen = by_length[np.linspace(0, len(by_length) - 1, CHECKED).astype(int)]
        rows = []
        for place in dict.fromkeys(chosen.tolist()):
            one = np.array([place])
            rows.append(
                (corpus.source.select(one).ids.tolist(), corpus.target.select(one).ids.tolist())
            )
        return rows
    draw = torch.Generator().manual_seed(1)
    return [_random_row(model, draw) for _ in range(CHECKED)]


def _random_row(model: TrainedModel, draw: torch.Generator) -> tuple[list[int], list[int]]:
    sides: list[list[int]] = []
    for vocabulary in (model.source, model.target):
        length = int(torch.randint(1, 40, (1,), generator=draw))
        ids = torch.randint(SPECIALS, len(vocabulary), (length,), generator=draw)
        sides.append([*ids.tolist(), EOS])
    return sides[0], sides[1]
