"""Files that exist whole or not at all: which file an error names, and what is synced."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from cbmi import files
from cbmi.errors import UserError
from cbmi.files import atomic_file, atomic_folder, check_writable, disk_errors, write_atomically


@pytest.mark.parametrize("manager", [atomic_file, atomic_folder, disk_errors])
def test_a_file_that_cannot_be_read_is_named(tmp_path, manager):
    other = tmp_path / "elsewhere" / "in.txt"
    with (
        pytest.raises(UserError, match=rf"^{other}: cannot be read: No such file or directory\.$"),
        manager(tmp_path / "out"),
    ):
        other.read_text()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "name", ["out", "out/a/b", ".out.partial", ".out.partial/a", ".out.removed/a", "beside"]
)
def test_what_belongs_to_the_output_cannot_be_written(tmp_path, monkeypatch, name):
    """Whether the output is given from the working directory on or from the root."""
    monkeypatch.chdir(tmp_path)
    for output in (Path("out"), tmp_path / "out"):
        with (
            pytest.raises(UserError, match=rf"^{output}: cannot be written: No such file"),
            disk_errors(output),
        ):
            (tmp_path / name).stat()


def test_a_folder_above_the_output_cannot_be_made(tmp_path):
    (tmp_path / "file").write_text("")
    path = tmp_path / "file" / "a" / "b" / "out.txt"
    with pytest.raises(UserError, match=rf"^{path}: cannot be written: Not a directory"):
        write_atomically(path, "")


def test_a_link_that_cannot_be_made_is_an_error_of_the_output(tmp_path):
    """Its error names the file that is linked first."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    (folder / "in.txt").write_text("")
    with (
        pytest.raises(UserError, match=r"/out: cannot be written: File exists"),
        atomic_folder(tmp_path / "out") as temporary,
    ):
        os.link(folder / "in.txt", temporary)


def test_an_error_without_a_file_is_one_of_the_output(tmp_path):
    with (
        pytest.raises(UserError, match=r"out\.txt: cannot be written: No space left"),
        atomic_file(tmp_path / "out.txt"),
    ):
        raise OSError(28, "No space left on device")


def test_a_copy_names_the_file_that_is_missing(tmp_path):
    missing = tmp_path / "elsewhere" / "in.txt"
    with (
        pytest.raises(UserError, match=rf"^{missing}: cannot be read"),
        atomic_file(tmp_path / "out.txt") as temporary,
    ):
        shutil.copyfile(missing, temporary)


def test_a_folder_that_cannot_be_made_is_refused_by_its_own_name(tmp_path):
    (tmp_path / "file").write_text("")
    folder = tmp_path / "file" / "a" / "b"
    with pytest.raises(UserError, match=rf"^{folder}: cannot be written: Not a directory"):
        check_writable(folder)


def test_a_folders_names_are_synced_before_it_takes_its_place(tmp_path, monkeypatch):
    synced = []
    sync = files.sync

    def remember_and_sync(path: Path) -> None:
        synced.append(path.name)
        sync(path)

    monkeypatch.setattr(files, "sync", remember_and_sync)
    with atomic_folder(tmp_path / "out") as temporary:
        (temporary / "a").write_text("")
        (temporary / "b").mkdir()
    # The files inside, the folder's own list of names, and the list that the folder is in.
    assert sorted(synced[:2]) == ["a", "b"]
    assert synced[2].startswith(".out.")
    assert synced[2].endswith(".partial")
    assert synced[3:] == [tmp_path.name]
