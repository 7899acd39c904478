"""Text to memory-mapped ids, as a stream: memory does not grow with the corpus."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from itertools import chain, islice
from pathlib import Path
from typing import BinaryIO

import numpy as np

from cbmi.config import Data
from cbmi.data.corpus import Corpus
from cbmi.data.text import count_lines, is_copy, read_pairs
from cbmi.data.vocabulary import Vocabulary, learn
from cbmi.errors import UserError
from cbmi.files import atomic_folder, digest, read_json, to_json
from cbmi.progress import bar, say

CHUNK = 20_000  # pairs encoded at a time
SAMPLE_LINES = 5_000_000  # a vocabulary is learnt from about so many lines at most, drawn at random
LONGEST_VALIDATION = 1024  # pieces per side
MANY_COPIES = 0.01  # of the pairs: more of them are worth a word


def vocabulary_files(folder: Path, shared: bool) -> tuple[Path, Path]:
    if shared:
        return folder / "shared.model", folder / "shared.model"
    return folder / "source.model", folder / "target.model"


def load_vocabularies(folder: Path, shared: bool) -> tuple[Vocabulary, Vocabulary]:
    """Source and target vocabulary; the same object where they are shared."""
    source, target = vocabulary_files(folder, shared)
    first = Vocabulary.load(source)
    return first, first if shared else Vocabulary.load(target)


def prepare(data: Data, folder: Path) -> None:
    """Make what is missing of `folder`/vocab, `folder`/data/train and `folder`/data/valid."""
    folder.mkdir(parents=True, exist_ok=True)
    if not (folder / "vocab").exists():
        say(f"Learning the vocabulary: {data.vocabulary.size:,} pieces")
        learn_vocabularies(data, folder / "vocab")
    source, target = load_vocabularies(folder / "vocab", data.vocabulary.shared)
    if not (folder / "data" / "train").exists():
        encode(data.train, source, target, folder / "data" / "train", data.max_length, data.drop_copies)
        _report_copies(folder / "data" / "train")
    if data.valid and not (folder / "data" / "valid").exists():
        encode(data.valid, source, target, folder / "data" / "valid", LONGEST_VALIDATION)
    for part, files in (("train", data.train), ("valid", data.valid)):
        if files:
            check_unchanged(folder / "data" / part, files)


def check_unchanged(folder: Path, files: tuple[str, ...]) -> None:
    """Refuse to go on with prepared data if the files that they were made of are not the same any more."""
    meta = read_json(folder / "meta.json")
    for path, known in zip(files, meta["sha256"], strict=True):
        if digest(path) != known:
            raise UserError(
                f"{path} has changed since {folder} was prepared from it: bring it back, or begin the run anew."
            )


def learn_vocabularies(data: Data, folder: Path) -> None:
    def lines(sides: tuple[int, ...]) -> Iterator[str]:
        share, draw = SAMPLE_LINES / max(1, pairs * len(sides)), random.Random(0)
        for pair in _usable(data):
            if share >= 1 or draw.random() < share:
                for side in sides:
                    yield pair[side]

    if next(_usable(data), None) is None:
        what = "no pair with text on both sides" + (" that is not a copy" if data.drop_copies else "")
        raise UserError(f"{' and '.join(data.train)}: there is {what} to train on.")
    pairs = count_lines(data.train[0])
    with atomic_folder(folder) as temporary:
        files = vocabulary_files(temporary, data.vocabulary.shared)
        sides = [(0, 1)] if data.vocabulary.shared else [(0,), (1,)]
        for path, side in zip(files, sides, strict=False):
            path.write_bytes(learn(lines(side), data.vocabulary.size).model)


def _usable(data: Data) -> Iterator[tuple[str, str]]:
    for pair in read_pairs(data.train, Counter()):
        if pair[0].strip() and pair[1].strip() and not (data.drop_copies and is_copy(pair)):
            yield pair


def encode(
    files: tuple[str, ...],
    source: Vocabulary,
    target: Vocabulary,
    folder: Path,
    longest: int,
    drop_copies: bool = False,
) -> None:
    """Encode a parallel corpus into `folder`; pairs that are empty, over `longest` pieces, or copies if they are not
    wanted, are left out."""
    counts: Counter[str] = Counter()
    dtype = np.dtype(np.uint16 if max(len(source), len(target)) <= 1 << 16 else np.int32)
    title = f"Encoding {folder.name}"
    with atomic_folder(folder) as temporary:
        sides = [_Writer(temporary, name, dtype) for name in ("source", "target")]
        with bar(title, count_lines(files[0]), "pairs") as progress, open(temporary / "lines", "wb") as numbers:
            pairs = read_pairs(files, counts)
            while chunk := list(islice(pairs, CHUNK)):
                wanted = _wanted(chunk, drop_copies, counts)
                kept = wanted[_encode_chunk([chunk[i] for i in wanted], (source, target), sides, longest, counts)]
                numbers.write((progress.done + kept).tobytes())
                progress.advance(len(chunk))
        if not counts["pairs"]:
            raise UserError(f"{' and '.join(files)}: no usable pair is left ({_left_out(counts, longest)}).")
        tokens = {side.name: side.close() for side in sides}
        meta = {"pairs": counts["pairs"], "dtype": dtype.name, "tokens": tokens, "files": list(files)}
        meta["left_out"] = {name: counts[name] for name in ("empty", "too_long", "copies")}
        meta["copies"] = counts["copies kept"]
        meta["repaired_lines"] = counts["repaired"]
        meta["sha256"] = [digest(path) for path in files]
        (temporary / "meta.json").write_text(to_json(meta), encoding="utf-8")
    say(f"{title}: {counts['pairs']:,} pairs, {sum(tokens.values()):,} pieces; {_left_out(counts, longest)}")


def _report_copies(folder: Path) -> None:
    meta = read_json(folder / "meta.json")
    if (share := meta["copies"] / meta["pairs"]) > MANY_COPIES:
        say(
            f"{meta['copies']:,} of the training pairs ({share:.1%}) are copies, target the same as source; such "
            "pairs teach a model to copy (data.drop_copies=true leaves them out)."
        )


def _left_out(counts: Counter[str], longest: int) -> str:
    parts = [f"left out: {counts['empty']:,} with an empty side, {counts['too_long']:,} over {longest} pieces"]
    if counts["copies"]:
        parts.append(f"{counts['copies']:,} copies")
    if counts["repaired"]:
        parts.append(f"{counts['repaired']:,} lines repaired (byte-order mark, NUL)")
    return ", ".join(parts)


def _wanted(chunk: list[tuple[str, str]], drop_copies: bool, counts: Counter[str]) -> np.ndarray:
    """Places of the pairs that have text on both sides and are no copies, if those are not wanted."""
    filled = [i for i, pair in enumerate(chunk) if pair[0].strip() and pair[1].strip()]
    wanted = [i for i in filled if not (drop_copies and is_copy(chunk[i]))]
    counts["empty"] += len(chunk) - len(filled)
    counts["copies"] += len(filled) - len(wanted)
    return np.array(wanted, dtype=np.int64)


def _encode_chunk(
    chunk: list[tuple[str, str]],
    vocabularies: tuple[Vocabulary, Vocabulary],
    sides: list[_Writer],
    longest: int,
    counts: Counter[str],
) -> np.ndarray:
    """Append a chunk's pairs to both sides; gives the places in the chunk of those that were kept."""
    ids = [v.encode([pair[side] for pair in chunk]) for side, v in enumerate(vocabularies)]
    lengths = np.array([[len(line) for line in side] for side in ids], dtype=np.int64).reshape(2, -1)
    kept = np.flatnonzero((lengths <= longest).all(axis=0))
    counts["too_long"] += len(chunk) - len(kept)
    counts["pairs"] += len(kept)
    counts["copies kept"] += sum(is_copy(chunk[i]) for i in kept)
    for writer, side, side_lengths in zip(sides, ids, lengths, strict=True):
        writer.add([side[i] for i in kept], side_lengths[kept])
    return kept


class _Writer:
    """Appends one side's ids and offsets to their files."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype) -> None:
        self.name, self.dtype, self.end = name, dtype, 0
        self.ids: BinaryIO = open(folder / f"{name}.ids", "wb")
        self.offsets: BinaryIO = open(folder / f"{name}.offsets", "wb")
        self.offsets.write(np.int64(0).tobytes())

    def add(self, sentences: list[list[int]], lengths: np.ndarray) -> None:
        flat = np.fromiter(chain.from_iterable(sentences), dtype=self.dtype, count=int(lengths.sum()))
        self.ids.write(flat.tobytes())
        self.offsets.write((self.end + np.cumsum(lengths)).tobytes())
        self.end += int(lengths.sum())

    def close(self) -> int:
        self.ids.close()
        self.offsets.close()
        return self.end


def open_corpus(folder: Path, part: str) -> Corpus:
    return Corpus(folder / "data" / part)
