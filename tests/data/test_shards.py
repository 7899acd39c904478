"""Corpora in several files and behind URLs are read as one local file is."""

from __future__ import annotations

import gzip
import json
import lzma
from collections import Counter

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem

from cbmi.data.shards import find_shards
from cbmi.data.text import read_corpora
from cbmi.errors import UserError
from cbmi.files import unchanged
from cbmi.urls import is_url, url_mark

LANGUAGES = ("en", "de")
PAIRS = [("a house", "ein Haus"), ("two 🏠", "zwei 🏠"), ("three", "drei")]


@pytest.fixture
def memory():
    """A store that only this process has."""
    store = fsspec.filesystem("memory")
    store.rm("/", recursive=True)
    return store


def read(files):
    return list(read_corpora(find_shards(files), LANGUAGES, Counter()))


def lines(side):
    return "".join(pair[side] + "\n" for pair in PAIRS).encode()


def test_wildcards_stand_for_files_in_alphabetical_order(tmp_path):
    for name in ("part-2.en", "part-10.en", "part-1.en", "part-1.de", "part-2.de", "part-10.de"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / "part-3.en").mkdir()
    found = find_shards([f"{tmp_path}/part-*.en", f"{tmp_path}/part-*.de"])
    names = [tuple(path.removeprefix(f"{tmp_path}/") for path in shard) for shard in found]
    assert names == [
        ("part-1.en", "part-1.de"),
        ("part-10.en", "part-10.de"),
        ("part-2.en", "part-2.de"),
    ]


def test_a_name_that_looks_like_a_pattern_is_a_file_if_there_is_one(tmp_path):
    for name in ("text[1].en", "text[1].de", "text1.en"):
        (tmp_path / name).write_text("x\n")
    files = [f"{tmp_path}/text[1].en", f"{tmp_path}/text[1].de"]
    assert find_shards(files) == [tuple(files)]


def test_patterns_that_do_not_match(tmp_path):
    for name in ("a-1.en", "a-2.en", "a-1.de"):
        (tmp_path / name).write_text("x\n")
    with pytest.raises(UserError, match=r"b-\*\.en: no file has a name like this\."):
        find_shards([f"{tmp_path}/b-*.en", f"{tmp_path}/a-*.de"])
    with pytest.raises(UserError, match=r"a-\*\.en stands for 2 files but .*a-\*\.de for 1: "):
        find_shards([f"{tmp_path}/a-*.en", f"{tmp_path}/a-*.de"])


def test_what_a_url_is():
    assert is_url("s3://bucket/file.en")
    assert is_url("HTTPS://host/file.en")
    assert not is_url("folder/file.en")
    assert not is_url("C:/file.en")
    # A question mark begins a query there; only * is a wildcard.
    assert find_shards(["https://host/x.tsv?version=[1]"]) == [("https://host/x.tsv?version=[1]",)]


@pytest.mark.parametrize(
    ("suffix", "pack"),
    [
        ("", bytes),
        (".gz", gzip.compress),
        (".xz", lzma.compress),
        (".zst", zstandard.ZstdCompressor().compress),
    ],
)
def test_text_behind_urls(memory, suffix, pack):
    for side, language in enumerate(LANGUAGES):
        for part in (1, 2):
            memory.pipe(f"/corpus/{part}.{language}{suffix}", pack(lines(side)))
    one = [f"memory://corpus/1.{language}{suffix}" for language in LANGUAGES]
    assert read(one) == PAIRS
    both = [f"memory://corpus/*.{language}{suffix}" for language in LANGUAGES]
    assert read(both) == PAIRS + PAIRS


def test_tables_behind_urls(memory):
    rows = [{"en": source, "de": target} for source, target in PAIRS]
    memory.pipe("/t.jsonl", "".join(json.dumps(row) + "\n" for row in rows).encode())
    with memory.open("/t.parquet", "wb") as file:
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), file)
    assert read(["memory://t.jsonl"]) == PAIRS
    assert read(["memory://t.parquet"]) == PAIRS


def test_urls_that_cannot_be_read(memory):
    memory.pipe("/folder/x.en", b"x\n")
    for url, problem in {
        "memory://nothing.tsv": "there is no such file",
        "memory://no-*.tsv": "no file has a name like this",
        "memory://folder": "this is a folder, not a file",
        "nosuch://x.tsv": "cannot be read: Protocol not known: nosuch",
    }.items():
        with pytest.raises(UserError, match=f"^{url.replace('*', '.')}: {problem}"):
            read([url, url])


def test_a_connection_that_breaks_is_one_sentence(memory, monkeypatch):
    memory.pipe("/x.tsv", b"a\tb\n" * 100_000)

    class Broken(MemoryFile):
        def read(self, size=-1):
            if self.tell() > 50_000:
                raise RuntimeError("the other end hung up.\nmore about it")
            return super().read(min(size, 10_000))

    def opened(self, path, mode="rb", **others):
        return Broken(self, path, self.store["/x.tsv"].getvalue())

    monkeypatch.setattr(MemoryFileSystem, "open", opened)
    with pytest.raises(UserError, match=r"^memory://x\.tsv: cannot be read: the other end hung up"):
        read(["memory://x.tsv"])


def test_a_url_whose_content_changes_is_noticed(memory):
    memory.pipe("/x.tsv", b"a\tb\n")
    before = url_mark("memory://x.tsv")
    assert url_mark("memory://x.tsv") == before
    with (
        pytest.raises(UserError, match=r"^memory://x\.tsv has changed while it was read"),
        unchanged(["memory://x.tsv"]),
    ):
        memory.pipe("/x.tsv", b"a\tbc\n")
