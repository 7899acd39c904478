"""Filtering: kept and dropped are the corpus, in order; scores are those of `cbmi score`; no work is lost."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tasks import WORDS, cbmi, environment, refused, two_ranks

from cbmi.analysis import filter as filtering
from cbmi.analysis import score as scoring
from cbmi.analysis.filter_rules import FATES, KEPT, Choice, Table, facts_of, outcome, score_text
from cbmi.errors import UserError
from cbmi.training.trained import Trained

ENDS = ("xx", "yy", "scores")


def write_pairs(folder, count, seed=5):
    """A corpus in which some pairs do not belong together, some sides are empty, and one holds a tag."""
    draw = random.Random(seed)
    sources = [" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(count)]
    targets = [line if draw.random() < 0.8 else " ".join(draw.choices(WORDS, k=3)) for line in sources]
    targets[3], sources[4], sources[5] = "", " ", "<script>alert(1)</script>"
    files = [folder / "pairs.src", folder / "pairs.tgt"]
    for path, lines in zip(files, (sources, targets), strict=True):
        path.write_text("".join(line + "\n" for line in lines))
    return list(zip(sources, targets, strict=True)), files


def arguments(run, files, prefix):
    return ["filter", run / "run", "--source", files[0], "--target", files[1], "-o", prefix]


def parts(prefix):
    """(source, target, score) of what was kept and of what was dropped."""
    read = {}
    for part in ("kept", "dropped"):
        columns = [prefix.with_name(f"{prefix.name}.{part}.{end}").read_text().splitlines() for end in ENDS]
        read[part] = list(zip(*columns, strict=True))
    return read


def samples(page, name):
    """The detail of a group of samples, and the lines that it shows."""
    section = next(part for part in page.split("<section>") if f"<h2>{name} <small>" in part)
    return re.search("<small>(.*?)</small>", section)[1], [int(n) for n in re.findall(r">line (\d+)<", section)]


def test_nothing_is_lost_and_scores_are_those_of_score(small_run, tmp_path, monkeypatch):
    for module in (filtering, scoring):
        monkeypatch.setattr(module, "WINDOW", 16)  # several chunks
    pairs, files = write_pairs(tmp_path, 75)
    prefix = tmp_path / "out" / "clean"
    result = cbmi(*arguments(small_run, files, prefix), "--keep", "0.6")
    assert result.returncode == 0, result.stderr.decode()
    read = parts(prefix)
    assert [len(read[part]) for part in ("kept", "dropped")] == [44, 31]  # 60 % of those with text on both sides
    scored = cbmi("score", small_run / "run", "--source", files[0], "--target", files[1])
    records = [json.loads(line) for line in scored.stdout.decode().splitlines()]
    expected = [(*pair, f"{record['sentence_cbmi']:.6f}") for pair, record in zip(pairs, records, strict=True)]
    kept, dropped = iter(read["kept"]), iter(read["dropped"])
    waiting = {"kept": next(kept), "dropped": next(dropped)}
    streams = {"kept": kept, "dropped": dropped}
    for row in expected:  # both parts hold their pairs in the corpus's order
        part = next(part for part, first in waiting.items() if first == row)
        waiting[part] = next(streams[part], None)
    assert waiting == {"kept": None, "dropped": None}
    assert expected[3] in read["dropped"]
    assert expected[4] in read["dropped"]  # an empty side is never kept
    lowest = min(float(row[2]) for row in read["kept"])
    assert all(float(row[2]) <= lowest or not (row[0].strip() and row[1]) for row in read["dropped"])
    assert "2 with an empty side" in result.stderr.decode()


def test_another_threshold_costs_no_scoring(small_run, tmp_path, monkeypatch):
    _, files = write_pairs(tmp_path, 40)
    prefix = tmp_path / "x"
    first = cbmi(*arguments(small_run, files, prefix))
    assert "40 pairs scored" in first.stderr.decode()
    page = (tmp_path / "x.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert not list(tmp_path.glob("x.kept*"))
    assert "2 pairs with an empty side: never kept." in page
    assert "(empty)" not in page
    shown = re.findall(r"<tr><td>(\d+)%</td><td>([\d,]+)</td><td>([-\d.]+)</td></tr>", page)
    assert [(share, int(count)) for share, count, _ in shown[:4]] == [("99", 38), ("98", 37), ("95", 36), ("90", 34)]
    rows = [line.split(",") for line in (tmp_path / "x.histogram.csv").read_text().splitlines()[1:]]
    assert sum(int(count) for *_, count in rows) == 38  # those with text on both sides
    chunk = tmp_path / "x.scores" / "0000000.npy"
    whole = chunk.read_bytes()
    for damaged in (whole[:-8], b""):
        chunk.write_bytes(damaged)
        assert cbmi(*arguments(small_run, files, prefix)).returncode == 0
        assert chunk.read_bytes() == whole  # scored again
    monkeypatch.setattr(scoring.Scorer, "sentence_scores", None)  # must not be needed
    result = cbmi(*arguments(small_run, files, prefix), "--min", "0")
    assert result.returncode == 0, result.stderr.decode()
    read = parts(prefix)
    assert len(read["kept"]) + len(read["dropped"]) == 40
    assert all(float(row[2]) >= 0 for row in read["kept"])
    assert all(float(row[2]) < 0 or not (row[0].strip() and row[1]) for row in read["dropped"])


def test_one_tsv_is_as_good_as_two_files(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 20)
    both = tmp_path / "pairs.tsv"
    both.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    results = {}
    for name, files_given in (("two", ["--source", files[0], "--target", files[1]]), ("one", ["--source", both])):
        run = small_run / "run"
        assert cbmi("filter", run, *files_given, "-o", tmp_path / name, "--keep", "0.5").returncode == 0
        scored = cbmi("score", run, *files_given).stdout
        page = tmp_path / f"{name}-inspected.html"
        assert cbmi("inspect", run, *files_given, "-o", page).returncode == 0
        results[name] = (parts(tmp_path / name), scored)
    assert results["one"] == results["two"]
    for command in ("filter", "score"):
        message = refused(command, small_run / "run", "--source", files[0], "-o", tmp_path / "z")
        assert message.endswith("only a .tsv holds both sides.")


def test_filtering_by_likelihood(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 40)
    prefix = tmp_path / "x"
    result = cbmi(*arguments(small_run, files, prefix), "--keep", "0.5", "--by", "likelihood")
    assert result.returncode == 0, result.stderr.decode()
    records = scoring.score_pairs(Trained(small_run / "run", None, "cpu", precision="fp32"), pairs)
    likelihood = {(*pair,): np.mean(record["nmt"]) for pair, record in zip(pairs, records, strict=True)}
    read = parts(prefix)
    for *pair, score in read["kept"] + read["dropped"]:
        assert float(score) == pytest.approx(likelihood[*pair], abs=2e-6)
    lowest = min(float(row[2]) for row in read["kept"])
    assert all(float(row[2]) <= lowest or not (row[0].strip() and row[1]) for row in read["dropped"])
    assert f"with a likelihood of at least {np.floor(1000 * lowest) / 1000:.3f}" in result.stderr.decode()
    page = (tmp_path / "x.html").read_text()
    assert "Filtering by translation likelihood" in page
    assert "sentence CBMI" not in page
    assert "−" not in page.partition('<div id="samples">')[0]  # what is shown can be given to --min
    message = refused(*arguments(small_run, files, prefix), "--by", "length")
    assert message == "cbmi: --by: 'length' should be cbmi or likelihood."


@given(st.lists(st.tuples(st.integers(-3, 3), st.booleans()), min_size=1, max_size=30), st.floats(0.01, 1.0))
def test_the_share_is_exact(rows, share):
    scores, empty = np.array([row[0] for row in rows], float), np.array([row[1] for row in rows])
    kept = Choice(keep=share).fates(table(scores, empty)) == KEPT
    assert kept.sum() == round(share * (~empty).sum())
    assert not (kept & empty).any()
    for place in np.flatnonzero(kept):
        better = (scores > scores[place]) & ~empty
        assert kept[better].all()  # nothing better was dropped
        assert kept[:place][(scores[:place] == scores[place]) & ~empty[:place]].all()  # of equals, the first


def table(scores, empty=None, copies=None, lengths=None, texts=None):
    nothing = np.zeros(len(scores), bool)
    return Table(
        np.asarray(scores, float),
        nothing if empty is None else empty,
        nothing if copies is None else np.asarray(copies, bool),
        np.zeros(len(scores)) if lengths is None else np.asarray(lengths, float),
        np.arange(len(scores)) if texts is None else np.asarray(texts, float),
    )


def test_rules_come_before_the_score():
    """Lengths are judged by the usual ratio, which need not be 1; the share is of what the rules leave."""
    usual = np.log(1.5)
    lengths = usual + np.log([1.0, 1.9, 2.1, 1 / 1.9, 1 / 2.1, 1.0, 1.0, 1.0, 1.0])
    extreme = np.array([9.0] * 20)  # sides that are empty do not decide what is usual
    lengths = np.concatenate([lengths[:8], extreme])
    scores, copies = [5, 4, 9, 3, 9, 9, 2, 1, *extreme], [0, 0, 0, 0, 0, 1, 0, 0, *[0] * 20]
    rows = table(scores, np.arange(28) >= 8, copies, lengths)
    choice = Choice(keep=0.8, drop_copies=True, max_ratio=2.0)
    names = [FATES[fate] for fate in choice.fates(rows)][:9]
    assert names == ["kept", "kept", "lengths", "kept", "lengths", "copy", "kept", "score", "empty"]
    only_rules = [FATES[fate] for fate in Choice(max_ratio=2.0).fates(rows)][:9]
    assert only_rules == ["kept", "kept", "lengths", "kept", "lengths", "kept", "kept", "kept", "empty"]


def test_the_first_of_equal_pairs_is_kept():
    pairs = [("a b", "c"), ("a", "b c"), ("a  b ", "c"), ("a b", "d"), ("", ""), ("", ""), ("a", "b c")]
    empty, copies, lengths, texts = facts_of(pairs)
    rows = Table(np.zeros(len(pairs)), empty, copies, lengths, texts)
    names = [FATES[fate] for fate in Choice(drop_duplicates=True).fates(rows)]
    assert names == ["kept", "kept", "duplicate", "kept", "empty", "empty", "duplicate"]


def test_duplicates_are_counted_and_dropped(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 40)
    for path in files:
        path.write_text(path.read_text() * 2)
    fresh = len({tuple(" ".join(side.split()) for side in pair) for pair in pairs if all(map(str.strip, pair))})
    prefix = tmp_path / "x"
    told = cbmi(*arguments(small_run, files, prefix)).stderr.decode()
    assert f"{76 - fresh} pairs that repeat an earlier one; --drop-duplicates drops them." in told
    result = cbmi(*arguments(small_run, files, prefix), "--drop-duplicates")
    assert f"{76 - fresh} as repetitions of earlier pairs" in result.stderr.decode()
    assert len(parts(prefix)["kept"]) == fresh


def test_rules_are_reported_with_their_counts(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 40)
    copies = {pair for pair in pairs if pair[0] == pair[1]}
    prefix = tmp_path / "x"
    told = cbmi(*arguments(small_run, files, prefix), "--keep", "0.5").stderr.decode()
    assert f"{len(copies)} pairs with a target that only copies the source; --drop-copies drops them." in told
    assert "Kept 19 of 40 pairs, with a CBMI of at least" in told
    assert "Dropped 21: 19 for their score, 2 with an empty side." in told
    page = (tmp_path / "x.html").read_text()
    assert "Dropped 21: 19 for their score, 2 with an empty side." in page
    assert "All below is of the 38 pairs that no rule drops" in page
    assert samples(page, "Dropped with an empty side") == ("2 pairs", [4, 5])
    assert "Dropped as copies" not in page
    result = cbmi(*arguments(small_run, files, prefix), "--drop-copies")
    assert result.returncode == 0, result.stderr.decode()
    read = parts(prefix)
    lines = [number for number, pair in enumerate(pairs, 1) if pair in copies]
    count, shown = samples((tmp_path / "x.html").read_text(), "Dropped as copies of the source")
    assert count == f"{len(lines)} pairs"
    assert len(shown) == len(set(shown)) == 6
    assert (shown[0], shown[-1]) == (lines[0], lines[-1])
    assert set(shown) < set(lines)
    kept = [pair for pair in pairs if pair not in copies and pair[0].strip() and pair[1]]
    assert [row[:2] for row in read["kept"]] == kept
    said = f"Kept {len(kept)} of 40 pairs. Dropped {40 - len(kept)}: {len(copies)} as copies of the source, 2 with"
    assert said in result.stderr.decode()  # no score decided, so none is named
    reasons = (tmp_path / "x.dropped.reasons").read_text().split()
    dropped = [pair for pair in pairs if pair not in kept]
    assert reasons == ["copy" if pair in copies else "empty" for pair in dropped]
    looked = cbmi(*arguments(small_run, files, prefix)).stderr.decode()
    assert "2 pairs with an empty side: never kept." in looked
    assert "x.dropped.* are there from an earlier choice." in looked
    alike = [tmp_path / "alike.src", tmp_path / "alike.tgt"]
    for path in alike:
        path.write_text("abc\n")
    message = refused(*arguments(small_run, alike, tmp_path / "y"), "--drop-copies")
    assert "nothing would be left. Kept 0 of 1 pair. Dropped 1: 1 as copies of the source." in message


def test_a_long_line_does_not_fill_the_page(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    for path in files:
        with open(path, "a") as file:
            file.write("ba " * 5000 + "\n")
    assert cbmi(*arguments(small_run, files, tmp_path / "x")).returncode == 0
    page = (tmp_path / "x.html").read_text()
    assert "ba b …</p>" in page
    assert page.count("ba ") < 2000


def test_choices():
    nan = float("nan")
    for wrong in (
        {"keep": 0.5, "minimum": 1.0},
        {"keep": 0.0},
        {"keep": 1.5},
        {"keep": nan},
        {"minimum": nan},
        {"minimum": 0.5, "by": "likelihood"},
        {"max_ratio": 1.0},
        {"max_ratio": nan},
        {"by": "length"},
    ):
        with pytest.raises(UserError):
            Choice(**wrong)


@pytest.fixture(scope="session")
def large(small_run, tmp_path_factory):
    """A corpus of three chunks, and what an undisturbed process makes of it."""
    folder = tmp_path_factory.mktemp("large")
    _, files = write_pairs(folder, 25_000)
    lines = files[0].read_text().splitlines()
    for place in (100, 12_000, 24_000):  # one in each chunk
        lines[place] = "ba " * 1500
    files[0].write_text("".join(line + "\n" for line in lines))
    result = cbmi(*arguments(small_run, files, folder / "whole"), "--keep", "0.9")
    assert result.returncode == 0, result.stderr.decode()
    return files, {path.name.removeprefix("whole."): path.read_bytes() for path in folder.glob("whole.*.*")}


def made(folder, name):
    return {path.name.removeprefix(f"{name}."): path.read_bytes() for path in folder.glob(f"{name}.*.*")}


@pytest.mark.timeout(240)
def test_killed_and_gone_on_is_undisturbed(small_run, large, tmp_path):
    files, whole = large
    command = [*arguments(small_run, files, tmp_path / "cut"), "--keep", "0.9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cbmi", *map(str, command)], env=environment(), stderr=subprocess.PIPE
    )
    while not list((tmp_path / "cut.scores").glob("*.npy")):
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.glob("cut.kept*"))
    result = cbmi(*command)
    assert result.returncode == 0, result.stderr.decode()
    assert "of 25,000 pairs have been scored before" in result.stderr.decode()
    assert made(tmp_path, "cut") == whole


def test_numbers_as_they_were_given():
    assert score_text(-4.094) == "-4.094"
    assert score_text(1.2345678) == "1.234"
    assert score_text(-1.2345678) == "-1.235"  # as --min, it keeps no less
    rows = table([1.0, 0.0004])
    choice = Choice(minimum=0.0005)
    fates = choice.fates(rows)
    assert "with a CBMI of at least 0.0005" in outcome(choice, fates, choice.threshold(rows.scores, fates))


def test_a_model_that_gives_no_numbers_is_refused(small_run, tmp_path, monkeypatch):
    _, files = write_pairs(tmp_path, 20)

    def broken(self, pairs, advance):
        return np.where(np.arange(len(pairs)) == 7, np.nan, 1.0)[:, None].repeat(2, axis=1)

    monkeypatch.setattr(scoring.Scorer, "sentence_scores", broken)
    message = refused(*arguments(small_run, files, tmp_path / "x"), "--keep", "0.5")
    assert "gives no number for line 8 of" in message
    assert not list(tmp_path.glob("x.kept*"))


def test_scores_of_an_older_version(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    assert cbmi(*arguments(small_run, files, tmp_path / "x")).returncode == 0
    plan = tmp_path / "x.scores" / "plan.json"
    known = json.loads(plan.read_text())
    del known["columns"]
    plan.write_text(json.dumps(known))
    message = refused(*arguments(small_run, files, tmp_path / "x"))
    assert "holds the scores of an older version of cbmi" in message


def test_one_who_interrupts_is_told_that_nothing_is_lost(small_run, tmp_path, monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    _, files = write_pairs(tmp_path, 20)
    monkeypatch.setattr(filtering.Scores, "complete", interrupted)
    result = cbmi(*arguments(small_run, files, tmp_path / "x"))
    assert result.returncode == 130
    assert "Stopped. The same command goes on" in result.stderr.decode()


@pytest.mark.timeout(240)
def test_two_processes_give_what_one_gives(small_run, large, tmp_path):
    files, whole = large
    result = two_ranks("-m", "cbmi", *arguments(small_run, files, tmp_path / "two"), "--keep", "0.9")
    assert result.returncode == 0, result.stderr.decode()
    assert made(tmp_path, "two") == whole
    assert result.stderr.decode().count("lines were over") == 1
    assert "3 lines were over 1024 pieces long" in result.stderr.decode()


@pytest.mark.timeout(240)
def test_an_error_of_one_process_is_said_and_one_of_all_is_said_once(small_run, large, tmp_path):
    files, _ = large
    (tmp_path / "two.scores" / ".0000001.npy.partial" / "x").mkdir(parents=True)  # of the second process's chunk
    for share, expected in (("0.9", "0000001.npy: cannot be written"), ("2", "--keep: 2 should be a share")):
        result = two_ranks("-m", "cbmi", *arguments(small_run, files, tmp_path / "two"), "--keep", share)
        said = [line for line in result.stderr.decode().splitlines() if line.startswith("cbmi: ")]
        assert len(said) == 1, result.stderr.decode()
        assert expected in said[0]


def test_bad_input_is_refused(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    command = arguments(small_run, files, tmp_path / "x")
    assert "either --keep SHARE or --min SCORE" in refused(*command, "--keep", "0.5", "--min", "1")
    assert "--keep: 2 should be a share" in refused(*command, "--keep", "2")
    (tmp_path / "short").write_text("a\n")
    (tmp_path / "none").write_text("")
    both = [tmp_path / "short", tmp_path / "none"]
    assert "short has 1 lines" in refused(*arguments(small_run, [tmp_path / "short", files[1]], tmp_path / "x"))
    assert "nothing to filter" in refused(*arguments(small_run, [both[1], both[1]], tmp_path / "x"))
    assert "cannot be read" in refused(*arguments(small_run, [tmp_path / "missing", files[1]], tmp_path / "x"))
    (tmp_path / "bad").write_bytes(b"a\n" * 19 + b"\xff\n")
    assert "bad, line 20: not valid UTF-8" in refused(
        *arguments(small_run, [tmp_path / "bad", files[1]], tmp_path / "x")
    )
    os.mkfifo(tmp_path / "pipe")
    assert "not a pipe" in refused(*arguments(small_run, [tmp_path / "pipe", files[1]], tmp_path / "x"))
    assert not list(tmp_path.glob("x.*"))
    message = refused(*command, "--min", "99")
    assert (
        "nothing would be left. Kept 0 of 20 pairs, with a CBMI of at least 99. Dropped 20: 18 for their" in message
    )
    assert re.search(r"with an empty side\. The highest is \d\.\d{3}\.$", message.strip())
    assert not list(tmp_path.glob("x.kept.*"))
    assert cbmi(*command).returncode == 0
    files[0].write_text(files[0].read_text().upper())
    assert "scores of another corpus" in refused(*command)


def test_the_corpus_is_not_written_over(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    mine = [files[0].rename(tmp_path / "x.kept.xx"), files[1].rename(tmp_path / "x.kept.yy")]
    before = [path.read_bytes() for path in mine]
    assert "x.kept.xx would be written over" in refused(*arguments(small_run, mine, tmp_path / "x"), "--keep", "0.5")
    assert before == [path.read_bytes() for path in mine]
