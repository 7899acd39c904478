"""The annotators' server: private links, ratings that survive anything, and nothing else."""

import os
import random
import signal
import sqlite3
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

import pytest
from servers import ask, server

from cbmi.humaneval.study import create_study


@pytest.fixture
def study(tmp_path):
    for name in ("source", "one", "two"):
        lines = [f"<script>alert('{name}')</script> {n}\n" for n in range(30)]
        (tmp_path / name).write_text("".join(lines))
    systems = [(name, str(tmp_path / name)) for name in ("one", "two")]
    return create_study(tmp_path / "study", str(tmp_path / "source"), None, systems, 30, 3, seed=1)


@pytest.fixture
def running(study):
    with server("humaneval", "serve", study.path.parent) as (process, links):
        base = "http://" + urlsplit(links[0]).netloc
        yield process, base, [urlsplit(link).path for link in links]


def test_every_annotator_has_a_page_of_their_own(running, study):
    _, base, paths = running
    assert len(set(paths)) == 3
    for path, name in zip(paths, study.annotators(), strict=True):
        status, page = ask(base, path)
        assert status == 200
        assert "irrelevant to the source sentence" in page
        assert "fluent and native" in page
        status, answer = ask(base, path + "items")
        assert status == 200
        assert answer["items"] == [item.to_json() for item in study.items(name)]
        assert "system" not in str(answer["items"][0].keys())


def test_wrong_links_lead_nowhere(running):
    _, base, paths = running
    token = paths[0].strip("/")
    wrong = [
        "/",
        "/x/",
        f"/{token[:-1]}/",
        f"/{token}x/",
        f"/{token.swapcase()}/",
        "/%00/",
        "/../study.db",
        "/study.db",
        f"/{token}/../../study.db",
        f"/{token}/%2e%2e/study.db",
        "/%2e%2e%2fstudy.db",
        "/' OR 1=1 --/".replace(" ", "%20"),
    ]
    for path in wrong:
        for end in ("", "items"):
            assert ask(base, path + end)[0] == 404, path
    rating = {"item": 1, "criterion": "adequacy", "value": 3}
    assert ask(base, f"/{token}x/ratings", rating)[0] == 404
    for path in ("/", f"/{token[:-1]}/", f"/{token}x"):
        assert "This link does not work" in ask(base, path)[1]


@pytest.mark.parametrize(
    ("body", "status"),
    [
        ({"item": 1, "criterion": "adequacy", "value": 6}, 422),
        ({"item": 1, "criterion": "beauty", "value": 3}, 422),
        ({"item": 1, "criterion": "\ud800", "value": 3}, 422),
        ({"item": 999, "criterion": "adequacy", "value": 3}, 422),
        ({"item": "1", "criterion": "adequacy", "value": 3}, 422),
        ({"item": 1, "criterion": "adequacy", "value": 3.5}, 422),
        ({"item": 1, "criterion": "adequacy", "value": True}, 422),
        ({"item": 2**70, "criterion": "adequacy", "value": 3}, 422),
        (b"nonsense", 400),
    ],
)
def test_bad_ratings_are_not_kept(running, study, body, status):
    _, base, paths = running
    assert ask(base, paths[0] + "ratings", body)[0] == status
    assert study.table() == []


def test_a_file_that_cannot_be_written_is_not_the_fault_of_the_rating(running, study):
    _, base, paths = running
    rating = {"item": 1, "criterion": "adequacy", "value": 3}
    with sqlite3.connect(study.path) as db:
        db.execute("ALTER TABLE ratings RENAME TO elsewhere")
    status, answer = ask(base, paths[0] + "ratings", rating)
    assert status == 503  # the page tries again
    assert "study.db" in answer["error"]
    with sqlite3.connect(study.path) as db:
        db.execute("ALTER TABLE elsewhere RENAME TO ratings")
    assert ask(base, paths[0] + "ratings", rating)[0] == 200


def test_an_acknowledged_rating_survives_kill(running, study):
    process, base, paths = running
    name = next(iter(study.annotators()))
    given = {}
    for number, item in enumerate(study.items(name)[:20]):
        given[item.number] = 1 + number % 5
        rating = {"item": item.number, "criterion": "fluency", "value": given[item.number]}
        status, answer = ask(base, paths[0] + "ratings", rating)
        assert status == 200
        assert answer["saved"] == rating
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    with server("humaneval", "serve", study.path.parent) as (_, links):
        base = "http://" + urlsplit(links[0]).netloc
        _, answer = ask(base, paths[0] + "items")
    found = {}
    for item in answer["items"]:
        if item["ratings"]:
            found[item["item"]] = item["ratings"].get("fluency")
    assert found == given


@pytest.mark.timeout(180)
def test_nothing_is_lost_in_a_crowd(running, study):
    """200 at once, hundreds of malformed requests between them."""
    _, base, paths = running
    wanted = []
    for path, name in zip(paths, study.annotators(), strict=True):
        for item in study.items(name):
            for criterion in ("adequacy", "fluency"):
                value = random.Random(f"{name}{item.number}{criterion}").randint(1, 5)
                wanted.append((path, name, item.number, criterion, value))

    def rate(one):
        path, _, item, criterion, value = one
        rating = {"item": item, "criterion": criterion, "value": value}
        ask(base, path + "ratings", random.Random(f"{one}").randbytes(40))
        ask(base, "/wrong/ratings", rating | {"value": 1})
        status, _ = ask(base, path + "ratings", rating)
        return status

    with ThreadPoolExecutor(200) as pool:
        assert set(pool.map(rate, wanted)) == {200}
    table = {(row.annotator, row.item, row.criterion): row.value for row in study.table()}
    assert table == {(name, item, criterion): value for _, name, item, criterion, value in wanted}
