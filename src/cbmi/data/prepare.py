"""Text to memory-mapped ids, as a stream: memory does not grow with the corpus."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from cbmi.data.corpus import (
    Corpus,
    CorpusMeta,
    SideWriter,
    check_digests,
    damaged,
    digests_of,
    read_meta,
)
from cbmi.data.foreign_vocabulary import can_be_sampled, import_vocabulary
from cbmi.data.formats.entry import REASONS, Languages
from cbmi.data.segmentations import check_segmentations, open_segmentations, sample_segmentations
from cbmi.data.text import (
    check_pairs,
    count_pairs,
    is_copy,
    left_out_of,
    read_corpora,
    read_pairs,
)
from cbmi.data.vocabulary import Vocabulary, learn
from cbmi.data_settings import DataSettings
from cbmi.digests import digest, unchanged
from cbmi.errors import UserError
from cbmi.files import atomic_folder, to_json
from cbmi.progress import Bar, bar, counted, say

CHUNK = 20_000  # pairs encoded at a time
SAMPLE_LINES = 5_000_000  # a vocabulary is learnt from about this many lines at most, at random
LONGEST_VALIDATION = 1024  # pieces per side
MANY_COPIES = 0.01  # share of the pairs above which copies are worth a word


def vocabulary_files(folder: Path, shared: bool) -> tuple[Path, Path]:
    """The model files of the source and the target vocabulary; the same one if it is shared."""
    if shared:
        return folder / "shared.model", folder / "shared.model"
    return folder / "source.model", folder / "target.model"


def load_vocabularies(folder: Path, shared: bool) -> tuple[Vocabulary, Vocabulary]:
    """Source and target vocabulary; the same object if it is shared."""
    source_file, target_file = vocabulary_files(folder, shared)
    source = Vocabulary.load(source_file)
    target = source if shared else Vocabulary.load(target_file)
    return source, target


def prepare_corpora(data: DataSettings, folder: Path, again: bool = False) -> None:
    """Make what is missing of `folder`/vocab and `folder`/data: train, valid, segmentations.

    Refuses files that change meanwhile. `again`: the data are made again from the same text, and
    take the place of those that are there.
    """
    vocabulary_folder = folder / "vocab"
    train_folder = folder / "data" / "train"
    valid_folder = folder / "data" / "valid"
    segmentations_folder = folder / "data" / "segmentations"
    folder.mkdir(parents=True, exist_ok=True)
    if data.vocabulary.files() is not None:
        _import_vocabularies(data, vocabulary_folder)
    elif not vocabulary_folder.exists():
        at_most = "" if "size" in data.vocabulary.model_fields_set else "up to "
        say(f"Learning the vocabulary: {at_most}{data.vocabulary.size:,} pieces")
        with unchanged(data.train_files()):
            learn_vocabularies(data, vocabulary_folder)
    vocabularies = load_vocabularies(vocabulary_folder, data.vocabulary.shared)
    if data.segmentations and not all(can_be_sampled(one) for one in vocabularies):
        raise UserError(
            "data.segmentations needs a BPE vocabulary with byte pieces and without normalisation: "
            "let the run learn its vocabulary, or leave out data.segmentations."
        )
    train_files = [corpus.files for corpus in data.train]
    if train_folder.exists() and again:
        check_unchanged(train_folder, data.train_files())
    if train_folder.exists() and not again:
        check_digests(train_folder, read_meta(train_folder).digests)
    else:
        encode(
            train_files,
            data.languages,
            vocabularies,
            train_folder,
            data.max_length,
            data.drop_copies,
        )
        _report_copies(train_folder)
    if data.valid and valid_folder.exists() and not again:
        check_digests(valid_folder, read_meta(valid_folder).digests)
    elif data.valid:
        encode([data.valid], data.languages, vocabularies, valid_folder, LONGEST_VALIDATION)
    check_unchanged(train_folder, data.train_files())
    if data.segmentations and segmentations_folder.exists() and not again:
        check_segmentations(segmentations_folder)
    elif data.segmentations:
        sample_segmentations(
            Corpus(train_folder), data, vocabularies, segmentations_folder, data.segmentations
        )
    if data.valid:
        check_unchanged(valid_folder, data.valid)


def _import_vocabularies(data: DataSettings, folder: Path) -> None:
    """Take the existing models, or make sure that they are those that were taken before."""
    files = data.vocabulary.files() or ()
    imported = [import_vocabulary(Path(file)) for file in files]
    places = vocabulary_files(folder, data.vocabulary.shared)
    if folder.exists():
        for file, vocabulary, place in zip(files, imported, places, strict=False):
            if place.read_bytes() != vocabulary.model:
                raise UserError(
                    f"{file}: this is not the vocabulary of this run ({place}): bring it back, or "
                    "choose another output=…."
                )
        return
    for file, vocabulary in zip(files, imported, strict=True):
        if not vocabulary.has_bytes():
            say(f"{file}: this model has no byte pieces, so characters it does not know are lost.")
    with atomic_folder(folder) as temporary:
        for vocabulary, place in zip(
            imported, vocabulary_files(temporary, data.vocabulary.shared), strict=False
        ):
            place.write_bytes(vocabulary.model)
    pieces = " and ".join(f"{len(vocabulary):,}" for vocabulary in imported)
    say(f"Vocabulary: {' and '.join(files)}, {pieces} pieces")


def check_unchanged(folder: Path, files: tuple[str, ...]) -> None:
    """Refuse prepared data if the files that they were made from have changed."""
    meta = read_meta(folder)
    if len(meta.sha256) != len(files):
        raise damaged(folder / "meta.json")
    for path, known in zip(files, meta.sha256, strict=True):
        if digest(path) != known:
            raise UserError(
                f"{path} has changed since {folder} was prepared from it: "
                "restore it, or start the run from scratch."
            )


def learn_vocabularies(data: DataSettings, folder: Path) -> None:
    """Learn the vocabulary of both sides, or one for each, into `folder`."""
    if next(_usable_pairs(data), None) is None:
        what = "no pair with text on both sides"
        if data.drop_copies:
            what += " that is not a copy"
        raise UserError(f"{' and '.join(data.train_files())}: there is {what} to train on.")
    files = [corpus.files for corpus in data.train]
    pairs = _count_pairs(files, data.languages)
    if pairs is None:
        pairs = sum(check_pairs(corpus, data.languages) for corpus in files)
    with atomic_folder(folder) as temporary:
        source_file, target_file = vocabulary_files(temporary, data.vocabulary.shared)
        size = data.vocabulary.size
        exactly = "size" in data.vocabulary.model_fields_set  # a default may be too much
        if data.vocabulary.shared:
            source_file.write_bytes(learn(_sample(data, (0, 1), pairs), size, exactly).model)
        else:
            source_file.write_bytes(learn(_sample(data, (0,), pairs), size, exactly).model)
            target_file.write_bytes(learn(_sample(data, (1,), pairs), size, exactly).model)


def _sample(data: DataSettings, sides: tuple[int, ...], pairs: int) -> Iterator[str]:
    """Lines of these sides (0: source, 1: target) to learn from.

    All lines of a small corpus; of a large one about `SAMPLE_LINES`, the same every time.
    """
    share = SAMPLE_LINES / max(1, pairs * len(sides))
    draw = random.Random(0)
    for pair in _usable_pairs(data):
        if share >= 1 or draw.random() < share:
            for side in sides:
                yield pair[side]


def _usable_pairs(data: DataSettings) -> Iterator[tuple[str, str]]:
    files = [corpus.files for corpus in data.train]
    for pair in read_corpora(files, data.languages, Counter()):
        unwanted_copy = data.drop_copies and is_copy(pair)
        if _has_text(pair) and not unwanted_copy:
            yield pair


def _has_text(pair: tuple[str, str]) -> bool:
    """Whether neither side is empty."""
    source, target = pair
    return bool(source.strip()) and bool(target.strip())


def _count_pairs(corpora: Sequence[Sequence[str]], languages: Languages) -> int | None:
    """Pairs of several corpora; None if one of them cannot be counted quickly."""
    total = 0
    for files in corpora:
        count = count_pairs(files, languages)
        if count is None:
            return None
        total += count
    return total


def encode(
    corpora: Sequence[Sequence[str]],
    languages: Languages,
    vocabularies: tuple[Vocabulary, Vocabulary],
    folder: Path,
    longest: int,
    drop_copies: bool = False,
) -> None:
    """Encode a parallel corpus, or several, into `folder`.

    Left out and counted: pairs with an empty side, pairs with over `longest` pieces on a side, and
    copies if `drop_copies`.
    """
    counts: Counter[str] = Counter()
    largest = max(len(vocabulary) for vocabulary in vocabularies)
    dtype = np.dtype(np.uint16 if largest <= 1 << 16 else np.int32)
    title = f"Encoding {folder.name}"
    files = [file for corpus in corpora for file in corpus]
    with atomic_folder(folder) as temporary, unchanged(files):
        with (
            SideWriter(temporary, "source", dtype) as source_side,
            SideWriter(temporary, "target", dtype) as target_side,
            bar(title, _count_pairs(corpora, languages), "pairs") as progress,
        ):
            encoder = _Encoder(vocabularies, (source_side, target_side), longest, drop_copies)
            parts = _encode_in_turn(corpora, languages, counts, encoder, temporary, progress)
        tally = encoder.tally
        left_out = _left_out(tally, longest, counts)
        if not tally.kept:
            raise UserError(f"{' and '.join(files)}: no usable pair is left ({left_out}).")
        meta = CorpusMeta(
            pairs=tally.kept,
            dtype=dtype.name,
            tokens={"source": source_side.tokens, "target": target_side.tokens},
            files=tuple(files),
            left_out={
                "empty": tally.empty,
                "too_long": tally.too_long,
                "copies": tally.copies,
            }
            | {reason: counts[reason] for reason in REASONS if counts[reason]},
            copies=tally.copies_kept,
            repaired_lines=counts["repaired"],
            parts=tuple(parts) if len(parts) > 1 else (),
            sha256=tuple(digest(path) for path in files),
            digests=digests_of(temporary),
        )
        (temporary / "meta.json").write_text(to_json(meta.to_json()), encoding="utf-8")
    pieces = source_side.tokens + target_side.tokens
    say(f"{title}: {counted(tally.kept, 'pair')}, {counted(pieces, 'piece')}; {left_out}")


def _encode_in_turn(
    corpora: Sequence[Sequence[str]],
    languages: Languages,
    counts: Counter[str],
    encoder: _Encoder,
    folder: Path,
    progress: Bar,
) -> list[int]:
    """Encode one corpus after the other, and note where pairs lie; returns how many each keeps."""
    parts = []
    with (
        open(folder / "lines", "wb") as line_numbers,
        open(folder / Corpus.SKIPPED, "wb") as skipped_places,
    ):
        for corpus in corpora:
            before = encoder.tally.kept
            first = progress.done
            skipped: list[int] = []
            pairs = read_pairs(corpus, languages, counts, skipped=skipped)
            while chunk := list(islice(pairs, CHUNK)):
                kept = encoder.add(chunk)
                line_numbers.write((progress.done + kept).tobytes())
                progress.advance(len(chunk))
                skipped_places.write((np.array(skipped, np.int64) + first).tobytes())
                skipped.clear()
            # Those after the last pair.
            skipped_places.write((np.array(skipped, np.int64) + first).tobytes())
            parts.append(encoder.tally.kept - before)
    if not (folder / Corpus.SKIPPED).stat().st_size:
        (folder / Corpus.SKIPPED).unlink()
    return parts


@dataclass
class _Tally:
    """What became of the pairs of a text."""

    kept: int = 0
    copies_kept: int = 0  # of those that were kept
    empty: int = 0
    too_long: int = 0
    copies: int = 0  # left out for that


def _left_out(tally: _Tally, longest: int, counts: Counter[str]) -> str:
    text = f"left out: {tally.empty:,} with an empty side, {tally.too_long:,} over {longest} pieces"
    if tally.copies:
        text += f", {tally.copies:,} copies"
    entries = left_out_of(counts)
    if entries:
        text += f", {entries}"
    if counts["repaired"]:
        text += f"; repaired: {counts['repaired']:,} lines (byte-order mark, NUL)"
    return text


def _report_copies(folder: Path) -> None:
    meta = read_meta(folder)
    share = meta.copies / meta.pairs
    if share > MANY_COPIES:
        say(
            f"{meta.copies:,} of the training pairs ({share:.1%}) are copies: the target equals "
            "the source; such pairs teach a model to copy (data.drop_copies=true leaves them out)."
        )


class _Encoder:
    """Encodes pairs chunk by chunk, writes those that are kept, and counts."""

    def __init__(
        self,
        vocabularies: tuple[Vocabulary, Vocabulary],
        writers: tuple[SideWriter, SideWriter],
        longest: int,
        drop_copies: bool,
    ) -> None:
        """`vocabularies`, `writers`: of the source and of the target."""
        self.source_vocabulary, self.target_vocabulary = vocabularies
        self.source, self.target = writers
        self.longest = longest
        self.drop_copies = drop_copies
        self.tally = _Tally()

    def add(self, chunk: Sequence[tuple[str, str]]) -> np.ndarray:
        """Write the usable pairs of a chunk; returns their places in the chunk."""
        wanted = self._wanted(chunk)
        sources = self.source_vocabulary.encode([chunk[place][0] for place in wanted])
        targets = self.target_vocabulary.encode([chunk[place][1] for place in wanted])
        kept = []
        kept_sources = []
        kept_targets = []
        for place, source, target in zip(wanted, sources, targets, strict=True):
            if len(source) > self.longest or len(target) > self.longest:
                self.tally.too_long += 1
                continue
            kept.append(place)
            kept_sources.append(source)
            kept_targets.append(target)
            self.tally.copies_kept += is_copy(chunk[place])
        self.tally.kept += len(kept)
        self.source.add(kept_sources)
        self.target.add(kept_targets)
        return np.array(kept, dtype=np.int64)

    def _wanted(self, chunk: Sequence[tuple[str, str]]) -> list[int]:
        """Places of the pairs that have text on both sides and are not unwanted copies."""
        wanted = []
        for place, pair in enumerate(chunk):
            if not _has_text(pair):
                self.tally.empty += 1
            elif self.drop_copies and is_copy(pair):
                self.tally.copies += 1
            else:
                wanted.append(place)
        return wanted


def open_corpus(folder: Path, part: str) -> Corpus:
    """The prepared data of a run directory; `part`: "train" or "valid"."""
    return Corpus(folder / "data" / part)


def open_training_corpora(folder: Path) -> list[Corpus]:
    """What epochs are trained on in turn: the sampled segmentations, or the one that is not."""
    corpus = open_corpus(folder, "train")
    segmentations = folder / "data" / "segmentations"
    return open_segmentations(corpus, segmentations) if segmentations.exists() else [corpus]
