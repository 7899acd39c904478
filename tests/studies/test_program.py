"""What a user can mend is one sentence, in every program of studies/."""

from __future__ import annotations

import subprocess
import sys

import pytest
from tasks import ROOT, environment

CASES = {
    "filtering none.yaml out": "filtering: none.yaml: cannot read the run file: ",
    "filtering run.yaml out --report": "filtering.json: there is no such file",
    "word_recall none two ce=two": "word_recall: none: ",
    "word_recall two two two": "word_recall: two: should be NAME=FILE",
    "word_recall two two ce=one": "word_recall: one has 1 line, but two has 2.",
    "word_weights two two": "word_weights: 'a' is not a line of `cbmi score`",
    "segmentation_speed none none": "segmentation_speed: none: ",
    "recipe_ladder run.yaml out": "recipe_ladder: run.yaml: a plan of a ladder has 'tasks'.",
    "natural_noise none two out": "natural_noise: none: there is no such run directory.",
}


@pytest.mark.slow
@pytest.mark.parametrize("command", CASES)
def test_a_mistake_is_a_sentence(command, tmp_path):
    (tmp_path / "one").write_text("a\n")
    (tmp_path / "two").write_text("a\nb\n")
    (tmp_path / "run.yaml").write_text(
        "output: run\n"
        "data: {source: en, target: de, train: [two, two], test: {test: [two, two]}}\n"
        "stages: [{name: a, steps: 1}, {name: b, steps: 1}]\n"
    )
    name, *arguments = command.split()
    done = subprocess.run(
        [sys.executable, str(ROOT / "studies" / f"{name}.py"), *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert CASES[command] in done.stderr
