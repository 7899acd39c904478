"""Every objective as a user chooses it: by one key in the run file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from tasks import cbmi, read_log, refused, without_dropout, write_run, write_task

from cbmi import train
from cbmi.config import read_config
from cbmi.data.prepare import open_corpus
from cbmi.errors import UserError
from cbmi.evaluation.metrics import corpus_bleu
from cbmi.inference.model import TrainedModel
from cbmi.inference.weights import mini_batches
from cbmi.objectives import TABLE
from cbmi.training.batching.plan import EpochPlan
from cbmi.training.run import RunDirectory

COPY = {
    "model": without_dropout(width=64, feed_forward=256, heads=2),
    "batch": {"tokens": 600},
    "optimizer": {"peak_lr": 3.0e-3, "warmup": 100},
    # Scores that are not normalised, as those of fusion-postnorm, want a full length penalty.
    "validate": {"every": 1000, "beam": 4, "length_penalty": 1.0},
    "log": {"every": 20},
}
SETTINGS = {"self-paced": {"samples": 2}}
CONTROL = ("cbmi", {"shuffled": "batch"})
VARIANT = {"unit": "word", "compare": "lengths"}

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def started(tmp_path_factory):
    """A translator that has begun to learn to copy, its language model, and a file of weights."""
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("copy")
    write_task(folder, train=3000, valid=60)
    stage = {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 120}
    path = write_run(folder, "start.yaml", **COPY, output=str(folder / "start"), stages=[stage])
    train(read_config(path))
    assert bleu(folder / "start", folder) < 90
    result = cbmi("weights", folder / "start", "--objective", "cbmi", "-o", folder / "weights.txt")
    assert result.returncode == 0, result.stderr.decode()
    return folder


def bleu(run: Path, folder: Path) -> float:
    sources, references = (
        (folder / f"test.{side}").read_text().splitlines() for side in ("src", "tgt")
    )
    return corpus_bleu(TrainedModel(run).translate(sources, length_penalty=1.0), references)


def adapt(folder: Path, name: str, objective: dict, steps: int, **changes) -> Path:
    stage = {"name": "adapt", "objective": objective, "language_model": "frozen", "steps": steps}
    start = {"output": str(folder / name), "initialize": str(folder / "start"), "stages": [stage]}
    return write_run(
        folder,
        f"{name}.yaml",
        **COPY | {"optimizer": {"peak_lr": 2.0e-3, "warmup": 10}} | start | changes,
    )


@pytest.mark.parametrize(
    ("key", "settings"), [*((key, SETTINGS.get(key, {})) for key in TABLE), CONTROL]
)
def test_every_objective_learns_to_copy(started, key, settings):
    torch.set_num_threads(1)
    objective = {"name": key, **settings}
    if key == "weights-file":
        objective["file"] = str(started / "weights.txt")
    name = "-".join([key, *settings])
    train(read_config(adapt(started, name, objective, 80)))
    assert bleu(started / name, started) > 95
    assert read_log(started / name)[-1]["valid_bleu"] > 95
    assert (TrainedModel(started / name).fusion is not None) == key.startswith("fusion")
    if "shuffled" in TABLE[key].model_fields:
        last = [record for record in read_log(started / name) if "loss" in record][-1]
        quantiles = [last[f"weight_q{q:02}"] for q in (5, 25, 50, 75, 95)]
        assert quantiles == sorted(quantiles)
        assert {"weight_mean", "weight_std", "zero_weights"} <= last.keys()


@pytest.mark.parametrize("language_model", ["frozen", "cached"])
def test_words_and_lengths(started, language_model):
    """Trained, weighted, scored: the token weights of a word are equal."""
    name = f"variant-{language_model}"
    path = adapt(started, name, {"name": "cbmi", **VARIANT, "scale_token": 0.5}, 6)
    train(read_config(path, [f"stages.0.language_model={language_model}"]))
    assert cbmi("weights", started / name, "--objective", "cbmi").returncode == 0
    pairs = [("ba da fa", "ba da fa"), ("ga ge", "ga ge"), ("ka ke", "ka le")]
    scored = TrainedModel(started / name).score(pairs)
    for pair in scored:
        for word in pair.words:
            weights = pair.token_weights[word.pieces.start : word.pieces.stop]
            assert np.ptp(weights) < 1e-6
    assert len({round(pair.sentence_weight, 4) for pair in scored}) > 1


def test_fused_runs_translate_with_their_language_model(started):
    train(read_config(adapt(started, "fused", {"name": "fusion-prenorm"}, 4)))
    model = TrainedModel(started / "fused")
    fused = model.hypotheses(["ba da fa"], nbest=2)[0]
    model.fusion = None
    alone = model.hypotheses(["ba da fa"], nbest=2)[0]
    assert fused[0].log_probability != alone[0].log_probability


def test_weights_come_back_through_a_file(started):
    """freq-exp weights do not depend on the model: read from a file, they train the same."""
    for name in ("written", "direct"):
        assert not (started / name).exists()
    result = cbmi(
        "weights",
        started / "start",
        "--objective",
        "freq-exp",
        "decay=0.5",
        "-o",
        started / "freq.txt",
    )
    assert result.returncode == 0, result.stderr.decode()
    lines = (started / "freq.txt").read_text().splitlines()
    assert len(lines) == 3000
    assert all(line.endswith(" 1") for line in lines)  # the end of sentence
    train(
        read_config(
            adapt(
                started, "written", {"name": "weights-file", "file": str(started / "freq.txt")}, 4
            )
        )
    )
    train(read_config(adapt(started, "direct", {"name": "freq-exp", "decay": 0.5}, 4)))
    first, second = (read_log(started / name)[0] for name in ("written", "direct"))
    for figure in ("loss", "weight_mean", "weight_std", "weight_q95"):
        assert first[figure] == pytest.approx(second[figure], rel=1e-5)


def test_the_run_directory_has_every_setting(started):
    """Those of presets and defaults too: later versions may have other defaults."""
    path = adapt(started, "settings", {"name": "bmi", "preset": "wmt19-zh-en"}, 1)
    train(read_config(path))
    kept = RunDirectory(started / "settings").config().stages[0].objective
    expected = {
        "slope": 0.1,
        "base": 1.0,
        "threshold": 0.4,
        "mirrored": False,
        "scale": 1.0,
        "clip": None,
        "shuffled": None,
    }
    assert kept == {"name": "bmi", **expected}
    with pytest.raises(UserError, match=r"stages\.adapt\.objective\.slope: 0\.1, now 0\.2"):
        train(read_config(path, ["stages.adapt.objective.slope=0.2"]))
    train(read_config(path, ["stages.adapt.objective={name: bmi, slope: 0.1, base: 1.0}"]))


def test_weights_of_a_run_use_its_stages_settings(started):
    path = adapt(started, "strong", {"name": "cbmi", "scale_token": 0.0, "scale_sentence": 0.0}, 2)
    train(read_config(path))
    result = cbmi("weights", started / "strong", "--objective", "cbmi")
    assert set(result.stdout.decode().split()) == {"1"}
    result = cbmi("weights", started / "strong", "--objective", "cbmi", "scale_token=0.5")
    assert len(set(result.stdout.decode().split())) > 100
    given, spelt = (
        cbmi("weights", started / "strong", "--objective", "cbmi", *settings).stdout
        for settings in (["preset=wmt19-zh-en"], ["scale_token=0.1", "scale_sentence=0.3"])
    )
    assert given == spelt
    message = refused("weights", started / "strong", "--objective", "cbmi", "preset=public")
    assert "groups of 4,096 tokens, as the public code does, but this run's steps have" in message


def test_another_text_is_weighted_as_if_it_were_trained_on(started, tmp_path):
    """The run's own text, read again, has its own weights; a part of it has others."""
    own = [started / "train.src", started / "train.tgt"]
    own_weights = cbmi("weights", started / "start", "--objective", "cbmi").stdout
    arguments = ["--source", own[0], "--target", own[1]]
    read_again = cbmi("weights", started / "start", "--objective", "cbmi", *arguments)
    assert read_again.stdout == own_weights
    part = [tmp_path / "part.src", tmp_path / "part.tgt"]
    for whole, piece in zip(own, part, strict=True):
        lines = whole.read_text().splitlines()[:200]
        piece.write_text("".join(line + "\n" for line in [*lines, ""]))
    with pytest.raises(UserError, match="target: give the source as well"):
        TrainedModel(started / "start").weights("cbmi", target=part[1])
    model = TrainedModel(started / "start")
    found = list(model.weights("cbmi", source=part[0], target=part[1]))
    assert [len(one) for one in found[:200]] == [
        len(one) for one in list(model.weights("cbmi"))[:200]
    ]
    assert found[200].tolist() == [1.0]  # an empty line
    frequent = list(model.weights("freq-exp", source=part[0], target=part[1], decay=0.5))
    assert not np.array_equal(frequent[0], next(model.weights("freq-exp", decay=0.5)))


def test_left_out_lines_have_a_line_of_weights(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    for side in ("src", "tgt"):
        lines = (tmp_path / f"train.{side}").read_text().splitlines()
        lines[7] = "" if side == "src" else lines[7]
        (tmp_path / f"train.{side}").write_text("".join(line + "\n" for line in lines))
    run = write_run(tmp_path, stages=[{"name": "ce", "steps": 1}])
    assert cbmi("train", run).returncode == 0
    lines = cbmi("weights", tmp_path / "run", "--objective", "bmi").stdout.decode().splitlines()
    assert len(lines) == 40
    assert lines[7] == "1"
    assert (tmp_path / "run" / "data" / "train" / "statistics" / "bmi").exists()


def test_objectives_without_weights_write_none(started):
    for arguments, expected in (
        (["prior-lm"], "'prior-lm' has no weights to write"),
        (["focall"], "unknown objective 'focall'"),
        (["cbmi", "name=5"], "the name of an objective is a word, not 5"),
        (["weights-file", "file=nosuch"], "nosuch: there is no such file of weights"),
        (["cbmi", "--target", "x.de"], "--target needs --source FILE"),
        (["cbmi", "--source", "x.en"], "--target: name the translations of x.en"),
    ):
        message = refused(
            "weights", started / "start", "-o", started / "none.txt", "--objective", *arguments
        )
        assert expected in message
    assert not (started / "none.txt").exists()


def test_mini_batches_are_those_of_training(tmp_path):
    """Sentence weights are normalised over the whole step, which is scored in micro-batches."""
    write_task(tmp_path, train=120, valid=4)
    stages = [{"name": "ce", "language_model": "train", "steps": 2}]
    train(read_config(write_run(tmp_path, stages=stages, batch={"tokens": 100, "accumulate": 2})))
    model = TrainedModel(tmp_path / "run")
    corpus = open_corpus(tmp_path / "run", "train")
    found = []
    for parts in mini_batches(model, corpus):
        found.append(np.concatenate([part.pairs for part in parts]))
    plan = EpochPlan(corpus.lengths(), 200, 1, 0)
    assert [sorted(pairs) for pairs in found] == [sorted(plan[n]) for n in range(len(plan))]
    assert sorted(np.concatenate(found)) == list(range(120))
