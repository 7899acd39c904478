"""Corpora by name, under the file names that the recipes expect.

The demo's corpus is made up on the spot. Multi30k comes from its own repository, WMT's training sets through mtdata
(its index knows where they lie now), WMT's test sets through sacrebleu. This is the one place of the package that
uses the network, and only when it is asked to.
"""

from __future__ import annotations

import http.client
import os
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

from cbmi.config import nearest
from cbmi.data.demo import write as write_demo
from cbmi.data.text import check_pairs
from cbmi.errors import UserError
from cbmi.files import disk_errors
from cbmi.progress import bar, say

MULTI30K = "https://raw.githubusercontent.com/multi30k/dataset/master/data/task1/raw/"
CHUNK = 1 << 16  # bytes
SECONDS = 30.0  # of silence after which a server is given up
Fetch = Callable[[tuple[Path, Path]], None]  # writes the source and the target side


@dataclass(frozen=True)
class Part:
    files: tuple[str, str]  # source, target
    fetch: Fetch
    pairs: int  # how many there are; for training sets, whose cleaning changes, at least
    exact: bool = True


@dataclass(frozen=True)
class NamedCorpus:
    about: str
    parts: tuple[Part, ...]


def _from_url(address: str) -> Fetch:
    """`address` has {side} for the language."""

    def fetch(places: tuple[Path, Path]) -> None:
        for place in places:
            language = place.name.removesuffix(".gz").rpartition(".")[2]
            download(address.format(side=language), place)

    return fetch


def _from_sacrebleu(test_set: str, pair: str) -> Fetch:
    def fetch(places: tuple[Path, Path]) -> None:
        try:
            from sacrebleu.utils import get_reference_files, get_source_file
        except ImportError:
            raise UserError("WMT's test sets need the extra 'eval': pip install 'cbmi[eval]'.") from None
        try:
            found = get_source_file(test_set, pair), get_reference_files(test_set, pair)[0]
        except (OSError, SystemExit) as error:
            reason = f"sacrebleu could not download it ({error}); this needs a network."
            raise UserError(f"{test_set} {pair}: {reason}") from None
        for place, file in zip(places, found, strict=True):
            shutil.copyfile(file, place)

    return fetch


def _from_mtdata(languages: tuple[str, str], *names: str) -> Fetch:
    """`languages`: mtdata's codes of source and target, such as eng and deu."""

    def fetch(places: tuple[Path, Path]) -> None:
        if find_spec("mtdata") is None:
            raise UserError("WMT's training sets need the extra 'corpora': pip install 'cbmi[corpora]'.")
        with tempfile.TemporaryDirectory(dir=places[0].parent) as folder:
            command = [sys.executable, "-m", "mtdata", "get", "-l", "-".join(languages), "--train", *names]
            command += ["--merge", "--compress", "-o", folder]
            if subprocess.run(command).returncode:
                raise UserError(f"mtdata could not get {', '.join(names)} (see above); this needs a network.")
            for place, language in zip(places, languages, strict=True):
                shutil.move(Path(folder) / f"train.{language}.gz", place)

    return fetch


def _built_in(places: tuple[Path, Path]) -> None:
    with tempfile.TemporaryDirectory(dir=places[0].parent) as folder:
        write_demo(Path(folder))
        for place in places:
            shutil.move(Path(folder) / place.name, place)


def _multi30k(own: str, theirs: str, pairs: int) -> Part:
    return Part((f"{own}.en.gz", f"{own}.de.gz"), _from_url(f"{MULTI30K}{theirs}.{{side}}.gz"), pairs)


def _test_set(own: str, theirs: str, pair: str, pairs: int) -> Part:
    source, target = pair.split("-")
    return Part((f"{own}.{source}", f"{own}.{target}"), _from_sacrebleu(theirs, pair), pairs)


CORPORA = {
    "demo": NamedCorpus(
        "the built-in corpus: made-up English and German, 12,000 pairs, one in twenty mismatched; needs no network",
        tuple(
            Part((f"{name}.en", f"{name}.de"), _built_in, pairs)
            for name, pairs in (("train", 12_000), ("valid", 300), ("test", 500))
        ),
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
        "Europarl v7, Common Crawl, News Commentary v13 (WMT14 itself had v9): some 4.6 million pairs; newstest2013 "
        "and newstest2014",
        (
            Part(
                ("train.en.gz", "train.de.gz"),
                _from_mtdata(
                    ("eng", "deu"),
                    "Statmt-europarl_wmt13-7-deu-eng",
                    "Statmt-commoncrawl_wmt13-1-deu-eng",
                    "Statmt-news_commentary_wmt18-13-deu-eng",
                ),
                4_400_000,
                exact=False,
            ),
            _test_set("newstest2013", "wmt13", "en-de", 3_000),
            _test_set("newstest2014", "wmt14/full", "en-de", 3_003),
        ),
    ),
    "wmt19-zh-en": NamedCorpus(
        "UN Parallel Corpus, News Commentary v14: some 17 million pairs (without CWMT, which its owners hand out "
        "themselves); newstest2018 and newstest2019",
        (
            Part(
                ("train.zh.gz", "train.en.gz"),
                _from_mtdata(("zho", "eng"), "OPUS-unpc-v1.0-eng-zho", "Statmt-news_commentary-14-eng-zho"),
                15_000_000,
                exact=False,
            ),
            _test_set("newstest2018", "wmt18", "zh-en", 3_981),
            _test_set("newstest2019", "wmt19", "zh-en", 2_000),
        ),
    ),
}


def listing() -> str:
    return "\n".join(f"{name}: {corpus.about}" for name, corpus in CORPORA.items())


def get_corpus(name: str, folder: Path) -> None:
    """Bring a corpus into `folder`; parts that are there and right are kept."""
    if name not in CORPORA:
        raise UserError(f"corpus: unknown corpus '{name}'{nearest(name, CORPORA)}.")
    with disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    for part in CORPORA[name].parts:
        places = _places(folder, part)
        if all(place.exists() for place in places):
            pairs = _check(part, places)
        else:
            with disk_errors(folder), tempfile.TemporaryDirectory(dir=folder, prefix=".new-") as temporary:
                new = _places(Path(temporary), part)
                part.fetch(new)
                pairs = _check(part, new)
                for place, file in zip(places, new, strict=True):
                    os.replace(file, place)
        say(f"{folder}: {' and '.join(part.files)}, {pairs:,} pairs")


def _places(folder: Path, part: Part) -> tuple[Path, Path]:
    return folder / part.files[0], folder / part.files[1]


def _check(part: Part, places: tuple[Path, Path]) -> int:
    """The number of pairs, once it is sure that it is right."""
    found = check_pairs([str(place) for place in places])
    if found != part.pairs and (part.exact or found < part.pairs):
        wanted = f"{part.pairs:,}" if part.exact else f"at least {part.pairs:,}"
        raise UserError(
            f"{' and '.join(part.files)}: there are {found:,} pairs, not {wanted}: this is another corpus."
        )
    return found


def download(address: str, place: Path) -> None:
    """A file from the network, with a bar."""
    with disk_errors(place):
        file = open(place, "wb")
    try:
        with file, urllib.request.urlopen(address, timeout=SECONDS) as answer:
            size = int(answer.headers.get("Content-Length") or 0) or None
            with bar(f"Downloading {address.rpartition('/')[2]}", size, "bytes") as progress:
                while chunk := answer.read(CHUNK):
                    with disk_errors(place):
                        file.write(chunk)
                    progress.advance(len(chunk))
        if size and progress.done < size:
            raise UserError(f"{address}: the connection ended after {progress.done:,} of {size:,} bytes; try again.")
    except urllib.error.HTTPError as error:
        raise UserError(f"{address}: the server says {error.code} ({error.reason}).") from None
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", None) or str(error) or type(error).__name__
        raise UserError(f"{address} cannot be reached ({reason}); this needs a network.") from None
