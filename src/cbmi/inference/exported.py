"""A model that `cbmi export --to ctranslate2` wrote, computed by CTranslate2."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from cbmi.data.vocabulary import BOS, EOS, Vocabulary
from cbmi.decoding import Hypothesis, Sampling
from cbmi.decoding.queue import Advance
from cbmi.decoding.translate import ignore_progress
from cbmi.digests import sha256
from cbmi.errors import UserError, first_line, import_extra
from cbmi.files import read_json
from cbmi.inference.base import BEAM, Model, beam_width
from cbmi.model import Packed
from cbmi.model.fusion import GoldScores
from cbmi.training.world import choose_device

NOTE = "cbmi.json"  # what cbmi has to know of an exported folder
FORMAT = 1  # of that file
LANGUAGE_MODEL = "language_model"  # the folder of the exported language model
SHARED = "sentencepiece.model"
SEPARATE = ("source.model", "target.model")
TOKENS = 4096  # of a batch that is translated
SCORED_TOKENS = 2048  # of a batch that is scored
WORKERS = 8  # batches at a time, on a CPU, at most: each needs memory of its own
AHEAD = 2 * WORKERS  # batches that wait or are translated
# CTranslate2 ends a search after beam · patience endings; with 2 it finds what ours finds.
PATIENCE = 2.0


class ExportedModel(Model):
    """An exported folder. It translates and scores as its run does, up to its quantization."""

    language_model_remedy = "export the run again with --language-model, if it has one"

    def __init__(self, path: str | Path, device: str = "auto") -> None:
        self.path = Path(path)
        self.note = _read_note(self.path)
        self.languages = (self.note["source"], self.note["target"])
        self.source, self.target = (
            Vocabulary.load(self.path / name) for name in vocabulary_names(self.note["shared"])
        )
        self.device = torch.device("cpu")  # of the tensors; CTranslate2 has devices of its own
        self.truncated = 0
        library = import_extra("ctranslate2", f"{path}: an exported model", "ctranslate2")
        chosen = choose_device(device)
        threads = torch.get_num_threads()
        options: dict[str, Any] = {"device": chosen.type}
        if chosen.type == "cuda":
            options["device_index"] = chosen.index or 0
        else:
            # Batches side by side: a batch by itself is hardly faster with several threads.
            workers = _workers(threads)
            options["inter_threads"] = workers
            options["intra_threads"] = threads // workers
        try:
            self.translator = library.Translator(str(self.path), **options)
            self.language_model = None
            if self.has_language_model:
                folder = str(self.path / LANGUAGE_MODEL)
                self.language_model = library.Generator(folder, **options)
        except (RuntimeError, ValueError) as error:
            reason = first_line(error)
            raise UserError(f"{path}: CTranslate2 cannot load it: {reason}.") from None
        finally:
            torch.set_num_threads(threads)  # which CTranslate2 has set to its own
        self._ids: dict[str, int] = {}
        for number, piece in enumerate(self.target.pieces(range(len(self.target)))):
            self._ids[piece] = number

    def __repr__(self) -> str:
        source, target = self.languages
        return (
            f"<cbmi.ExportedModel {source}→{target} from {self.path}, "
            f"{self.translator.compute_type} on {self.translator.device}>"
        )

    @property
    def has_language_model(self) -> bool:
        return (self.path / LANGUAGE_MODEL / "model.bin").exists()

    def cbmi_settings(self) -> dict[str, Any]:
        return dict(self.note["cbmi"])

    def digests(self) -> list[str | None]:
        digests: list[str | None] = [sha256(self.path / "model.bin"), None]
        if self.has_language_model:
            digests[1] = sha256(self.path / LANGUAGE_MODEL / "model.bin")
        return digests

    def hypotheses(
        self,
        lines: Sequence[str],
        *,
        beam: int | None = None,
        length_penalty: float = 0.6,
        nbest: int = 1,
        sampling: Sampling | None = None,
        first_number: int = 0,
        advance: Advance = ignore_progress,
    ) -> list[list[Hypothesis]]:
        if sampling is not None:
            raise UserError(f"{self.path}: an exported model cannot sample; use the run itself.")
        width = beam_width(BEAM if beam is None else beam, nbest, None)
        filled = [number for number, line in enumerate(lines) if line.strip()]
        advance(len(lines) - len(filled))
        sentences = self.encode(self.source, [lines[number] for number in filled])
        results: list[list[Hypothesis]] = [[] for _ in lines]
        waiting: deque[tuple[list[int], list[list[str]], Any]] = deque()

        def collect() -> None:
            batch, sources, promised = waiting.popleft()
            for place, source, one in zip(batch, sources, promised, strict=True):
                found = self._hypotheses(source, one.result(), length_penalty)
                results[filled[place]] = found
            advance(len(batch))

        for batch in _batches(sentences):
            if len(waiting) == AHEAD:
                collect()
            pieces = [self.source.pieces(sentences[place][:-1]) for place in batch]
            promised = self.translator.translate_batch(
                pieces,
                beam_size=width,
                num_hypotheses=nbest,
                length_penalty=length_penalty,
                patience=PATIENCE if width > 1 else 1.0,
                max_input_length=0,
                min_decoding_length=0,  # a minimum would change the scores
                max_decoding_length=_longest_translation(pieces[0]),
                return_scores=True,
                asynchronous=True,
            )
            waiting.append((batch, pieces, promised))
        while waiting:
            collect()
        return results

    def _hypotheses(
        self, source: Sequence[str], result: Any, length_penalty: float
    ) -> list[Hypothesis]:
        made = []
        for pieces, score in zip(result.hypotheses, result.scores, strict=True):
            ids = [self._ids[piece] for piece in pieces]
            length = (len(ids) + 1) ** length_penalty  # with the end of sentence
            log_probability = score * length
            if len(ids) == _longest_translation(source):
                # CTranslate2 has cut it off, and its score is without the end.
                scored = self.translator.score_batch([source], [pieces], max_input_length=0)
                log_probability = sum(scored[0].log_probs)
            made.append(Hypothesis(ids, log_probability / length, log_probability))
        return sorted(made, key=lambda hypothesis: -hypothesis.score)

    def token_scores(self, source: Packed, target: Packed) -> GoldScores:
        sources = [self.source.pieces(ids[:-1]) for ids in _sentences(source)]
        targets = [self.target.pieces(ids[:-1]) for ids in _sentences(target)]
        split: dict[str, Any] = {"max_batch_size": SCORED_TOKENS, "batch_type": "tokens"}
        results = self.translator.score_batch(sources, targets, max_input_length=0, **split)
        nmt = _joined([result.log_probs for result in results])
        lm = None
        if self.language_model is not None:
            begin, end = self.target.pieces([BOS, EOS])
            tokens = [[begin, *pieces, end] for pieces in targets]
            results = self.language_model.score_batch(tokens, max_input_length=0, **split)
            lm = _joined([result.log_probs for result in results])
        return GoldScores(nmt, torch.full_like(nmt, torch.nan), lm)


def _longest_translation(source: Sequence[str]) -> int:
    """How many pieces a translation may have, as in our own search, the end not counted."""
    return 2 * (len(source) + 1) + 9


def _workers(threads: int) -> int:
    """How many work side by side: as many as leave the fewest threads idle."""
    return max(
        range(1, min(threads, WORKERS) + 1), key=lambda count: (threads // count * count, count)
    )


def vocabulary_names(shared: bool) -> tuple[str, str]:
    """The sentencepiece models of source and target in an exported folder."""
    return (SHARED, SHARED) if shared else SEPARATE


def _read_note(path: Path) -> dict[str, Any]:
    note = read_json(path / NOTE)
    known = isinstance(note, dict) and note.get("format") == FORMAT
    keys = {"source": str, "target": str, "shared": bool, "cbmi": dict}
    if not known or not all(isinstance(note.get(key), kind) for key, kind in keys.items()):
        raise UserError(f"{path / NOTE}: this was not written by cbmi export; export again.")
    if note.get("kind", "ctranslate2") != "ctranslate2":
        raise UserError(
            f"{path}: this was exported for another program ({note['kind']}); cbmi itself takes "
            "the run, or an export to ctranslate2."
        )
    return dict(note)


def _batches(sentences: Sequence[Sequence[int]]) -> list[list[int]]:
    """Places of sentences of equal length, which decides how long a translation may be."""
    order = sorted(range(len(sentences)), key=lambda place: -len(sentences[place]))
    batches: list[list[int]] = []
    for place in order:
        length = len(sentences[place])
        last = batches[-1] if batches else []
        fits = last and len(sentences[last[0]]) == length and (len(last) + 1) * length <= TOKENS
        if fits:
            last.append(place)
        else:
            batches.append([place])
    return batches


def _sentences(packed: Packed) -> list[list[int]]:
    ids = packed.ids.cpu().split(packed.layout.sizes.tolist())
    return [sentence.tolist() for sentence in ids]


def _joined(rows: Sequence[Sequence[float]]) -> Tensor:
    values: list[float] = []
    for row in rows:
        values += row
    return torch.tensor(values, dtype=torch.float64)
