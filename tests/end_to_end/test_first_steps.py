"""What a new user meets first: help, a run file to begin with, what would be done, messages."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tasks import cbmi, environment, refused, run_values, write_run, write_task

from cbmi.config import read_config
from cbmi.demo.corpus import write as write_demo
from cbmi.inference.new_run import language_of
from cbmi.progress import counted


@pytest.fixture
def task(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    return tmp_path


def test_commands_come_in_groups():
    text = cbmi("--help").stdout.decode()
    groups = re.findall(r"─ ([A-Z][\w ]+) ─", text)
    expected = ["Options", "Train", "Use a trained model", "Corpora and people", "Experiments"]
    assert groups == expected
    assert "--install-completion" in text
    assert "<bool>" not in text


@pytest.mark.parametrize(
    ("command", "usage"),
    [
        (["train"], "cbmi train [OPTIONS] RUN.yaml [KEY=VALUE]..."),
        (["evaluate"], "cbmi evaluate [OPTIONS] SYSTEM..."),
        (["weights"], "cbmi weights [OPTIONS] RUN [KEY=VALUE]..."),
        (["humaneval", "create"], "cbmi humaneval create [OPTIONS]"),
    ],
)
def test_usage_lines_are_as_one_would_write_them(command, usage):
    text = cbmi(*command, "--help").stdout.decode()
    assert f" Usage: {usage} " in " ".join(text.split("\n")[1].split(" ")) + " "
    assert "<bool>" not in text


def test_the_help_of_train_names_keys_and_the_guide():
    text = " ".join(cbmi("train", "--help").stdout.decode().split())
    assert "Most used keys: output, data.train, data.valid, model, batch.tokens" in text
    assert "docs/guide.md" in text


@pytest.mark.parametrize(
    ("file", "language"),
    [
        ("train.en", "en"),
        ("corpora/news.2020.zh-CN.gz", "zh-CN"),
        ("a.b/text.pt_BR.xz", "pt_BR"),
        ("text.txt", None),
        ("text.src", None),
        ("text", None),
        ("x.corpus", None),
    ],
)
def test_the_language_that_a_file_is_named_after(file, language):
    assert language_of(file) == language


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_demo(folder)
    return folder


def test_a_run_file_to_begin_with(corpus, tmp_path):
    path = tmp_path / "first.yaml"
    train = (corpus / "train.en", corpus / "train.de")
    result = cbmi(
        *("init", *train, "--valid", corpus / "valid.en", corpus / "valid.de", "-o", path)
    )
    assert result.returncode == 0, result.stderr.decode()
    assert f"then run: cbmi train {path}" in result.stderr.decode()
    config = read_config(path)
    assert (config.data.source, config.data.target) == ("en", "de")
    assert config.data.train_files() == tuple(map(str, train))
    assert [stage.objective["name"] for stage in config.stages] == ["ce", "cbmi"]
    assert config.optimizer.warmup < config.stages[0].steps
    assert config.validate_.every <= config.stages[1].steps
    assert path.read_text().count("#") > 10
    before = path.read_bytes()
    assert "there is such a file already" in refused("init", *train, "-o", path)
    assert path.read_bytes() == before


@pytest.mark.parametrize("name", ["a: [b], #c", "a,b.x", "x{1}]", "a " * 60 + "b", '"', "~", "-"])
def test_a_run_file_for_odd_names(corpus, tmp_path, name):
    odd = tmp_path / name
    odd.write_bytes((corpus / "train.en").read_bytes())
    path = tmp_path / "run.yaml"
    message = refused("init", odd, corpus / "train.de", "-o", path)
    assert "--source-language: " in message
    assert not path.exists()
    result = cbmi("init", odd, corpus / "train.de", "--source-language", "en", "-o", path)
    assert result.returncode == 0, result.stderr.decode()
    assert yaml.safe_load(path.read_text())["data"]["train"][0] == str(odd)
    message = refused("init", corpus / "train.en", corpus / "valid.de", "-o", tmp_path / "x.yaml")
    assert "train.en has 12,000 lines but" in message


def test_what_would_be_done(task):
    path = write_run(task)
    text = cbmi("train", path, "--dry-run").stdout.decode()
    assert "run: starts from scratch" in text
    assert "40 pairs to be encoded, xx→yy; vocabulary: 350 pieces to be learnt" in text
    assert re.search(r"pretrain: ce \(language_model: train\), 8 steps: about \d+", text)
    assert "200 tokens each, validated every 4" in text
    assert not (task / "run").exists()
    assert cbmi("train", path).returncode == 0
    before = sorted(file for file in (task / "run").rglob("*"))
    text = cbmi("train", path, "--dry-run", "stages.adapt.steps=12").stdout.decode()
    assert "run: resumes at step 16" in text
    assert "pretrain: ce (language_model: train), 8 steps: done" in text
    assert "40 prepared pairs" in text
    assert sorted(file for file in (task / "run").rglob("*")) == before
    assert "seed: 1, now 2" in refused("train", path, "--dry-run", "seed=2")
    assert "leave out --restart" in refused("train", path, "--dry-run", "--restart")


def test_settings_are_named_as_one_writes_them(task):
    path = write_run(task)
    message = refused("train", path, "stages.1.steps=0")
    assert "stages.adapt.steps: input should be greater than 0, not 0" in message
    message = refused("train", path, "device=gpu")
    assert "device: should be auto, cpu, cuda or cuda:N (the N-th GPU), not 'gpu'" in message
    assert "pattern" not in message


@pytest.mark.parametrize("name", ["corpus.tmx", "corpus.csv", "text.en.bz2"])
def test_formats_that_are_not_supported_are_named(task, name):
    (task / name).write_text("x\n")
    files = [str(task / name), str(task / "train.tgt")]
    data = run_values(task)["data"] | {"train": files}
    message = refused("prepare", write_run(task, data=data))
    problem = "not supported: give plain text" if "bz2" in name else "not lines of text: make"
    assert f"{name}: {Path(name).suffix} files are {problem}" in message


def test_one_is_not_many():
    assert counted(1, "checkpoint") == "1 checkpoint"
    assert counted(0, "checkpoint") == "0 checkpoints"
    assert counted(2000, "checkpoint") == "2,000 checkpoints"


def test_commands_say_what_they_wrote(small_run, tmp_path):
    output = tmp_path / "out.txt"
    result = cbmi("translate", small_run / "run", small_run / "test.src", "-o", output)
    assert f"Wrote {output}" in result.stderr.decode()
    files = ("--source", small_run / "test.src", "--target", small_run / "test.tgt")
    result = cbmi("score", small_run / "run", *files, "-o", tmp_path / "scores")
    assert f"Wrote {tmp_path / 'scores'}" in result.stderr.decode()


@pytest.mark.slow
def test_a_reader_that_has_seen_enough(small_run, tmp_path):
    """`cbmi translate … | head -1` ends quietly, with status 0."""
    lines = (small_run / "test.src").read_text() * 200
    (tmp_path / "long").write_text(lines)
    command = f"{sys.executable} -m cbmi translate {small_run / 'run'} {tmp_path / 'long'}"
    script = f"set -o pipefail; {command} | head -1"
    result = subprocess.run(["bash", "-c", script], env=environment(), capture_output=True)
    assert result.returncode == 0, result.stderr.decode()
    assert b"Traceback" not in result.stderr
    assert len(result.stdout.splitlines()) == 1


def test_the_share_that_is_kept_is_of_what_rules_leave(small_run, tmp_path):
    lines = (small_run / "valid.src").read_text().splitlines()
    targets = (small_run / "valid.tgt").read_text().splitlines()
    targets[:4] = lines[:4]  # copies
    for name, text in (("a", lines), ("b", targets)):
        (tmp_path / name).write_text("".join(line + "\n" for line in text))
    files = ("--source", tmp_path / "a", "--target", tmp_path / "b", "-o", tmp_path / "out")
    copies = sum(one == other for one, other in zip(lines, targets, strict=True))
    result = cbmi("filter", small_run / "run", *files, "--keep", "0.85", "--drop-copies")
    left = len(lines) - copies
    expected = f"Kept {round(0.85 * left)} of 20 pairs, 85% of the {left} that no rule drops"
    assert expected in result.stderr.decode() + result.stdout.decode()
