"""The library leaves its caller alone, and says what it is."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from tasks import run_values, write_task

import cbmi
from cbmi.inference.base import Translation
from cbmi.training.networks import new_language_model, new_translator


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run trained from Python, and the records that the callback got."""
    folder = tmp_path_factory.mktemp("library")
    write_task(folder, train=80, valid=6)
    records: list[dict] = []
    path = cbmi.train(run_values(folder), on_log=records.append, progress=False)
    return path, records, folder


def test_training_from_python(trained, capsys):
    path, records, folder = trained
    assert path == folder / "run"
    assert [record["step"] for record in records if "loss" in record] == list(range(1, 17))
    assert [record["step"] for record in records if "valid_loss" in record] == [4, 8, 12, 16]
    again = cbmi.train(cbmi.read_config(_run_file(folder)), progress=False)
    assert again == path
    assert capsys.readouterr().err == ""


def _run_file(folder: Path) -> Path:
    import yaml

    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump(run_values(folder)))
    return path


def test_keywords_replace_keys(trained):
    _, _, folder = trained
    changes = {"optimizer.peak_lr": 1e-3, "stages.adapt.steps": 1, "stages.pretrain.steps": 1}
    path = cbmi.train(_run_file(folder), output=str(folder / "other"), progress=False, **changes)
    config = cbmi.load(path).config
    assert config.optimizer.peak_lr == 1e-3
    assert [stage.steps for stage in config.stages] == [1, 1]
    with pytest.raises(cbmi.UserError, match="did you mean 'optimizer'"):
        cbmi.train(_run_file(folder), optimiser={})


def test_translating_from_python(trained):
    model = cbmi.load(trained[0])
    lines = ["ba da", "", "fo"]
    texts = model.translate(line for line in lines)
    assert len(texts) == 3
    assert texts[1] == ""
    several = model.translate(lines, beam=3, nbest=3)
    assert [len(found) for found in several] == [3, 0, 3]
    assert isinstance(several[0][0], Translation)
    assert model.translate(lines, beam=3)[0] == several[0][0].text
    assert several[0][0].score >= several[0][1].score


def test_sampling_from_python(trained):
    model = cbmi.load(trained[0])
    lines = ["ba da fo", "", "fo ba", "ba da fo"]
    sampling = cbmi.Sampling(temperature=1.2, seed=3)
    texts = model.translate(lines, sampling=sampling)
    assert texts[1] == ""
    assert texts[0] != texts[3]  # the same text on another line
    assert model.translate(lines, sampling=sampling) == texts
    assert model.translate(lines, sampling=cbmi.Sampling(temperature=1.2, seed=4)) != texts
    several = model.translate(lines, nbest=6, sampling=sampling)
    assert [len(found) for found in several] == [6, 0, 6, 6]
    assert len({one.text for one in several[0]}) > 1
    found = model.hypotheses(lines, nbest=6, sampling=sampling)
    assert [model.target.decode(one.ids) for one in found[3]] == [one.text for one in several[3]]


def test_samples_depend_on_the_line_and_its_number_alone(trained):
    """Not on how many lines are translated at a time; an empty line counts."""
    model = cbmi.load(trained[0])
    lines = ["ba da fo", "", "fo ba", "ba", "da ba da", "la mo"]
    options = {"nbest": 2, "sampling": cbmi.Sampling(seed=8)}
    expected = list(model.translations(lines, **options))
    for window in (1, 2, 4):
        found = list(model.translations(lines, window=window, **options))
        for ours, theirs in zip(found, expected, strict=True):
            assert [one.text for one in ours] == [one.text for one in theirs]
    last = model.hypotheses(lines[4:], first_number=4, **options)
    assert [model.target.decode(one.ids) for one in last[0]] == [one.text for one in expected[4]]
    changed = list(model.translations(["mo la", *lines[1:]], **options))
    assert [one.text for one in changed[5]] == [one.text for one in expected[5]]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"beam": 4}, "beam is 4, but sampling has no beam"),
        ({"nbest": 0}, "nbest is 0, but should be at least 1"),
    ],
)
def test_what_does_not_go_with_sampling(trained, options, message):
    model = cbmi.load(trained[0])
    with pytest.raises(cbmi.UserError, match=message):
        model.translate(["ba"], sampling=cbmi.Sampling(), **options)
    assert len(model.translate(["ba"], beam=1, sampling=cbmi.Sampling())) == 1


def test_scoring_from_python(trained):
    model = cbmi.load(trained[0], precision="fp32")
    (scored,) = model.score([("ba da fo", "ba da fo")])
    count = len(scored.tokens)
    assert scored.tokens[-1] == "</s>"
    assert [word.text for word in scored.words] == ["ba", "da", "fo", "</s>"]
    for values in (scored.log_p_nmt, scored.log_p_lm, scored.cbmi, scored.weights):
        assert isinstance(values, np.ndarray)
        assert values.shape == (count,)
    assert np.allclose(scored.cbmi, scored.log_p_nmt - scored.log_p_lm)


def test_weights_from_python(trained):
    path, _, folder = trained
    model = cbmi.load(path, precision="fp32")
    weights = list(model.weights("cbmi", scale_sentence=0.0))
    assert len(weights) == len((folder / "train.src").read_text().splitlines())
    assert np.mean(np.concatenate(weights)) == pytest.approx(1, abs=0.05)


def test_a_model_says_what_it_is(trained):
    text = repr(cbmi.load(trained[0]))
    for part in ("xx→yy", "checkpoint step-", "million weights", "float32 on cpu"):
        assert part in text


def test_loading_leaves_the_random_state_alone(trained):
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    model = cbmi.load(trained[0])
    model.language_model()
    assert torch.equal(torch.rand(3), expected)


def test_new_networks_leave_the_random_state_alone(trained):
    config = cbmi.load(trained[0]).config
    torch.manual_seed(7)
    expected = torch.rand(3)
    torch.manual_seed(7)
    first = new_translator(config, (400, 400), seed=1)
    second = new_translator(config, (400, 400), seed=1)
    other = new_translator(config, (400, 400), seed=2)
    new_language_model(config, 400, seed=1)
    assert torch.equal(torch.rand(3), expected)
    assert torch.equal(first.output_weight, second.output_weight)
    assert not torch.equal(first.output_weight, other.output_weight)


def test_kernels_are_a_networks_own_choice(trained):
    """Another run with compile: off does not switch the first one's kernels."""
    first = cbmi.load(trained[0])
    other = first.config.model_copy(update={"compile": "off"})
    second = new_translator(other, (400, 400))
    assert first.translator.runtime.allow_fused
    assert not second.runtime.allow_fused


def test_importing_costs_little():
    """PyTorch is imported when it is needed, not before."""
    code = "import sys, cbmi; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_is_exported_exists():
    for name in cbmi.__all__:
        assert getattr(cbmi, name) is not None
    assert (Path(cbmi.__file__).parent / "py.typed").exists()
    assert cbmi.objectives.cbmi_weights is not None
