"""Bits that flip in a run directory: the same result, or one sentence; never another result."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest
from lengths import AT_LENGTH
from safetensors.torch import load_file
from tasks import cbmi, write_run, write_task

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600 if AT_LENGTH else 900)]

STAGES = [
    {"name": "pretrain", "objective": "ce", "language_model": "train", "steps": 4},
    {"name": "adapt", "objective": "freq-exp", "steps": 4},
]
VALIDATION = {"validate": {"every": 4, "beam": 1}}
# What only reports: another figure in it changes nothing that is computed.
REPORTS = ("log.jsonl", "test")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("damage")
    write_task(folder, train=60, valid=6)
    path = write_run(folder, stages=STAGES, **VALIDATION)
    assert cbmi("train", path).returncode == 0
    return folder


def files_of(run: Path) -> list[Path]:
    found = []
    for path in sorted(run.rglob("*")):
        first = path.relative_to(run).parts[0]
        is_plain = path.is_file() and not path.is_symlink() and path.name != ".lock"
        if is_plain and first not in (*REPORTS, "best"):
            found.append(path)
    return found


def flip(path: Path, draw: random.Random) -> None:
    content = bytearray(path.read_bytes())
    place = draw.randrange(len(content))
    content[place] ^= 1 << draw.randrange(8)
    path.unlink()  # checkpoints of several runs may share a file by hard links
    path.write_bytes(content)


def sentence(result) -> str:
    """A refusal's one sentence."""
    said = result.stderr.decode(errors="replace")
    assert result.returncode == 2, said
    assert "Traceback" not in said
    return said


def test_a_flipped_bit_gives_the_same_result_or_a_sentence(trained, tmp_path, held):
    source = trained / "test.src"
    translated = cbmi("translate", trained / "run", source).stdout
    path = write_run(
        trained,
        "longer.yaml",
        stages=[STAGES[0], STAGES[1] | {"steps": 6}],
        output=str(tmp_path / "whole"),
        **VALIDATION,
    )
    shutil.copytree(trained / "run", tmp_path / "whole", symlinks=True)
    assert cbmi("train", path).returncode == 0
    expected = load_file(tmp_path / "whole" / "best" / "translator.safetensors")
    draw = random.Random(0)
    names = [file.relative_to(trained / "run") for file in files_of(trained / "run")]
    assert len(names) > 20
    refused = 0
    for name in names * (6 if AT_LENGTH else 1):
        shutil.rmtree(tmp_path / "run", ignore_errors=True)
        shutil.copytree(trained / "run", tmp_path / "run", symlinks=True)
        flip(tmp_path / "run" / name, draw)
        result = cbmi("translate", tmp_path / "run", source)
        if result.returncode:
            sentence(result)
        else:
            assert result.stdout == translated, name
        result = cbmi("train", path, f"output={tmp_path / 'run'}")
        if result.returncode:
            sentence(result)
            refused += 1
        else:
            found = load_file(tmp_path / "run" / "best" / "translator.safetensors")
            assert all((found[key] == expected[key]).all() for key in expected), name
        held()
    assert refused > len(names) / 3


def test_what_does_not_belong_together_is_refused(trained, tmp_path):
    """Another vocabulary of the same size, other heads, other data."""
    run = shutil.copytree(trained / "run", tmp_path / "run", symlinks=True)
    other = tmp_path / "other"
    other.mkdir()
    write_task(other, train=60, valid=6, reverse=True, seed=7)
    assert cbmi("prepare", write_run(other)).returncode == 0
    vocabulary = run / "vocab" / "shared.model"
    kept = vocabulary.read_bytes()
    vocabulary.write_bytes((other / "run" / "vocab" / "shared.model").read_bytes())
    message = sentence(cbmi("translate", run, trained / "test.src"))
    assert "this is not the vocabulary that step-8 was trained with" in message
    vocabulary.write_bytes(kept)
    config = (run / "config.yaml").read_text()
    (run / "config.yaml").write_text(config.replace("heads: 2", "heads: 4"))
    message = sentence(cbmi("translate", run, trained / "test.src"))
    assert "model.heads is 4, but step-8 was trained with 2" in message
    (run / "config.yaml").write_text(config)
    assert cbmi("translate", run, trained / "test.src").returncode == 0


def test_prepared_data_are_made_again_by_one_command(trained, tmp_path):
    run = shutil.copytree(trained / "run", tmp_path / "run", symlinks=True)
    stages = [STAGES[0], STAGES[1] | {"steps": 6}]
    path = write_run(trained, "again.yaml", stages=stages, output=str(run), **VALIDATION)
    flip(run / "data" / "train" / "target.ids", random.Random(3))
    message = sentence(cbmi("train", path))
    assert (
        "the prepared data are damaged; cbmi prepare RUN.yaml --again makes them again" in message
    )
    assert cbmi("prepare", path, "--again").returncode == 0
    assert cbmi("train", path).returncode == 0


def test_weights_that_are_no_numbers_do_not_translate(trained, tmp_path):
    from safetensors.torch import save_file

    from cbmi.digests import sha256
    from cbmi.files import to_json

    run = shutil.copytree(trained / "run", tmp_path / "run", symlinks=True)
    folder = run / "checkpoints" / "step-8"
    tensors = load_file(folder / "translator.safetensors")
    name = next(iter(tensors))
    tensors[name] = tensors[name] * float("nan")
    (folder / "translator.safetensors").unlink()
    save_file(tensors, folder / "translator.safetensors")
    digests = {}
    for file in sorted(folder.iterdir()):
        if file.name != "manifest.json":
            digests[file.name] = sha256(file)
    (folder / "manifest.json").write_text(to_json(digests))
    message = sentence(cbmi("translate", run, trained / "test.src"))
    assert "weights that are NaN or infinite" in message


def test_a_run_that_has_had_checkpoints_does_not_begin_again_by_itself(trained, tmp_path):
    run = shutil.copytree(trained / "run", tmp_path / "run", symlinks=True)
    path = write_run(trained, "restart.yaml", stages=STAGES, output=str(run), **VALIDATION)
    log = (run / "log.jsonl").read_bytes()
    for folder in (run / "checkpoints").iterdir():
        (folder / "state.json").unlink()
        (folder / "state.json").write_text("{}")
    names = sorted(folder.name for folder in (run / "checkpoints").iterdir())
    for _ in range(2):
        assert "no checkpoint is intact" in sentence(cbmi("train", path))
    assert sorted(folder.name for folder in (run / "checkpoints").iterdir()) == names
    assert (run / "log.jsonl").read_bytes() == log
    shutil.rmtree(run / "checkpoints")
    assert "its checkpoints are gone" in sentence(cbmi("train", path))
    result = cbmi("train", path, "--restart")
    assert result.returncode == 0, result.stderr.decode()
    assert "To resume this run, leave out --restart" in result.stderr.decode()
    aside = run / "before-restart"
    assert (aside / "log.jsonl").read_bytes() == log
    assert (aside / "config.yaml").exists()
    assert (aside / "vocab" / "shared.model").exists()
    assert (run / "best" / "translator.safetensors").exists()
    assert cbmi("train", path, "--restart").returncode == 0
    assert (run / "before-restart-2" / "checkpoints").exists()
    assert cbmi("translate", run / "before-restart-2", trained / "test.src").returncode == 0
    names = sorted(path.name for path in run.iterdir())
    message = sentence(cbmi("train", path, "--restart", "data.max_length=99"))
    assert "data.max_length: 256, now 99" in message
    assert sorted(path.name for path in run.iterdir()) == names  # a refusal moves nothing
