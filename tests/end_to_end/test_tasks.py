"""A tiny task from text files to translations, as a user does it."""

from __future__ import annotations

import json
import shutil

import pytest
from tasks import cbmi, refused, without_dropout, write_run, write_task

import cbmi as package

pytestmark = pytest.mark.slow

FAST = {
    "model": without_dropout(width=64, feed_forward=256, heads=2),
    "batch": {"tokens": 700},
    "optimizer": {"peak_lr": 3.0e-3, "warmup": 100},
    "validate": {"every": 100, "beam": 2},
    "log": {"every": 20},
}


def stages(objective, pretrain, adapt):
    return [
        {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": pretrain},
        {
            "name": "adapt",
            "objective": objective,
            "language_model": "frozen",
            "steps": adapt,
            "restart_optimizer": False,
        },
    ]


@pytest.fixture(scope="module")
def copied(tmp_path_factory):
    """A run that has learnt to copy, with CBMI in its second stage."""
    folder = tmp_path_factory.mktemp("copy")
    write_task(folder, train=3000, valid=60)
    tests = {"test": {"test": [str(folder / "test.src"), str(folder / "test.tgt")]}}
    path = write_run(folder, **FAST, stages=stages("cbmi", 200, 100))
    data = json.dumps(tests["test"])
    result = cbmi("train", path, f"data.test={data}")
    assert result.returncode == 0, result.stderr.decode()
    return folder


def test_cbmi_learns_to_copy(copied):
    results = json.loads((copied / "run" / "test" / "results.json").read_text())["results"]
    assert results["test"]["bleu"] > 95


def test_cross_entropy_learns_to_reverse(tmp_path):
    write_task(tmp_path, train=3000, valid=60, reverse=True)
    path = write_run(tmp_path, **FAST, stages=[{"name": "ce", "steps": 500}])
    data = json.dumps({"test": [str(tmp_path / "test.src"), str(tmp_path / "test.tgt")]})
    assert cbmi("train", path, f"data.test={data}").returncode == 0
    results = json.loads((tmp_path / "run" / "test" / "results.json").read_text())["results"]
    assert results["test"]["bleu"] > 95


def test_the_log_has_the_figures(copied):
    records = [json.loads(line) for line in (copied / "run" / "log.jsonl").read_text().splitlines()]
    adapting = [record for record in records if record["stage"] == "adapt" and "loss" in record]
    for key in (
        "loss",
        "ppl",
        "lm_ppl",
        "cbmi_mean",
        "cbmi_std",
        "zero_weights",
        "weight_mean",
        "weight_std",
    ):
        assert all(key in record for record in adapting)
    for key in ("lr", "grad_norm", "tokens_per_second", "epoch"):
        assert all(key in record for record in adapting)
    assert adapting[-1]["cbmi_mean"] > 2  # a copy depends on its source
    assert 0.9 < adapting[-1]["weight_mean"] < 1.1
    validated = [record for record in records if "valid_bleu" in record]
    assert [record["stage"] for record in validated] == ["pretrain", "pretrain", "adapt"]
    assert validated[-1]["valid_bleu"] > 95


def test_translate_keeps_order_and_lines(copied):
    lines = (copied / "test.src").read_text().splitlines()
    lines[3] = ""
    text = "".join(line + "\n" for line in lines).encode()
    by_pipe = cbmi("translate", copied / "run", input=text)
    assert by_pipe.returncode == 0, by_pipe.stderr.decode()
    found = by_pipe.stdout.decode().splitlines()
    assert len(found) == len(lines)
    assert found[3] == ""
    assert sum(a == b for a, b in zip(found, lines, strict=True)) > 0.9 * len(lines)
    by_file = cbmi("translate", copied / "run", copied / "test.src", "-o", copied / "out.txt")
    assert by_file.returncode == 0
    assert [a for i, a in enumerate((copied / "out.txt").read_text().splitlines()) if i != 3] == [
        a for i, a in enumerate(found) if i != 3
    ]
    model = package.load(str(copied / "run"))
    assert model.translate(lines[:5]) == found[:5]
    with pytest.raises(TypeError, match="iterable of lines"):
        model.translate(lines[0])


def test_nbest_with_scores(copied):
    text = b"ba da\nfo\n"
    result = cbmi(
        "translate", copied / "run", "--nbest", "3", "--beam", "4", "--scores", input=text
    )
    rows = [line.split("\t") for line in result.stdout.decode().splitlines()]
    assert len(rows) == 6
    for three in (rows[:3], rows[3:]):
        scores = [float(row[0]) for row in three]
        assert scores == sorted(scores, reverse=True)
        assert all(float(row[1]) <= 0 for row in three)
    assert "should be between 1 and the beam's width" in refused(
        "translate", copied / "run", "--nbest", "5", "--beam", "4", input=text
    )


def test_sampling_by_command(copied):
    command = ["translate", copied / "run", "--sample", "--temperature", "3", "--nbest", "2"]
    text = b"ba da fo\n\nfo la mo\n"
    first = cbmi(*command, "--scores", input=text)
    assert first.returncode == 0, first.stderr.decode()
    rows = [line.split("\t") for line in first.stdout.decode().splitlines()]
    assert [bool(row[2]) for row in rows] == [True, True, False, False, True, True]
    assert rows[0][2] != rows[1][2]
    sampling = package.Sampling(temperature=3.0)
    found = package.load(copied / "run").translate(["ba da fo"], nbest=2, sampling=sampling)
    assert [one.text for one in found[0]] == [row[2] for row in rows[:2]]
    assert cbmi(*command, "--scores", "--seed", "1", input=text).stdout == first.stdout
    assert cbmi(*command, "--scores", "--seed", "2", input=text).stdout != first.stdout


def test_the_likeliest_token_is_that_of_a_beam_of_one(copied):
    text = (copied / "test.src").read_bytes()
    sampled = cbmi("translate", copied / "run", "--sample", "--top-k", "1", input=text)
    greedy = cbmi("translate", copied / "run", "--beam", "1", input=text)
    assert sampled.stdout == greedy.stdout


def test_scores_are_those_of_the_formula(copied):
    import torch

    from cbmi.objectives import cbmi_weights

    files = ["--source", copied / "test.src", "--target", copied / "test.tgt"]
    result = cbmi("score", copied / "run", *files, "-o", copied / "scores.jsonl")
    assert result.returncode == 0, result.stderr.decode()
    records = [json.loads(line) for line in (copied / "scores.jsonl").read_text().splitlines()]
    assert [record["target"] for record in records] == (
        copied / "test.tgt"
    ).read_text().splitlines()
    width = max(len(record["pieces"]) for record in records)
    pad = [
        [record[key] + [0.0] * (width - len(record[key])) for record in records]
        for key in ("nmt", "lm", "weights")
    ]
    nmt, lm, weights = torch.tensor(pad, dtype=torch.float64)
    mask = torch.tensor([[i < len(record["pieces"]) for i in range(width)] for record in records])
    assert torch.allclose(weights, cbmi_weights(nmt, lm, mask), atol=1e-4)
    for record in records:
        cbmi_values = [a - b for a, b in zip(record["nmt"], record["lm"], strict=True)]
        assert record["cbmi"] == pytest.approx(cbmi_values, abs=1e-5)
        assert record["sentence_cbmi"] == pytest.approx(
            sum(cbmi_values) / len(cbmi_values), abs=1e-5
        )
        assert record["pieces"][-1] == "</s>"


def test_a_mismatched_pair_scores_lower(copied):
    from cbmi.inference.scoring import score_pairs

    model = package.load(str(copied / "run"))
    good, bad = score_pairs(model, [("ba da fo", "ba da fo"), ("ba da fo", "ku ti re")])
    assert good.sentence_cbmi > bad.sentence_cbmi + 2
    assert good.sentence_weight > 1 > bad.sentence_weight


def test_averages(small_run, tmp_path):
    """Of checkpoints of the last stage: the stages' objectives differ."""
    from safetensors.torch import load_file

    run = tmp_path / "run"
    shutil.copytree(small_run / "run", run, symlinks=True)
    result = cbmi("average", run, "--last", "2")
    assert result.returncode == 0, result.stderr.decode()
    assert "Averaged step-12, step-16" in result.stderr.decode()
    folders = [run / "checkpoints" / name for name in ("step-12", "step-16", "average-last-2")]
    first, second, mean = (load_file(folder / "translator.safetensors") for folder in folders)
    for name in mean:
        assert ((first[name] + second[name]) / 2 - mean[name]).abs().max() < 1e-6
    assert (
        cbmi("translate", run, "--checkpoint", "average-last-2", input=b"ba da\n").returncode == 0
    )
    assert "has 2 checkpoints of its last stage, not 3" in refused("average", run, "--last", "3")
    assert "has 2 validated checkpoints of its last stage, not 9" in refused(
        "average", run, "--best", "9"
    )
    assert "either --last K or --best K" in refused("average", run)


def test_evaluate(copied, tmp_path):
    reference = copied / "test.tgt"
    other = tmp_path / "other.txt"
    other.write_text(
        "".join(line.split(" ", 1)[0] + " ba\n" for line in reference.read_text().splitlines())
    )
    result = cbmi(
        "evaluate", "--reference", reference, reference, other, "--multi-bleu", "--bootstrap", "50"
    )
    assert result.returncode == 0, result.stderr.decode()
    table = result.stdout.decode()
    assert "100.00" in table
    assert "tok:13a" in table
    assert "multi-bleu|" in table
    as_json = cbmi("evaluate", "--reference", reference, other, "--json", "--bootstrap", "0")
    assert json.loads(as_json.stdout)["systems"][0]["metrics"]["BLEU"]["score"] < 50
    assert "apply to multi-BLEU only" in refused(
        "evaluate", "--reference", reference, other, "--split-compounds"
    )


def test_a_finished_run_can_be_trained_longer(tmp_path):
    write_task(tmp_path, train=60)
    assert cbmi("train", write_run(tmp_path)).returncode == 0
    longer = cbmi("train", tmp_path / "run.yaml", "stages.adapt.steps=12")
    assert longer.returncode == 0, longer.stderr.decode()
    assert "From step 17 on: stages.adapt.steps: 8, now 12." in longer.stderr.decode()
    assert (tmp_path / "run" / "checkpoints" / "step-20").exists()
    (line,) = (tmp_path / "run" / "history.jsonl").read_text().splitlines()
    change = {"path": "stages.adapt.steps", "old": 8, "new": 12}
    assert json.loads(line) == {"step": 16, "changes": [change]}


def test_another_run_can_start_from_its_weights(tmp_path):
    write_task(tmp_path, train=60)
    pretrain = [{"name": "pretrain", "language_model": "train", "steps": 6}]
    adapt = [{"name": "adapt", "objective": "cbmi", "language_model": "frozen", "steps": 3}]
    assert cbmi("train", write_run(tmp_path, stages=pretrain)).returncode == 0
    settings = {
        "stages": adapt,
        "output": str(tmp_path / "second"),
        "initialize": str(tmp_path / "run"),
    }
    result = cbmi("train", write_run(tmp_path, "second.yaml", **settings))
    assert result.returncode == 0, result.stderr.decode()
    first, second = (tmp_path / name / "vocab" / "shared.model" for name in ("run", "second"))
    assert first.read_bytes() == second.read_bytes()
    inherited = {
        "train": [str(tmp_path / "train.src"), str(tmp_path / "train.tgt")],
        "source": "xx",
        "target": "yy",
    }
    settings["output"] = str(tmp_path / "inherited")
    path = write_run(tmp_path, "inherited.yaml", **settings, data=inherited)
    # Without a data.vocabulary of its own, the run has that of the other run.
    assert cbmi("train", path).returncode == 0
    assert cbmi("train", path, "stages.adapt.steps=4").returncode == 0
    settings["model"] = {"preset": "tiny"}
    settings["output"] = str(tmp_path / "third")
    assert "has model.width 32, but this run has 128" in refused(
        "train", write_run(tmp_path, "third.yaml", **settings)
    )


def test_patience_ends_a_stage(tmp_path):
    write_task(tmp_path, train=30, valid=5)
    stage = [{"name": "ce", "steps": 400}]
    rest = {
        "validate": {"every": 2, "beam": 0, "patience": 2},
        "optimizer": {"peak_lr": 1.0, "warmup": 0},
    }
    path = write_run(tmp_path, stages=stage, **rest)
    assert cbmi("train", path).returncode == 0
    steps = [
        json.loads(line)["step"]
        for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()
    ]
    assert max(steps) < 100
    again = cbmi("train", path)
    assert again.returncode == 0
    assert f"Finished at step {max(steps)}" in again.stderr.decode()


def test_tensorboard_gets_the_figures_too(tmp_path):
    write_task(tmp_path, train=30, valid=5)
    stage = [{"name": "ce", "steps": 3}]
    result = cbmi("train", write_run(tmp_path, stages=stage, log={"every": 1, "tensorboard": True}))
    assert result.returncode == 0, result.stderr.decode()
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    events.Reload()
    assert [event.step for event in events.Scalars("loss")] == [1, 2, 3]


def test_test_sets_may_change_when_a_run_is_done(tmp_path):
    """They are translated again by the same checkpoint; nothing is trained."""
    write_task(tmp_path)
    path = write_run(tmp_path)
    files = [str(tmp_path / "test.src"), str(tmp_path / "test.tgt")]
    assert cbmi("train", path, f"data.test={{one: {files}}}").returncode == 0
    weights = tmp_path / "run" / "best" / "translator.safetensors"
    before = weights.stat().st_mtime_ns
    results = tmp_path / "run" / "test" / "results.json"
    for side in ("src", "tgt"):
        (tmp_path / f"test.{side}").write_text("ba da\n")
    assert cbmi("train", path, f"data.test={{one: {files}, two: {files}}}").returncode == 0
    assert json.loads(results.read_text())["results"].keys() == {"one", "two"}
    for name in ("one", "two"):
        assert len((tmp_path / "run" / "test" / f"{name}.txt").read_text().splitlines()) == 1
    assert weights.stat().st_mtime_ns == before
    again = cbmi("train", path, f"data.test={{one: {files}, two: {files}}}")
    assert "two: BLEU" in again.stderr.decode()
    assert "Translating" not in again.stderr.decode()
    for broken in ("[1, 2]", "{", '{"results": 3}'):
        results.write_text(broken)
        assert cbmi("train", path, f"data.test={{one: {files}, two: {files}}}").returncode == 0
        assert json.loads(results.read_text())["results"].keys() == {"one", "two"}


def test_other_weights_of_the_same_step_are_tested_again(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    path = write_run(tmp_path)
    files = [str(tmp_path / "test.src"), str(tmp_path / "test.tgt")]
    results = tmp_path / "run" / "test" / "results.json"
    weights = []
    for seed in (1, 2):
        shutil.rmtree(tmp_path / "run" / "checkpoints", ignore_errors=True)
        (tmp_path / "run" / "best").unlink(missing_ok=True)
        assert cbmi("train", path, f"seed={seed}", f"data.test={{one: {files}}}").returncode == 0
        weights.append(json.loads(results.read_text())["weights"])
    assert weights[0] != weights[1]
