"""The README's own commands, in its own words, on a small corpus with the README's file names."""

from __future__ import annotations

import re
import shlex
import subprocess
from pathlib import Path

import pytest
import yaml
from pages import blocks
from tasks import ROOT, cbmi, two_ranks

from cbmi.config import read_config
from cbmi.training.checks import check_stages, complete_settings

pytestmark = pytest.mark.slow

README = (ROOT / "README.md").read_text(encoding="utf-8")
SMALL = [
    "stages.pretrain.steps=4",
    "stages.adapt.steps=3",
    "data.vocabulary.size=700",
    "batch.tokens=300",
]
TRAINING_PAIRS = 150


def run(command: str) -> subprocess.CompletedProcess | None:
    """Run a command, small; None for what `make` and pip cover."""
    if not command.startswith(("cbmi", "torchrun")):
        return None
    words = shlex.split(command, comments=True)
    if "train" in words and "--dry-run" not in words:  # which trains nothing
        words += SMALL
    if words[0] == "cbmi":
        return cbmi(*words[1:])
    return two_ranks(*words[3:])


def shorten(corpus: Path) -> None:
    """Keep the first pairs of the built-in corpus, so that the rest takes seconds."""
    for name, count in (("train", TRAINING_PAIRS), ("valid", 15), ("test", 15)):
        for side in ("en", "de"):
            path = corpus / f"{name}.{side}"
            lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
            path.write_text("".join(lines[:count]), encoding="utf-8")


@pytest.mark.timeout(240)
def test_the_commands_of_the_readme(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (settings,) = blocks(README, "yaml")
    (tmp_path / "mine.yaml").write_text(settings)
    # A backslash continues a command on the next line.
    text = "\n".join(blocks(README, "")).replace("\\\n", " ")
    commands = text.splitlines()
    statuses = []
    for command in commands:
        result = run(command)
        if result is not None:
            statuses.append(result.returncode)
            assert result.returncode == 0, result.stderr.decode()
        if command.startswith("cbmi corpus get"):
            shorten(tmp_path / "corpus")
    assert len(statuses) == 11
    assert len((tmp_path / "test.out").read_text().splitlines()) == 15
    assert len((tmp_path / "scores.jsonl").read_text().splitlines()) == TRAINING_PAIRS
    assert len((tmp_path / "clean.kept.en").read_text().splitlines()) == 142
    assert (tmp_path / "page.html").read_text().count("<article") == 8
    (snippet,) = blocks(README, "python")
    exec(compile(snippet, "README.md", "exec"), {})


def test_make_targets_of_the_readme_exist():
    makefile = (ROOT / "Makefile").read_text()
    targets = re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE)
    assert {"demo", "test", "setup"} <= set(targets)
    for target in targets:
        assert f"\n{target}:" in makefile


@pytest.mark.parametrize("recipe", sorted(path.name for path in (ROOT / "recipes").glob("*.yaml")))
def test_recipes_are_sound(recipe):
    config = read_config(ROOT / "recipes" / recipe)
    assert [stage.name for stage in config.stages] == ["pretrain", "adapt"]
    check_stages(complete_settings(config))


def test_run_files_have_time_for_the_default_schedule(tmp_path):
    """A stage that ends within its warm-up would have another one."""
    (readme,) = blocks(README, "yaml")
    guide = blocks((ROOT / "docs" / "guide.md").read_text(encoding="utf-8"), "yaml")[0]
    for text in (readme, guide, (ROOT / "recipes" / "demo.yaml").read_text()):
        path = tmp_path / "run.yaml"
        path.write_text(text)
        check_stages(complete_settings(read_config(path, ["optimizer.schedule=linear"])))


def test_the_wmt_recipes_have_the_papers_settings():
    for task, shared, restart in (("wmt14-en-de", True, True), ("wmt19-zh-en", False, False)):
        for size, width, peak, dropout in (("base", 512, 7e-4, 0.1), ("big", 1024, 5e-4, 0.3)):
            config = read_config(ROOT / "recipes" / f"{task}-{size}.yaml")
            assert (config.model.width, config.optimizer.peak_lr, config.model.dropout) == (
                width,
                peak,
                dropout,
            )
            assert (config.model.attention_dropout, config.model.activation_dropout) == (0.1, 0.1)
            assert (config.optimizer.warmup, config.optimizer.clip, config.batch.tokens) == (
                4000,
                5.0,
                4096,
            )
            assert config.optimizer.betas == (0.9, 0.98)
            assert (config.optimizer.schedule, config.ema, config.r_drop) == ("inverse-sqrt", 0, 0)
            assert (config.data.vocabulary.size, config.data.vocabulary.shared) == (32000, shared)
            assert [stage.steps for stage in config.stages] == [100_000, 200_000]
            assert config.stages[1].objective == {
                "name": "cbmi",
                "scale_token": 0.1,
                "scale_sentence": 0.3,
            }
            assert config.stages[1].language_model == "frozen"
            assert config.stages[1].restart_optimizer is restart
            assert (
                config.validate_.every,
                config.validate_.beam,
                config.validate_.length_penalty,
            ) == (5000, 4, 0.6)


def test_the_guides_run_files_are_understood(tmp_path):
    guide = (ROOT / "docs" / "guide.md").read_text(encoding="utf-8")
    configs = []
    whole = [settings for settings in blocks(guide, "yaml") if "output:" in settings]
    for settings in whole:
        path = tmp_path / "run.yaml"
        path.write_text(settings)
        configs.append(read_config(path))
    config, adapted = configs
    assert adapted.initialize == "runs/first"
    named = set(re.findall(r"`([a-z_]+)[.\[`]", guide))
    assert set(yaml.safe_load(yaml.safe_dump(config.plain()))) <= named


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md"))]
)
def test_links_lead_somewhere_and_nothing_is_left_blank(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        assert target.startswith("https://") or (ROOT / page).parent.joinpath(target).exists(), (
            target
        )
    assert not re.findall(
        r"\b[A-Z]+_[A-Z]+\b", re.sub(r"`[^`]*`|```.*?```", "", text, flags=re.DOTALL)
    )
