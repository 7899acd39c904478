"""`cbmi serve`: the API answers what the commands answer, to many at once, and does not stop."""

import asyncio
import json
import random
import signal
import socket
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from servers import answer_of, ask, post, server
from tasks import cbmi as command
from tasks import refused

import cbmi
from cbmi.errors import UserError
from cbmi.serving.api import openapi
from cbmi.serving.batching import Batcher, Busy
from cbmi.serving.web import listen

words = st.sampled_from(["source", "target", "pairs", "nbest", "beam", "x"])
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words, inner, max_size=3),
    max_leaves=8,
)
json_bodies = st.dictionaries(words, json_values, max_size=4)


@pytest.fixture(scope="module")
def address(small_run):
    with server("serve", small_run / "run", "--no-open", "--device", "cpu") as (_, addresses):
        yield addresses[0]


def test_translations_are_those_of_the_command(address, small_run, tmp_path):
    lines = (small_run / "test.src").read_text().splitlines()[:5]
    (tmp_path / "in").write_text("".join(line + "\n" for line in lines))
    printed = command("translate", small_run / "run", tmp_path / "in", "--nbest", "2").stdout
    expected = printed.decode().splitlines()
    status, answer = ask(address, "/translate", {"source": [*lines, ""], "nbest": 2})
    assert status == 200
    targets = []
    for hypotheses in answer["translations"]:
        targets += [hypothesis["target"] for hypothesis in hypotheses]
    assert targets == expected
    assert answer["translations"][-1] == []  # nothing comes of nothing
    best = answer["translations"][0][0]
    for word in best["words"]:
        assert best["target"][word["start"] : word["end"]] == word["text"]
    assert best["words"][-1]["text"] == ""  # the end of the sentence
    length_penalty = 0.6
    tokens = round((best["log_probability"] / best["score"]) ** (1 / length_penalty))
    assert best["log_p"] == pytest.approx(best["log_probability"] / tokens, abs=1e-3)


@settings(max_examples=60, deadline=None)
@given(
    st.sampled_from(["/translate", "/score", "/health", "/", "/nothing"]),
    st.binary(max_size=200) | json_bodies,
)
def test_any_request_is_answered(address, path, body):
    """With a page, data, or an error of one sentence; never with an error of the server."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = ask(address, path, content)
    assert status < 500, answer


def test_scores_are_those_of_the_command(address, small_run):
    pairs = [("ba de", "ba de"), ("ba", "ki ki ki"), ("", "")]
    body = {"pairs": [{"source": source, "target": target} for source, target in pairs]}
    status, answer = ask(address, "/score", body)
    assert status == 200
    for (_, target), scored in zip(pairs, answer["pairs"], strict=True):
        assert scored["target"] == target
        total = sum(word["cbmi"] for word in scored["words"])
        difference = sum(word["log_p"] - word["log_p_lm"] for word in scored["words"])
        assert total == pytest.approx(difference, abs=1e-4)
    command = cbmi.load(small_run / "run", device="cpu").score(pairs)
    for expected, scored in zip(command, answer["pairs"], strict=True):
        assert scored["cbmi"] == pytest.approx(expected.sentence_cbmi, abs=1e-4)
        assert scored["log_p"] == pytest.approx(expected.likelihood, abs=1e-4)
        weights = [word["weight"] for word in scored["words"]]
        assert weights[-1] == pytest.approx(expected.token_weights[-1], abs=1e-4)


def test_lines_of_text_are_answered_with_lines_of_text(address, small_run, tmp_path):
    """As `curl --data-binary @FILE -H 'Content-Type: text/plain'` sends them."""
    lines = (small_run / "test.src").read_text().splitlines()[:5]
    text = "".join(line + "\n" for line in [*lines, ""])
    (tmp_path / "in").write_text(text)
    plain = {"Content-Type": "text/plain; charset=utf-8"}
    printed = command("translate", small_run / "run", tmp_path / "in", "--beam", "2").stdout
    answer = ask(address, "/translate?beam=2", text.encode(), plain)
    assert answer == (200, printed.decode())
    for path, body, expected in (
        ("/translate?beam=x", b"ba", "beam: "),
        ("/translate?nbest=2", b"ba", "nbest: the query may have beam and length_penalty only"),
        ("/translate", b"\xff", "not valid UTF-8"),
        ("/translate", b"ba\n" * 65, "source: "),
    ):
        status, answer = ask(address, path, body, plain)
        assert status in (400, 422)
        assert expected in answer["error"]
    elsewhere = plain | {"Origin": "http://elsewhere.example"}
    assert ask(address, "/translate", b"ba", elsewhere)[0] == 403


def test_what_needs_no_language_model_works_without_one(without_language_model):
    """Translations, and log p; neither CBMI nor weights."""
    with server("serve", without_language_model, "--no-open", "--device", "cpu") as (_, addresses):
        status, answer = ask(addresses[0], "/translate", {"source": ["ba de"]})
        assert status == 200
        best = answer["translations"][0][0]
        assert best["cbmi"] is None
        assert best["log_p"] < 0
        for word in best["words"]:
            assert word["log_p"] <= 0
            assert [word[key] for key in ("log_p_lm", "cbmi", "weight")] == [None] * 3
            assert not word["invented"]
        assert "has no language model" in ask(addresses[0], "/")[1]


def test_two_hundred_at_once_and_each_gets_its_own(address):
    alone = {n: ask(address, "/translate", {"source": [f"ba de {'ki ' * n}"]})[1] for n in range(8)}

    def one(number):
        kind = number % 2
        if kind:
            target = f"word{number}"
            status, answer = ask(address, "/score", {"pairs": [{"source": "ba", "target": target}]})
            return status == 200 and answer["pairs"][0]["target"] == target
        status, answer = ask(address, "/translate", {"source": [f"ba de {'ki ' * (number % 8)}"]})
        expected = alone[number % 8]["translations"][0][0]["target"]
        return status == 200 and answer["translations"][0][0]["target"] == expected

    with ThreadPoolExecutor(200) as pool:
        assert all(pool.map(one, range(200)))


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/translate", b"{", 400, "not valid JSON"),
        ("/translate", b"\xff\xfe", 400, "not valid JSON"),
        ("/translate", b"[" * 100_000, 400, "not valid JSON"),
        ("/translate", {}, 422, "source: this key is missing"),
        ("/translate", {"source": []}, 422, "source: "),
        ("/translate", {"source": ["x"] * 65}, 422, "source: "),
        ("/translate", {"source": ["x" * 2001]}, 422, "source.0: "),
        ("/translate", {"source": "x"}, 422, "source: "),
        ("/translate", {"source": ["\ud800"]}, 422, "source.0: "),
        ("/translate", {"source": ["x"], "beam": 99}, 422, "beam: "),
        (
            "/translate",
            {"source": ["x"], "beam": 2, "nbest": 3},
            422,
            "nbest: 3 is more than the beam",
        ),
        ("/translate", {"source": ["😀" * 600]}, 422, "source.0: 2,"),
        ("/score", {"pairs": [{"source": "x", "target": "😀" * 600}]}, 422, "pairs.0.target: 2,"),
        ("/translate", b'{"source": ["x"], "length_penalty": NaN}', 422, "length_penalty: "),
        ("/translate", {"source": ["x"], "unknown": 1}, 422, "unknown: "),
        ("/score", {"pairs": [{"source": "x"}]}, 422, "pairs.0.target: "),
        ("/score", b" " * 300_000, 413, "over 262,144 bytes"),
    ],
)
def test_bad_requests_get_a_sentence(address, path, body, status, says):
    assert ask(address, path, body)[0] == status
    assert says in ask(address, path, body)[1]["error"]


def test_other_ways_to_be_wrong(address):
    assert ask(address, "/score", {"pairs": []}, {"Content-Type": "text/plain"})[0] == 415
    assert ask(address, "/translate")[0] == 405
    assert ask(address, "/../../etc/passwd")[0] == 404
    # Another site that points here.
    assert ask(address, "/", headers={"Host": "elsewhere.example"})[0] == 421
    assert ask(address, "/health") == (200, {"status": "ready", "source": "xx", "target": "yy"})


def test_odd_text_is_only_text(address):
    odd = [
        "\0",
        "<script>alert(1)</script>",
        "😀" * 50,
        "\u202e\u200b",
        "a\nb\tc",
        "x" * 900,
        "   ",
        "\u0085",
    ]
    status, answer = ask(address, "/translate", {"source": odd})
    assert status == 200
    assert len(answer["translations"]) == len(odd)
    body = {"pairs": [{"source": text, "target": text} for text in odd]}
    status, _ = ask(address, "/score", body)
    assert status == 200


@pytest.mark.timeout(180)
@pytest.mark.slow
def test_ten_thousand_malformed_requests(address):
    """Noise, halves of requests, connections that break off: the server keeps answering."""
    where = urlsplit(address)
    head = b"POST /translate HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    kinds = [
        lambda draw: draw.randbytes(draw.randint(1, 300)),
        lambda draw: (
            b"GET "
            + bytes(draw.choices(b"/.%%2e\\", k=40))
            + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"
        ),
        lambda draw: head + b"Content-Length: 50\r\n\r\n{",
        lambda draw: head + b"Content-Length: -5\r\n\r\n",
        lambda draw: head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        lambda draw: b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\n" + b"X: y\r\n" * 50,
        lambda draw: head + b"Content-Length: 20\r\n\r\n" + draw.randbytes(20),
    ]

    def burst(seed):
        draw = random.Random(seed)
        for _ in range(500):
            with socket.create_connection((where.hostname, where.port), timeout=30) as connection:
                connection.sendall(draw.choice(kinds)(draw))

    with ThreadPoolExecutor(20) as pool:
        list(pool.map(burst, range(20)))
    assert ask(address, "/translate", {"source": ["ba de"]})[0] == 200


def test_the_pages_stand_alone(address):
    for path in ("/", "/docs"):
        status, page = ask(address, path)
        assert status == 200
        assert "https://" not in page
        assert 'src="' not in page
    assert ask(address, "/openapi.json")[1] == openapi()
    for way in openapi()["paths"].values():
        for method in way.values():
            assert method["summary"]
            if "requestBody" in method:
                assert "not complete in time" in method["responses"]["408"]["description"]


def test_a_port_that_cannot_be_leaves_no_socket_open(monkeypatch):
    opened = []

    class Remembered(socket.socket):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            opened.append(self)

    monkeypatch.setattr(socket, "socket", Remembered)
    with pytest.raises(UserError, match="--port: 70000 should be between 0 and 65535"):
        listen("127.0.0.1", 70_000)
    assert [sock.fileno() for sock in opened] == [-1]


def test_ports_and_runs_are_checked(address, small_run, tmp_path):
    port = urlsplit(address).port
    assert "cannot be served on" in refused(
        "serve", small_run / "run", "--port", str(port), "--no-open"
    )
    assert "no such run" in refused("serve", tmp_path / "none", "--no-open")


def test_without_the_extra(small_run, monkeypatch):
    for name in list(sys.modules):
        if name.split(".")[0] == "starlette" or name.startswith("cbmi.serving"):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "starlette", None)
    assert "cbmi[serve]" in refused("serve", small_run / "run", "--no-open")


def run(coroutine):
    """In a thread of its own: Playwright's loop may be running in this one."""
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, coroutine).result()


def together(*requests):
    """What several coroutines give."""

    async def all_of_them():
        return await asyncio.gather(*requests, return_exceptions=True)

    return run(all_of_them())


def test_what_waits_has_an_end_and_errors_stay_where_they_belong():
    def compute(key, things):
        if key == "bad":
            raise ValueError("no")
        return [thing + 1 for thing in things]

    batcher = Batcher(compute, most=100)
    results = together(
        batcher.submit("good", [0] * 5000, int),
        batcher.submit("good", [1, 2], int),
        batcher.submit("bad", [1], int),
        batcher.submit("good", [3], int),
    )
    batcher.stop()
    assert isinstance(results[0], Busy)
    assert results[1] == [2, 3]
    assert isinstance(results[2], ValueError)
    assert results[3] == [4]


def test_a_large_request_takes_turns_and_a_cancelled_one_ends():
    begun = threading.Event()
    going = threading.Event()
    batches = []

    def compute(key, things):
        begun.set()
        going.wait(10)
        batches.append(things)
        return things

    batcher = Batcher(compute, most=2)

    async def three():
        large = asyncio.ensure_future(batcher.submit("a", ["large"] * 9, lambda thing: 1))
        left = asyncio.ensure_future(batcher.submit("a", ["left"] * 9, lambda thing: 1))
        await asyncio.to_thread(begun.wait, 10)  # the first batch is being computed
        small = asyncio.ensure_future(batcher.submit("a", ["small"], lambda thing: 1))
        await asyncio.sleep(0)
        left.cancel()
        await asyncio.sleep(0)
        going.set()
        return await small, await large

    assert run(three()) == (["small"], ["large"] * 9)
    batcher.stop()
    assert batches[0] == ["large", "large"]
    assert "small" in batches[1] + batches[2]  # not after the nine
    assert sum(batch.count("left") for batch in batches) <= 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.slow
def test_it_can_be_stopped_in_the_midst_of_a_request(small_run, number):
    """Who waits is told so; the terminal shows no traceback."""
    with server("serve", small_run / "run", "--no-open", "--device", "cpu") as (process, addresses):
        body = {"source": ["ba da fo ku ti re " * 20] * 64, "beam": 8}
        waiting = [post(addresses[0], "/translate", body)]
        time.sleep(1)  # it is being translated
        # However busy the server is, it has not read all of these when the signal comes.
        waiting += [post(addresses[0], "/translate", body) for _ in range(40)]
        process.send_signal(number)
        found = [answer_of(connection) for connection in waiting]
        assert process.wait(15) is not None
        assert {status for status, _ in found} <= {200, 503}
        assert (503, {"error": "The server is being stopped."}) in found
        assert "Traceback" not in process.stdout.read()


@pytest.mark.slow
def test_a_client_that_stalls_does_not_keep_the_server(small_run):
    with server("serve", small_run / "run", "--no-open", "--device", "cpu") as (process, addresses):
        where = urlsplit(addresses[0])
        with socket.create_connection((where.hostname, where.port)) as connection:
            head = b"POST /score HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
            connection.sendall(head + b"Content-Length: 100\r\n\r\n{")
            assert ask(addresses[0], "/health")[0] == 200
            process.terminate()
            assert process.wait(15) is not None
