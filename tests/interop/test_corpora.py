"""Public corpora: from a server of our own, so that the tests need no network."""

from __future__ import annotations

import gzip
import socket
import sys
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import chain
from typing import Any

import pytest
from tasks import ROOT, cbmi, refused

from cbmi.config import read_config
from cbmi.demo.corpus import generate
from cbmi.errors import UserError
from cbmi.interop import corpora


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *arguments: Any) -> None: ...


@pytest.fixture
def server(tmp_path, monkeypatch):
    """The folder of a server that stands in for Multi30k's; the sets are three pairs long."""
    folder = tmp_path / "server"
    folder.mkdir()
    service = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=folder))
    threading.Thread(target=service.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{service.server_port}/"
    parts = [("train", "train"), ("valid", "val")]
    for _, theirs in parts:
        for side in ("en", "de"):
            (folder / f"{theirs}.{side}.gz").write_bytes(gzip.compress(b"a\nb\nc\n"))
    monkeypatch.setattr(corpora, "MULTI30K", address)
    tiny = corpora.NamedCorpus(
        "tiny", tuple(corpora._multi30k(own, theirs, 3) for own, theirs in parts)
    )
    monkeypatch.setitem(corpora.CORPORA, "multi30k", tiny)
    yield folder
    service.shutdown()
    service.server_close()


def test_a_corpus_is_downloaded_once(server, tmp_path):
    folder = tmp_path / "data"
    said = cbmi("corpus", "get", "multi30k", "-o", folder).stderr.decode()
    assert "train.en.gz and train.de.gz, 3 pairs" in said
    assert gzip.decompress((folder / "valid.de.gz").read_bytes()) == b"a\nb\nc\n"
    assert sorted(p.name for p in folder.iterdir()) == [
        "train.de.gz",
        "train.en.gz",
        "valid.de.gz",
        "valid.en.gz",
    ]
    for file in server.iterdir():
        file.unlink()
    assert cbmi("corpus", "get", "multi30k", "-o", folder).returncode == 0


def test_what_is_not_right_is_not_kept(server, tmp_path):
    folder = tmp_path / "data"
    for side in ("en", "de"):
        (server / f"val.{side}.gz").write_bytes(gzip.compress(b"a\nb\n"))
    message = refused("corpus", "get", "multi30k", "-o", folder)
    assert "valid.en.gz and valid.de.gz: expected 3 pairs but found 2" in message
    assert sorted(p.name for p in folder.iterdir()) == ["train.de.gz", "train.en.gz"]
    (server / "val.en.gz").unlink()
    assert "val.en.gz: the server says 404" in refused("corpus", "get", "multi30k", "-o", folder)


def test_without_a_network_it_says_so(tmp_path, monkeypatch):
    fetch = corpora._from_url("http://127.0.0.1:9/{side}")
    part = corpora.CorpusPart(("a.x", "a.y"), fetch, 1)
    monkeypatch.setitem(corpora.CORPORA, "multi30k", corpora.NamedCorpus("", (part,)))
    message = refused("corpus", "get", "multi30k", "-o", tmp_path / "data")
    assert "http://127.0.0.1:9/x cannot be reached" in message
    assert "a network connection is required" in message


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (b"", "cannot be reached"),
        (b"what\r\n", "cannot be reached"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nabc", "ended after 3 of 100 bytes"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nab", "cannot be reached"),
    ],
)
def test_a_connection_that_breaks_names_the_address(tmp_path, answer, says):
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            connection, _ = listening.accept()
            connection.recv(10_000)
            connection.sendall(answer)
            connection.close()

        threading.Thread(target=serve, daemon=True).start()
        address = f"http://127.0.0.1:{listening.getsockname()[1]}/a.gz"
        with pytest.raises(UserError, match=f"{address}.*{says}"):
            corpora.download(address, tmp_path / "a.gz")


def test_training_sets_come_through_mtdata(tmp_path, monkeypatch):
    """A module that stands in for mtdata writes what it was asked for."""
    (tmp_path / "mtdata.py").write_text(
        "import gzip, sys\n"
        "folder = sys.argv[sys.argv.index('-o') + 1]\n"
        "assert sys.argv[1:4] == ['get', '-l', 'zho-eng']\n"
        "assert '--merge' in sys.argv and '--compress' in sys.argv\n"
        "for side in ('zho', 'eng'):\n"
        "    gzip.open(f'{folder}/train.{side}.gz', 'wt').write(f'{side}\\n' * 4)\n"
    )
    train = corpora.CORPORA["wmt19-zh-en"].parts[0]
    small = corpora.CorpusPart(train.files, train.fetch, 3, exact_count=False)
    monkeypatch.setitem(corpora.CORPORA, "wmt19-zh-en", corpora.NamedCorpus("", (small,)))
    if "mtdata" not in sys.modules:
        message = refused("corpus", "get", "wmt19-zh-en", "-o", tmp_path / "data")
        assert "needs the extra 'corpora'" in message
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    assert cbmi("corpus", "get", "wmt19-zh-en", "-o", tmp_path / "data").returncode == 0
    assert gzip.decompress((tmp_path / "data" / "train.zh.gz").read_bytes()) == b"zho\n" * 4


def test_names_are_those_of_the_recipes():
    """What is downloaded to data/NAME is what the recipes read."""
    recipes = {
        "demo": "demo",
        "multi30k": "multi30k",
        "wmt14-en-de": "wmt14-en-de-base",
        "wmt19-zh-en": "wmt19-zh-en-big",
    }
    for name, recipe in recipes.items():
        data = read_config(ROOT / "recipes" / f"{recipe}.yaml").data
        wanted = [*data.train_files(), *data.valid, *chain.from_iterable(data.test.values())]
        files = chain.from_iterable(part.files for part in corpora.CORPORA[name].parts)
        assert sorted(wanted) == sorted(f"data/{name}/{file}" for file in files)


@pytest.mark.slow
def test_the_built_in_corpus_needs_no_network(tmp_path, monkeypatch):
    monkeypatch.setattr(corpora, "download", None)
    assert cbmi("corpus", "get", "demo", "-o", tmp_path / "demo").returncode == 0
    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "test.de",
        "test.en",
        "train.de",
        "train.en",
        "valid.de",
        "valid.en",
    ]
    sources = [pair.source for pair in generate(20, seed=1)]
    assert (tmp_path / "demo" / "train.en").read_text().splitlines()[:5] == sources[:5]


def test_unknown_and_listed():
    message = refused("corpus", "get", "multi30")
    assert "unknown corpus 'multi30' (did you mean 'multi30k'?)" in message
    assert cbmi("corpus", "list").stdout.decode().count("\n") == len(corpora.CORPORA)
