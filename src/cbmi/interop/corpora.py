"""Corpora by name, under the file names that the recipes expect.

The demo's corpus is generated. Multi30k comes from its own repository, WMT's training sets through
mtdata (its index knows where they are now), WMT's test sets through sacrebleu. This is the only
place in the package that uses the network, and only when it is asked to.
"""

from __future__ import annotations

import http.client
import shutil
import subprocess
import sys
import tempfile
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from cbmi.data.text import check_pairs
from cbmi.demo.corpus import write as write_demo
from cbmi.errors import MissingExtra, UserError, import_extra
from cbmi.files import disk_errors, swap_in, temporary_folder
from cbmi.overrides import nearest
from cbmi.progress import bar, counted, say

MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
CHUNK = 1 << 16  # bytes
TIMEOUT = 30.0  # seconds of silence after which a server is given up

Fetch = Callable[[tuple[Path, Path]], None]  # writes the source and the target side


@dataclass(frozen=True)
class CorpusPart:
    """A training, validation or test set."""

    files: tuple[str, str]  # source, target
    fetch: Fetch
    pairs: int
    # False for training sets, whose cleaning changes: there are at least `pairs`.
    exact_count: bool = True


@dataclass(frozen=True)
class NamedCorpus:
    about: str  # one line for people
    parts: tuple[CorpusPart, ...]


def _from_url(address: str) -> Fetch:
    """`address` has {side} for the language."""

    def fetch(places: tuple[Path, Path]) -> None:
        for place in places:
            language = place.name.removesuffix(".gz").rpartition(".")[2]
            download(address.format(side=language), place)

    return fetch


def _from_sacrebleu(test_set: str, pair: str) -> Fetch:
    def fetch(places: tuple[Path, Path]) -> None:
        sacrebleu = import_extra("sacrebleu.utils", "A WMT test set", "eval")
        try:
            source = sacrebleu.get_source_file(test_set, pair)
            reference = sacrebleu.get_reference_files(test_set, pair)[0]
        except (OSError, SystemExit) as error:
            reason = f"sacrebleu could not download it ({error}); a network connection is required."
            raise UserError(f"{test_set} {pair}: {reason}") from None
        shutil.copyfile(source, places[0])
        shutil.copyfile(reference, places[1])

    return fetch


def _from_mtdata(languages: tuple[str, str], *names: str) -> Fetch:
    """`languages`: mtdata's codes of source and target, such as eng and deu."""

    def fetch(places: tuple[Path, Path]) -> None:
        if find_spec("mtdata") is None:
            raise MissingExtra("A WMT training set", "corpora")
        with tempfile.TemporaryDirectory(dir=places[0].parent) as folder:
            command = [sys.executable, "-P", "-m", "mtdata", "get"]
            command += ["-l", "-".join(languages)]
            command += ["--train", *names]
            command += ["--merge", "--compress", "-o", folder]
            if subprocess.run(command).returncode:
                raise UserError(
                    f"mtdata could not get {', '.join(names)} (see above); "
                    "a network connection is required."
                )
            for place, language in zip(places, languages, strict=True):
                shutil.move(Path(folder) / f"train.{language}.gz", place)

    return fetch


def _built_in(places: tuple[Path, Path]) -> None:
    # All parts are generated, and those that were asked for are kept.
    with tempfile.TemporaryDirectory(dir=places[0].parent) as folder:
        write_demo(Path(folder))
        for place in places:
            shutil.move(Path(folder) / place.name, place)


def _demo(name: str, pairs: int) -> CorpusPart:
    return CorpusPart((f"{name}.en", f"{name}.de"), _built_in, pairs)


def _multi30k(own: str, theirs: str, pairs: int) -> CorpusPart:
    """`own`, `theirs`: the name of a part in our recipes, and in Multi30k's repository."""
    fetch = _from_url(f"{MULTI30K}{theirs}.{{side}}.gz")
    return CorpusPart((f"{own}.en.gz", f"{own}.de.gz"), fetch, pairs)


def _test_set(own: str, theirs: str, pair: str, pairs: int) -> CorpusPart:
    """`own`, `theirs`: the name of a test set in our recipes, and sacrebleu's."""
    source, target = pair.split("-")
    return CorpusPart((f"{own}.{source}", f"{own}.{target}"), _from_sacrebleu(theirs, pair), pairs)


CORPORA = {
    "demo": NamedCorpus(
        "the built-in corpus: made-up English and German, 12,000 pairs, one in twenty mismatched; "
        "needs no network",
        (_demo("train", 12_000), _demo("valid", 300), _demo("test", 500)),
    ),
    "multi30k": NamedCorpus(
        "English-German image captions, 29,000 pairs",
        (
            _multi30k("train", "train", 29_000),
            _multi30k("valid", "val", 1_014),
            _multi30k("test2016", "test_2016_flickr", 1_000),
            _multi30k("test2017", "test_2017_flickr", 1_000),
        ),
    ),
    "wmt14-en-de": NamedCorpus(
        "Europarl v7, Common Crawl, News Commentary v13 (WMT14 itself had v9): some 4.6 million "
        "pairs; newstest2013 and newstest2014",
        (
            CorpusPart(
                ("train.en.gz", "train.de.gz"),
                _from_mtdata(
                    ("eng", "deu"),
                    "Statmt-europarl_wmt13-7-deu-eng",
                    "Statmt-commoncrawl_wmt13-1-deu-eng",
                    "Statmt-news_commentary_wmt18-13-deu-eng",
                ),
                4_400_000,
                exact_count=False,
            ),
            _test_set("newstest2013", "wmt13", "en-de", 3_000),
            _test_set("newstest2014", "wmt14/full", "en-de", 3_003),
        ),
    ),
    "wmt19-zh-en": NamedCorpus(
        "UN Parallel Corpus, News Commentary v14: some 17 million pairs (without CWMT, which its "
        "owners hand out themselves); newstest2018 and newstest2019",
        (
            CorpusPart(
                ("train.zh.gz", "train.en.gz"),
                _from_mtdata(
                    ("zho", "eng"), "OPUS-unpc-v1.0-eng-zho", "Statmt-news_commentary-14-eng-zho"
                ),
                15_000_000,
                exact_count=False,
            ),
            _test_set("newstest2018", "wmt18", "zh-en", 3_981),
            _test_set("newstest2019", "wmt19", "zh-en", 2_000),
        ),
    ),
}


def listing() -> str:
    """One line per corpus: its name and what it is."""
    return "\n".join(f"{name}: {corpus.about}" for name, corpus in CORPORA.items())


def get_corpus(name: str, folder: Path) -> None:
    """Bring a corpus into `folder`. Existing parts are checked and kept."""
    if name not in CORPORA:
        raise UserError(f"corpus: unknown corpus '{name}'{nearest(name, CORPORA)}.")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for part in CORPORA[name].parts:
        places = _places(folder, part)
        if all(place.exists() for place in places):
            pairs = _check(part, places)
        else:
            pairs = _fetch(part, folder)
        say(f"{folder}: {' and '.join(part.files)}, {counted(pairs, 'pair')}")


def _fetch(part: CorpusPart, folder: Path) -> int:
    """Get a part, check it, and only then move it to its place; returns the number of pairs."""
    with disk_errors(folder), temporary_folder(folder, "new") as temporary:
        new = _places(temporary, part)
        part.fetch(new)
        pairs = _check(part, new)
        swap_in(new, _places(folder, part))
    return pairs


def _places(folder: Path, part: CorpusPart) -> tuple[Path, Path]:
    source, target = part.files
    return folder / source, folder / target


def _check(part: CorpusPart, places: tuple[Path, Path]) -> int:
    """The number of pairs of two files; refuses them if it is not the right one."""
    found = check_pairs([str(place) for place in places], ("", ""))
    is_right = found == part.pairs if part.exact_count else found >= part.pairs
    if not is_right:
        wanted = f"{part.pairs:,}" if part.exact_count else f"at least {part.pairs:,}"
        raise UserError(
            f"{' and '.join(part.files)}: expected {wanted} pairs but found {found:,}: "
            "a different or incomplete corpus."
        )
    return found


def download(address: str, place: Path) -> None:
    """Download a file, with a progress bar."""
    with disk_errors(place):
        file = open(place, "wb")
    try:
        with file, urllib.request.urlopen(address, timeout=TIMEOUT) as answer:
            size = int(answer.headers.get("Content-Length") or 0) or None
            with bar(f"Downloading {address.rpartition('/')[2]}", size, "bytes") as progress:
                while chunk := answer.read(CHUNK):
                    # An OSError of the disk must not pass for one of the network.
                    with disk_errors(place):
                        file.write(chunk)
                    progress.advance(len(chunk))
        if size and progress.done < size:
            raise UserError(
                f"{address}: the connection ended after {progress.done:,} of {size:,} bytes; "
                "try again."
            )
    except urllib.error.HTTPError as error:
        raise UserError(f"{address}: the server says {error.code} ({error.reason}).") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise UserError(
            f"{address} cannot be reached ({reason}); a network connection is required."
        ) from None
