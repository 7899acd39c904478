"""Checkpoints: whole or not there, and damage is seen."""

from __future__ import annotations

import os

import pytest
import torch

from cbmi.errors import UserError
from cbmi.files import atomic_file, atomic_folder
from cbmi.training import checkpoint as store
from cbmi.training.checkpoint import TrainingState


def save(folder, step, **state):
    tensors = {"translator": {"weight": torch.full((3,), float(step))}}
    store.save_checkpoint(folder / f"step-{step}", tensors, TrainingState(step=step, **state))


def test_what_is_saved_comes_back(tmp_path):
    save(tmp_path, 7, epoch=2, best_step=5, best_score=31.5)
    folder = tmp_path / "step-7"
    assert store.damage(folder) is None
    assert store.read_state(folder) == TrainingState(step=7, epoch=2, best_step=5, best_score=31.5)
    assert store.load_tensors(folder, "translator")["weight"].tolist() == [7.0] * 3
    assert store.load_tensors(folder, "language_model") is None
    assert {path.suffix for path in folder.iterdir()} == {".safetensors", ".json"}


@pytest.mark.parametrize("name", ["translator.safetensors", "state.json", "manifest.json"])
@pytest.mark.parametrize("how", ["truncated", "changed", "missing", "empty"])
def test_damage_is_named_and_the_checkpoint_before_is_used(tmp_path, capsys, name, how):
    save(tmp_path, 9)
    save(tmp_path, 10)
    path = tmp_path / "step-10" / name
    content = bytearray(path.read_bytes())
    if how == "missing":
        path.unlink()
    else:
        content[len(content) // 2] ^= 1
        path.write_bytes({"truncated": content[:-3], "changed": content, "empty": b""}[how])
    assert store.newest_intact(tmp_path) == tmp_path / "step-9"
    assert "step-10" in capsys.readouterr().err
    assert [store.step_of(folder) for folder in store.all_checkpoints(tmp_path)] == [9]


def fail_in(manager, name: str) -> None:
    with pytest.raises(RuntimeError):
        fill_and_fail(manager, name)


def fill_and_fail(manager, name: str) -> None:
    with manager as temporary:
        (temporary / name if name else temporary).write_text("new")
        raise RuntimeError


def test_a_failed_write_leaves_the_old_one(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    fail_in(atomic_file(path), "")
    assert path.read_text() == "old"
    fail_in(atomic_folder(tmp_path / "folder"), "inside")
    assert os.listdir(tmp_path) == ["file"]


def test_old_checkpoints_go_but_not_the_best_and_the_ends_of_stages(tmp_path):
    for step in range(1, 10):
        state = {"score": {2: 30.0, 4: 20.0, 7: 10.0}.get(step), "stage_done": step == 5}
        save(tmp_path, step, best_step=2 if step > 1 else None, **state)
    store.retain(tmp_path, TrainingState(step=9, best_step=2), keep_last=2, keep_best=2)
    assert [store.step_of(folder) for folder in store.all_checkpoints(tmp_path)] == [2, 4, 5, 8, 9]


def test_a_link_is_moved_in_one_step(tmp_path):
    save(tmp_path / "checkpoints", 1)
    save(tmp_path / "checkpoints", 2)
    for step in (1, 2):
        store.point_to(tmp_path / "best", tmp_path / "checkpoints" / f"step-{step}")
        assert os.readlink(tmp_path / "best") == f"checkpoints/step-{step}"


def test_weights_of_another_shape_are_refused(tmp_path):
    network = torch.nn.Linear(2, 3)
    with pytest.raises(UserError, match="another shape"):
        store.load_weights(network, {"weight": torch.zeros(3, 3), "bias": torch.zeros(3)}, tmp_path)
