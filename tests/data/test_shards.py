"""Corpora in several files and behind URLs are read as one local file is."""

from __future__ import annotations

import gzip
import json
import lzma
import random
from collections import Counter

import fsspec
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from fsspec.implementations.memory import MemoryFile, MemoryFileSystem
from web import serving

from cbmi import urls
from cbmi.data.shards import find_shards
from cbmi.data.text import read_corpora, read_pairs
from cbmi.digests import unchanged
from cbmi.errors import UserError
from cbmi.urls import Url, named_by_user, url_mark

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


@pytest.fixture
def server(tmp_path):
    """A web server of this machine: its address, and the folder that it shows."""
    folder = tmp_path / "web"
    folder.mkdir()
    with serving(folder) as address:
        yield address, folder


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


def test_files_that_do_not_belong_together(tmp_path):
    for name in ("p-1.en", "p-2.en", "p-2.de", "p-3.de"):
        (tmp_path / name).write_text("x\n")
    message = r"p-1\.en: .*p-\*\.de has no counterpart for it"
    with pytest.raises(UserError, match=message):
        find_shards([f"{tmp_path}/p-*.en", f"{tmp_path}/p-*.de"])
    # Names that sort differently: "." < "1" < "_".
    for name in ("q.en", "q1.en", "q_de", "q1_de"):
        (tmp_path / name).write_text("x\n")
    found = find_shards([f"{tmp_path}/q*.en", f"{tmp_path}/q*_de"])
    assert found == [
        (f"{tmp_path}/q.en", f"{tmp_path}/q_de"),
        (f"{tmp_path}/q1.en", f"{tmp_path}/q1_de"),
    ]


@pytest.mark.parametrize("pattern", ["?-[12].x", "**/a-*.x", "[!b]-*.x"])
def test_every_wildcard_of_the_shell(tmp_path, pattern):
    for name in ("a-1.x", "a-2.x"):
        for side in ("en", "de"):
            (tmp_path / side).mkdir(exist_ok=True)
            (tmp_path / side / name).write_text("x\n")
    found = find_shards([f"{tmp_path}/en/{pattern}", f"{tmp_path}/de/{pattern}"])
    names = [tuple(path.rsplit("/", 2)[-2] + path[-6:] for path in shard) for shard in found]
    assert names == [("en/a-1.x", "de/a-1.x"), ("en/a-2.x", "de/a-2.x")]


def test_what_a_url_is():
    for name in ("s3://bucket/file.en", "HTTPS://host/file.en"):
        assert isinstance(named_by_user(name), Url)
    for name in ("folder/file.en", "C:/file.en"):
        assert named_by_user(name) == name
        assert not isinstance(named_by_user(name), Url)
    assert named_by_user("file:///folder/file.en") == "/folder/file.en"
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
    one = [f"MEMORY://corpus/1.{language}{suffix}" for language in LANGUAGES]
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


def test_a_url_of_this_machine_is_a_file(tmp_path):
    for side, language in enumerate(LANGUAGES):
        (tmp_path / f"x.{language}").write_bytes(lines(side))
    urls = [f"file://{tmp_path}/x.{language}" for language in LANGUAGES]
    assert find_shards(urls) == [(f"{tmp_path}/x.en", f"{tmp_path}/x.de")]
    assert read(urls) == PAIRS


def test_web_addresses(server):
    """With a query, as downloads have; more than a block, from a server that has no ranges."""
    address, folder = server
    rows = [{"en": source, "de": target} for source, target in PAIRS]
    text = "".join(f"{source}\t{target}\n" for source, target in PAIRS)
    many = 9_000_000 // len(text.encode())
    (folder / "many.tsv.gz").write_bytes(gzip.compress((text * many).encode(), 1))
    (folder / "many.tsv").write_text(text * many)
    for name in ("many.tsv", "many.tsv.gz?download=true"):
        assert len(read([f"{address}/{name}"])) == 3 * many
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), folder / "t.parquet")
    assert read([f"{address}/t.parquet?token=1"]) == PAIRS
    with pytest.raises(UserError, match=r"nothing\.tsv: there is no such file\.$"):
        read([f"{address}/nothing.tsv"])
    url = Url(f"{address}/many.tsv")
    before = url_mark(url)
    assert url_mark(url) == before
    (folder / "many.tsv").write_text(text)
    assert url_mark(url) != before


def test_a_web_file_may_stay_open_as_long_as_it_takes(server, monkeypatch):
    """Pairs are worked on while it is open; only a server that sends nothing has gone."""
    address, folder = server
    (folder / "x.tsv").write_text("a\tb\n")
    file_system, _ = urls._file_system(f"{address}/x.tsv")
    timeout = file_system.client_kwargs["timeout"]
    assert (timeout.total, timeout.sock_read) == (None, urls.SILENCE)


def test_a_signed_address_is_that_of_the_same_file(server):
    """With another signature each time; the query, which may be a secret, is not shown."""
    address, folder = server
    (folder / "x.tsv.gz").write_bytes(gzip.compress(b"a\tb\n"))
    url = Url(f"{address}/signed/x.tsv.gz?token=SECRET")
    assert url_mark(url) == url_mark(url)
    assert read([url]) == [("a", "b")]
    (folder / "x.tsv.gz").unlink()
    with pytest.raises(UserError, match=r"signed/x\.tsv\.gz: there is no such file\.$") as caught:
        read([url])
    assert "SECRET" not in str(caught.value)


def test_wildcards_of_web_addresses(server):
    address, folder = server
    for number in (2, 1):
        (folder / f"part-{number}.tsv").write_text(f"{number}\tx\n")
    assert read([f"{address.replace('http', 'HTTP')}/part-*.tsv"]) == [("1", "x"), ("2", "x")]


def test_only_stars_are_wildcards_of_urls(memory):
    for name in ("?-1", "x-2", "[ab]-3", "a-3"):
        for side, language in enumerate(LANGUAGES):
            memory.pipe(f"/c/{name}.{language}", lines(side))
    for pattern, parts in {"?-*": 1, "[ab]-*": 1, "*": 4}.items():
        found = find_shards([f"memory://c/{pattern}.{language}" for language in LANGUAGES])
        assert len(found) == parts, pattern


def test_only_what_the_user_names_is_opened(server):
    """A name in a stranger's run that looks like a URL is a file that does not exist."""
    address, folder = server
    (folder / "x.tsv").write_text("a\tb\n")
    assert read([f"{address}/x.tsv"]) == [("a", "b")]
    with pytest.raises(UserError, match=r"x\.tsv: cannot be read: No such file or directory"):
        list(read_pairs([f"{address}/x.tsv"], LANGUAGES, Counter()))


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


@pytest.mark.parametrize("after", [-1, 50_000])
@pytest.mark.parametrize("name", ["x.tsv", "x.jsonl", "x.csv", "x.tmx", "x.parquet", "x.tsv.gz"])
def test_a_connection_that_breaks_is_one_sentence(memory, monkeypatch, name, after):
    content = random.Random(1).randbytes(400_000)
    if name.endswith(("tsv", "jsonl", "csv")):
        content = b'{"en": "a", "de": "b"}\n' if name == "x.jsonl" else b"en\tde\n"
        content = (b"en,de\n" if name == "x.csv" else content) * 20_000
    opened = []
    closed = []

    class Broken(MemoryFile):
        def read(self, size=-1):
            if self.tell() > after:
                raise RuntimeError("the other end hung up.\nmore about it")
            return super().read(min(size, 10_000))

        def close(self):
            closed.append(self)

    def open_broken(self, path, mode="rb", **others):
        opened.append(Broken(self, path, content))
        return opened[-1]

    memory.pipe(f"/{name}", b"")
    monkeypatch.setattr(MemoryFileSystem, "open", open_broken)
    with pytest.raises(UserError, match=rf"^memory://{name}[^\n]*\.$"):
        read([f"memory://{name}"])
    assert set(map(id, closed)) == set(map(id, opened))


def test_a_url_whose_content_changes_is_noticed(memory):
    memory.pipe("/x.tsv", b"a\tb\n")
    url = Url("memory://x.tsv")
    before = url_mark(url)
    assert url_mark(url) == before
    with (
        pytest.raises(UserError, match=r"^memory://x\.tsv has changed while it was read"),
        unchanged([url]),
    ):
        memory.pipe("/x.tsv", b"a\tbc\n")
