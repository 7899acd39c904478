"""The targets of studies/Makefile: a typo there would cost hours of a GPU."""

from __future__ import annotations

import gzip
import re
import shlex
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest
from tasks import ROOT, environment

MAKE = ["make", "--no-print-directory", "-f", "studies/Makefile"]
CORPORA = {
    "multi30k": ("train.en.gz", "train.de.gz"),
    "docs-en-de": ("train.en.xz", "train.de.xz"),
    "msdocs-en-de": ("train.en.xz", "train.de.xz", "train.kind.xz"),
}


def unnested() -> dict[str, str]:
    """The tests themselves may run under make, which leaves its own options to those below it."""
    return {name: value for name, value in environment().items() if not name.startswith("MAKE")}


def called(folder: Path, *words: str) -> str:
    done = subprocess.run(
        [*MAKE, *words], cwd=folder, env=unnested(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


TARGETS = called(ROOT).split()


@pytest.fixture
def root(tmp_path):
    for name in ("studies", "recipes"):
        (tmp_path / name).symlink_to(ROOT / name)
    for corpus, names in CORPORA.items():
        (tmp_path / "data" / corpus).mkdir(parents=True)
        for name in names:
            (tmp_path / "data" / corpus / name).touch()
    return tmp_path


def test_every_plan_has_a_target():
    plans = {path.stem for path in (ROOT / "studies").glob("*.yaml")}
    commands = (ROOT / "studies" / "Makefile").read_text()
    named = {
        *TARGETS,
        *re.findall(r"ladder,(\w+)", commands),
        *re.findall(r"/(\w+)\.yaml", commands),
    }
    assert plans - named == {"docs-en-de-small"}  # which the experiments share


@pytest.mark.parametrize("target", TARGETS)
def test_a_target_names_what_there_is(target, root):
    printed = called(root, "-n", target, "SEEDS=1", "JOBS=2").replace("\\\n", " ")
    commands = [line for line in printed.splitlines() if not line.startswith("make")]
    assert len(commands) >= 1
    for command in commands:
        for word in shlex.split(command):
            if word.startswith(("studies/", "recipes/")):
                assert (root / word).exists(), command


@pytest.mark.parametrize("target", ["multi30k", "students"])
def test_its_options_are_those_of_the_ladder(target, root):
    printed = called(root, "-n", target, f"PYTHON={sys.executable}", "RUNGS=base,ema")
    command = shlex.split(printed.splitlines()[-1])
    done = subprocess.run(
        [*command, "--report"], cwd=root, env=environment(), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert command[command.index("--rungs") + 1] == "base,ema"


def test_variables_of_the_environment_change_nothing(root, monkeypatch):
    before = called(root, "-n", *TARGETS)
    for name in ("OUT", "RESULTS", "SEEDS", "SHARD", "JOBS", "DEVICE", "RUNGS"):
        monkeypatch.setenv(name, "elsewhere")
    assert called(root, "-n", *TARGETS) == before


def test_subsets(root):
    lines = [f"{number}\n" for number in range(7)]
    for language in ("en", "de"):
        with gzip.open(root / "data" / "multi30k" / f"train.{language}.gz", "wt") as file:
            file.writelines(lines)
    made = ["data/multi30k/parallel.en", "data/multi30k/parallel.de", "data/multi30k/mono.de"]
    called(root, "HALF=3", *made)
    parallel_en, parallel_de, mono = ((root / name).read_text() for name in made)
    assert parallel_en == parallel_de == "".join(lines[:3])
    assert mono == "".join(lines[3:])


def test_results_leave_models_behind(root):
    jobs = root / "experiments" / "scales-on-news" / "jobs"
    kept = ["a-1-ce/result.json", "a-1-ce/run/test/x.txt", "a-1-start/result.json"]
    left = ["a-1-ce/run/config.yaml", "a-1-ce/run/best/x", "a-1-start/run/test/x.txt"]
    for name in (*kept, *left):
        (jobs / name).parent.mkdir(parents=True, exist_ok=True)
        (jobs / name).touch()
    (jobs.parent / "registration.yaml").touch()
    called(root, "results")
    with tarfile.open(root / "experiments" / "results.tar.gz") as archive:
        names = archive.getnames()
    expected = [f"./scales-on-news/jobs/{name}" for name in kept]
    assert sorted(names) == sorted([*expected, "./scales-on-news/registration.yaml"])


def test_a_published_registration_holds(root):
    folder = root / "docs" / "runs" / "articles"
    folder.mkdir(parents=True)
    (folder / "registration.yaml").touch()
    first, *others = called(root, "-n", "articles", "SHARD=0/3").replace("\\\n", " ").splitlines()
    assert first == "mkdir -p experiments/articles"
    assert "cp docs/runs/articles/registration.yaml experiments/articles/" in others[0]
    assert shlex.split(others[1])[-2:] == ["--shard", "0/3"]
    # Not for a corpus of one's own.
    assert "cp docs" not in called(root, "-n", "articles", "REGISTRATIONS=")


def test_a_model_that_lies_elsewhere_is_missed(root):
    """With the results of an experiment alone, nothing is left to train."""
    script = root / "python"
    script.write_text("#!/bin/sh\nexit 0\n")
    script.chmod(0o755)
    wanted = "experiments/articles/jobs/docs-zh-en-1-start/run/test/results.json"
    done = subprocess.run(
        [*MAKE, wanted, f"PYTHON={script}", "SHARD=1/3"],
        cwd=root,
        env=unnested(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2
    assert f"{wanted} is missing: its experiment was done elsewhere" in done.stdout
    assert "--shard" not in done.stdout


def test_a_gpu_that_was_chosen_stays(root, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    assert "CUDA_VISIBLE_DEVICES=${CUDA_VISIBLE_DEVICES:-1}" in called(
        root, "-n", "huggingface", "DEVICE=cuda:1"
    )
