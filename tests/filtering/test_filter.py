"""Filtering: both parts are the corpus in order, scored as by `cbmi score`; no work is lost."""

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
from tasks import WORDS, environment, refused, two_ranks
from tasks import cbmi as run_cbmi

import cbmi
from cbmi.filtering import filter as filtering
from cbmi.filtering import scores as corpus_scores
from cbmi.inference import scoring

ENDS = ("xx", "yy", "scores")


def write_pairs(folder, count, seed=5):
    """A corpus with pairs that do not belong together, empty sides, and a tag."""
    draw = random.Random(seed)
    sources = [" ".join(draw.choices(WORDS, k=draw.randint(2, 4))) for _ in range(count)]
    targets = []
    for line in sources:
        belongs = draw.random() < 0.8
        targets.append(line if belongs else " ".join(draw.choices(WORDS, k=3)))
    targets[3] = ""
    sources[4] = " "
    sources[5] = "<script>alert(1)</script>"
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
        columns = []
        for end in ENDS:
            path = prefix.with_name(f"{prefix.name}.{part}.{end}")
            columns.append(path.read_text().splitlines())
        sources, targets, scores = columns
        read[part] = list(zip(sources, targets, scores, strict=True))
    return read


def scores_of_filled(rows):
    """The scores of rows with text on both sides."""
    return [float(score) for source, target, score in rows if source.strip() and target]


def samples(page, name):
    """The detail of a group of samples, and the lines that it shows."""
    section = next(part for part in page.split("<section>") if f"<h2>{name} <small>" in part)
    detail = re.search("<small>(.*?)</small>", section)[1]
    lines = [int(number) for number in re.findall(r">pair (\d+)<", section)]
    return detail, lines


def test_nothing_is_lost_and_scores_are_those_of_score(small_run, tmp_path, monkeypatch):
    for module in (corpus_scores, scoring):
        monkeypatch.setattr(module, "WINDOW", 16)  # several chunks
    pairs, files = write_pairs(tmp_path, 75)
    prefix = tmp_path / "out" / "clean"
    result = run_cbmi(*arguments(small_run, files, prefix), "--keep", "0.6")
    assert result.returncode == 0, result.stderr.decode()
    read = parts(prefix)
    assert len(read["kept"]) == 44  # 60% of those with text on both sides
    assert len(read["dropped"]) == 31
    scored = run_cbmi("score", small_run / "run", "--source", files[0], "--target", files[1])
    records = [json.loads(line) for line in scored.stdout.decode().splitlines()]
    expected = []
    for (source, target), record in zip(pairs, records, strict=True):
        expected.append((source, target, f"{record['sentence_cbmi']:.6f}"))
    streams = {"kept": iter(read["kept"]), "dropped": iter(read["dropped"])}
    waiting = {"kept": next(streams["kept"]), "dropped": next(streams["dropped"])}
    for row in expected:  # both parts hold their pairs in the corpus's order
        part = next(part for part, first in waiting.items() if first == row)
        waiting[part] = next(streams[part], None)
    assert waiting == {"kept": None, "dropped": None}
    assert expected[3] in read["dropped"]
    assert expected[4] in read["dropped"]  # an empty side is never kept
    lowest = min(float(row[2]) for row in read["kept"])
    assert max(scores_of_filled(read["dropped"])) <= lowest
    assert "2 with an empty side" in result.stderr.decode()


def test_another_threshold_costs_no_scoring(small_run, tmp_path, monkeypatch):
    _, files = write_pairs(tmp_path, 40)
    prefix = tmp_path / "x"
    first = run_cbmi(*arguments(small_run, files, prefix))
    assert "40 pairs scored" in first.stderr.decode()
    page = (tmp_path / "x.html").read_text()
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in page
    assert "<script>alert" not in page
    assert not list(tmp_path.glob("x.kept*"))
    assert "2 pairs with an empty side: never kept." in page
    assert "(empty)" not in page
    shown = re.findall(r"<tr><td>(\d+)%</td><td>([\d,]+)</td><td>([−\d.]+)</td></tr>", page)
    assert [share for share, _, _ in shown[:4]] == ["99", "98", "95", "90"]
    assert [int(count) for _, count, _ in shown[:4]] == [38, 37, 36, 34]
    rows = [line.split(",") for line in (tmp_path / "x.histogram.csv").read_text().splitlines()[1:]]
    assert sum(int(count) for *_, count in rows) == 38  # those with text on both sides
    chunk = tmp_path / "x.scores" / "0000000.npy"
    whole = chunk.read_bytes()
    for damaged in (whole[:-8], b""):
        chunk.write_bytes(damaged)
        assert run_cbmi(*arguments(small_run, files, prefix)).returncode == 0
        assert chunk.read_bytes() == whole  # scored again
    plan = json.loads((tmp_path / "x.scores" / "plan.json").read_text())
    assert plan["columns"] == ["cbmi", "likelihood", "empty", "copies", "lengths", "texts"]
    monkeypatch.setattr(scoring.PairScorer, "sentence_scores", None)  # must not be needed
    result = run_cbmi(*arguments(small_run, files, prefix), "--min", "0")
    assert result.returncode == 0, result.stderr.decode()
    read = parts(prefix)
    assert len(read["kept"]) + len(read["dropped"]) == 40
    assert all(float(row[2]) >= 0 for row in read["kept"])
    assert all(score < 0 for score in scores_of_filled(read["dropped"]))


def test_one_tsv_is_as_good_as_two_files(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 20)
    both = tmp_path / "pairs.tsv"
    both.write_text("".join(f"{source}\t{target}\n" for source, target in pairs))
    run = small_run / "run"
    results = {}
    for name, files_given in (
        ("two", ["--source", files[0], "--target", files[1]]),
        ("one", ["--source", both]),
    ):
        result = run_cbmi("filter", run, *files_given, "-o", tmp_path / name, "--keep", "0.5")
        assert result.returncode == 0, result.stderr.decode()
        scored = run_cbmi("score", run, *files_given).stdout
        page = tmp_path / f"{name}-inspected.html"
        assert run_cbmi("inspect", run, *files_given, "-o", page).returncode == 0
        results[name] = (parts(tmp_path / name), scored)
    assert results["one"] == results["two"]
    for command in ("filter", "score"):
        message = refused(command, small_run / "run", "--source", files[0], "-o", tmp_path / "z")
        assert message.endswith("it holds one side only.")


def test_filtering_by_likelihood(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 40)
    prefix = tmp_path / "x"
    result = run_cbmi(*arguments(small_run, files, prefix), "--keep", "0.5", "--by", "likelihood")
    assert result.returncode == 0, result.stderr.decode()
    model = cbmi.load(small_run / "run", device="cpu", precision="fp32")
    likelihood = {}
    for scored in model.score(pairs):
        likelihood[scored.source, scored.target] = scored.log_p_nmt.mean()
    read = parts(prefix)
    for source, target, score in read["kept"] + read["dropped"]:
        assert float(score) == pytest.approx(likelihood[source, target], abs=2e-6)
    lowest = min(float(row[2]) for row in read["kept"])
    assert max(scores_of_filled(read["dropped"])) <= lowest
    said = f"with a likelihood of at least {np.floor(1000 * lowest) / 1000:.3f}"
    assert said in result.stderr.decode()
    page = (tmp_path / "x.html").read_text()
    assert "Filtering by translation likelihood" in page
    assert "sentence CBMI" not in page
    shown = re.findall(r"<td>(−[\d.]+)</td></tr>", page)[0]  # it can be given to --min as it is
    command = [*arguments(small_run, files, prefix), "--by", "likelihood"]
    assert run_cbmi(*command, f"--min={shown}").returncode == 0
    assert "Invalid value" in run_cbmi(*command, "--min=x").stderr.decode()
    message = refused(*arguments(small_run, files, prefix), "--by", "length")
    assert message == "cbmi: by: 'length' is not one of cbmi, likelihood."


def test_duplicates_are_counted_and_dropped(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 40)
    for path in files:
        path.write_text(path.read_text() * 2)
    different = set()
    for source, target in pairs:
        if source.strip() and target.strip():
            different.add((" ".join(source.split()), " ".join(target.split())))
    fresh = len(different)
    prefix = tmp_path / "x"
    told = run_cbmi(*arguments(small_run, files, prefix)).stderr.decode()
    assert f"{76 - fresh} pairs that repeat an earlier one; --drop-duplicates drops them." in told
    result = run_cbmi(*arguments(small_run, files, prefix), "--drop-duplicates")
    assert f"{76 - fresh} as repetitions of earlier pairs" in result.stderr.decode()
    assert len(parts(prefix)["kept"]) == fresh


def test_rules_are_reported_with_their_counts(small_run, tmp_path):
    pairs, files = write_pairs(tmp_path, 40)
    copies = {pair for pair in pairs if pair[0] == pair[1]}
    prefix = tmp_path / "x"
    told = run_cbmi(*arguments(small_run, files, prefix), "--keep", "0.5").stderr.decode()
    with_copies = f"{len(copies)} pairs with a target that only copies the source"
    assert f"{with_copies}; --drop-copies drops them." in told
    kept = "Kept 19 of 40 pairs, 50% of the 38 that no rule drops, with a CBMI of at least"
    assert kept in told
    assert "Dropped 21: 19 for their score, 2 with an empty side." in told
    page = (tmp_path / "x.html").read_text()
    assert "Dropped 21: 19 for their score, 2 with an empty side." in page
    assert "Everything below covers the 38 pairs that no rule drops" in page
    assert samples(page, "Dropped with an empty side") == ("2 pairs", [4, 5])
    assert "Dropped as copies" not in page
    result = run_cbmi(*arguments(small_run, files, prefix), "--drop-copies")
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
    reasons = f"{len(copies)} as copies of the source, 2 with"
    said = f"Kept {len(kept)} of 40 pairs. Dropped {40 - len(kept)}: {reasons}"
    assert said in result.stderr.decode()  # no score decided, so none is named
    reasons = (tmp_path / "x.dropped.reasons").read_text().split()
    dropped = [pair for pair in pairs if pair not in kept]
    assert reasons == ["copy" if pair in copies else "empty" for pair in dropped]
    looked = run_cbmi(*arguments(small_run, files, prefix)).stderr.decode()
    assert "2 pairs with an empty side: never kept." in looked
    assert "x.dropped.* still exist from an earlier choice." in looked
    alike = [tmp_path / "alike.src", tmp_path / "alike.tgt"]
    for path in alike:
        path.write_text("abc\n")
    message = refused(*arguments(small_run, alike, tmp_path / "y"), "--drop-copies")
    said = "nothing would be left. Kept 0 of 1 pair. Dropped 1: 1 as copies of the source."
    assert said in message


def test_a_long_line_does_not_fill_the_page(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    for path in files:
        with open(path, "a") as file:
            file.write("ba " * 5000 + "\n")
    assert run_cbmi(*arguments(small_run, files, tmp_path / "x")).returncode == 0
    page = (tmp_path / "x.html").read_text()
    assert "ba b …</p>" in page
    assert page.count("ba ") < 2000


@pytest.fixture(scope="session")
def large(small_run, tmp_path_factory):
    """A corpus of three chunks, and what an undisturbed process makes of it."""
    folder = tmp_path_factory.mktemp("large")
    _, files = write_pairs(folder, 25_000)
    lines = files[0].read_text().splitlines()
    for place in (100, 12_000, 24_000):  # one in each chunk
        lines[place] = "ba " * 1500
    files[0].write_text("".join(line + "\n" for line in lines))
    result = run_cbmi(*arguments(small_run, files, folder / "whole"), "--keep", "0.9")
    assert result.returncode == 0, result.stderr.decode()
    return files, made(folder, "whole")


def made(folder, name):
    """The content of all files that a command has made, by the end of their names."""
    paths = folder.glob(f"{name}.*.*")
    return {path.name.removeprefix(f"{name}."): path.read_bytes() for path in paths}


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_killed_and_resumed_is_undisturbed(small_run, large, tmp_path):
    files, whole = large
    command = [*arguments(small_run, files, tmp_path / "cut"), "--keep", "0.9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "cbmi", *map(str, command)],
        env=environment(),
        stderr=subprocess.PIPE,
    )
    while not list((tmp_path / "cut.scores").glob("*.npy")):
        assert process.poll() is None, process.stderr.read().decode()
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not list(tmp_path.glob("cut.kept*"))
    result = run_cbmi(*command)
    assert result.returncode == 0, result.stderr.decode()
    assert "of 25,000 pairs have been scored before" in result.stderr.decode()
    assert made(tmp_path, "cut") == whole


def test_a_model_that_gives_no_numbers_is_refused(small_run, tmp_path, monkeypatch):
    _, files = write_pairs(tmp_path, 20)

    def broken(self, pairs, advance):
        return np.where(np.arange(len(pairs)) == 7, np.nan, 1.0)[:, None].repeat(2, axis=1)

    monkeypatch.setattr(scoring.PairScorer, "sentence_scores", broken)
    message = refused(*arguments(small_run, files, tmp_path / "x"), "--keep", "0.5")
    assert f"the score of pair 8 of {files[0]} and {files[1]} is NaN" in message
    assert message.endswith("is NaN or infinite; the checkpoint is damaged.")
    assert not list(tmp_path.glob("x.kept*"))


def test_a_corpus_in_shards_is_filtered_as_in_one_file(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 50)
    for path in files:
        lines = path.read_text().splitlines(keepends=True)
        for number, start in enumerate((0, 7, 30)):
            end = (7, 30, 50)[number]
            (tmp_path / f"part-{number}{path.suffix}").write_text("".join(lines[start:end]))
    whole = tmp_path / "whole"
    assert run_cbmi(*arguments(small_run, files, whole), "--keep=0.5").returncode == 0
    patterns = [tmp_path / "part-*.src", tmp_path / "part-*.tgt"]
    urls = [f"file://{pattern}" for pattern in patterns]
    for number, sides in enumerate((patterns, urls)):
        prefix = tmp_path / f"shards{number}"
        result = run_cbmi(*arguments(small_run, sides, prefix), "--keep=0.5")
        assert result.returncode == 0, result.stderr.decode()
        assert parts(prefix) == parts(whole)
        assert str(sides[0]) in prefix.with_suffix(".html").read_text()
    (tmp_path / "part-1.src").write_text("other\n" * 23)
    message = refused(*arguments(small_run, urls, tmp_path / "shards1"))
    assert "holds the scores of another corpus or another model" in message


def test_inputs_named_by_urls_are_not_overwritten(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 10)
    names = [tmp_path / "x.kept.xx", tmp_path / "x.kept.yy"]
    for path, name in zip(files, names, strict=True):
        path.rename(name)
    before = [name.read_bytes() for name in names]
    urls = [f"file://{name}" for name in names]
    message = refused(*arguments(small_run, urls, tmp_path / "x"), "--keep=0.5")
    assert "would be overwritten" in message
    assert [name.read_bytes() for name in names] == before


def test_nothing_is_written_to_a_url(small_run, tmp_path, monkeypatch):
    _, files = write_pairs(tmp_path, 10)
    monkeypatch.chdir(tmp_path)
    message = refused(*arguments(small_run, files, "s3://bucket/clean"))
    assert "results are written to files here, not to a URL" in message
    assert not (tmp_path / "s3:").exists()


def test_scores_of_an_older_version(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    assert run_cbmi(*arguments(small_run, files, tmp_path / "x")).returncode == 0
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
    monkeypatch.setattr(corpus_scores.CorpusScores, "complete", interrupted)
    result = run_cbmi(*arguments(small_run, files, tmp_path / "x"))
    assert result.returncode == 130
    assert "Stopped. The same command resumes" in result.stderr.decode()


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_two_processes_give_what_one_gives(small_run, large, tmp_path):
    files, whole = large
    command = arguments(small_run, files, tmp_path / "two")
    result = two_ranks("-m", "cbmi", *command, "--keep", "0.9")
    assert result.returncode == 0, result.stderr.decode()
    assert made(tmp_path, "two") == whole
    assert result.stderr.decode().count("lines were over") == 1
    assert "3 lines were over 1024 pieces long" in result.stderr.decode()


@pytest.mark.timeout(240)
@pytest.mark.slow
def test_an_error_of_one_process_is_said_and_one_of_all_is_said_once(small_run, large, tmp_path):
    files, _ = large
    # In the way of the second process's chunk.
    (tmp_path / "two.scores" / "0000001.npy" / "x").mkdir(parents=True)
    command = arguments(small_run, files, tmp_path / "two")
    for share, expected in (
        ("0.9", "0000001.npy: cannot be written"),
        ("2", "cbmi: keep: 2 should be a share"),
    ):
        result = two_ranks("-m", "cbmi", *command, "--keep", share)
        said = [line for line in result.stderr.decode().splitlines() if line.startswith("cbmi: ")]
        assert len(said) == 1, result.stderr.decode()
        assert expected in said[0]


def test_bad_input_is_refused(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    command = arguments(small_run, files, tmp_path / "x")
    assert "give keep (--keep, a share) or minimum (--min, a score)" in refused(
        *command, "--keep", "0.5", "--min", "1"
    )
    assert "cbmi: keep: 2 should be a share" in refused(*command, "--keep", "2")
    (tmp_path / "short").write_text("a\n")
    (tmp_path / "none").write_text("")
    (tmp_path / "bad").write_bytes(b"a\n" * 19 + b"\xff\n")
    os.mkfifo(tmp_path / "pipe")
    nothing = [tmp_path / "none", tmp_path / "none"]
    assert "nothing to filter" in refused(*arguments(small_run, nothing, tmp_path / "x"))
    for name, message in {
        "short": "short has 1 line",
        "missing": "cannot be read",
        "bad": "bad, line 20: not valid UTF-8",
        "pipe": "not a pipe",
    }.items():
        wrong = [tmp_path / name, files[1]]
        assert message in refused(*arguments(small_run, wrong, tmp_path / "x"))
    assert not list(tmp_path.glob("x.*"))
    message = refused(*command, "--min", "99")
    assert "nothing would be left. Kept 0 of 20 pairs, with a CBMI of at least 99." in message
    assert "Dropped 20: 18 for their" in message
    assert re.search(r"with an empty side\. The highest is \d\.\d{3}\.$", message.strip())
    assert not list(tmp_path.glob("x.kept.*"))
    assert run_cbmi(*command).returncode == 0
    files[0].write_text(files[0].read_text().upper())
    assert "scores of another corpus" in refused(*command)


def test_the_corpus_is_not_written_over(small_run, tmp_path):
    _, files = write_pairs(tmp_path, 20)
    mine = [files[0].rename(tmp_path / "x.kept.xx"), files[1].rename(tmp_path / "x.kept.yy")]
    before = [path.read_bytes() for path in mine]
    message = refused(*arguments(small_run, mine, tmp_path / "x"), "--keep", "0.5")
    assert "x.kept.xx would be overwritten" in message
    assert before == [path.read_bytes() for path in mine]


def test_a_corpus_that_changes_meanwhile_is_refused(small_run, tmp_path, monkeypatch):
    opened = []

    def remembered(*arguments, **settings):
        opened.append(open(*arguments, **settings))
        return opened[-1]

    monkeypatch.setattr(filtering, "open", remembered, raising=False)
    _, files = write_pairs(tmp_path, 20)
    for read in ([("ba", "ba")] * 19, [("ba", "ba")] * 21):
        monkeypatch.setattr(filtering, "read_windows", lambda files, counts, read=read: [read])
        message = refused(*arguments(small_run, files, tmp_path / "x"), "--keep", "0.5")
        assert "this has changed while it was read" in message
        assert not list(tmp_path.glob("x.kept*"))
    assert len(opened) == 2 * 7  # both sides and the scores, twice, and the reasons
    assert all(stream.closed for stream in opened)
    assert not list(tmp_path.glob("x.kept.*"))
    assert not list(tmp_path.glob(".*.partial"))


def test_without_a_language_model_only_by_likelihood(small_run, without_language_model, tmp_path):
    _, files = write_pairs(tmp_path, 40)
    command = ["filter", without_language_model, "--source", files[0], "--target", files[1]]
    command += ["-o", tmp_path / "out", "--keep", "0.5"]
    assert "filter by likelihood instead (--by likelihood)" in refused(*command)
    assert not (tmp_path / "out.scores").exists()
    result = run_cbmi(*command, "--by", "likelihood")
    assert result.returncode == 0, result.stderr.decode()
    read = parts(tmp_path / "out")
    assert len(read["kept"]) == 19  # half of 38, without the two that have an empty side
    lowest = min(float(score) for _, _, score in read["kept"])
    assert lowest >= max(scores_of_filled(read["dropped"]))
