"""CBMI and weights of words, on two lines that can be added up by hand."""

import json
import subprocess
import sys

from tasks import ROOT, environment


def test_sums_and_means(tmp_path):
    (tmp_path / "train").write_text("the cat\n" * 6 + "the\n" * 6)
    records = [
        {
            "pieces": ["▁The", "▁c", "at", ".", "</s>"],
            "cbmi": [0.5, 2, 1, 0, 9],
            "token_weights": [0.8, 1.4, 1, 1, 5],
        },
        {"pieces": ["▁the", "▁dog", "</s>"], "cbmi": [-0.5, 4, 9], "token_weights": [0.9, 1.2, 5]},
    ]
    (tmp_path / "scores").write_text("".join(json.dumps(record) + "\n" for record in records))
    command = [sys.executable, str(ROOT / "studies" / "word_weights.py"), "--words", "the"]
    files = [str(tmp_path / "train"), str(tmp_path / "scores")]
    result = subprocess.run([*command, *files], capture_output=True, env=environment(), text=True)
    assert result.returncode == 0, result.stderr
    assert result.stdout.splitlines()[2:] == [
        "| 0 | 2 | 2.25 | 1.000 | 50% |",  # The, dog
        "| 1–9 | 1 | 3.00 | 1.133 | 0% |",  # cat, with its full stop
        "| 10–99 | 1 | -0.50 | 0.900 | 100% |",  # the
        "| all | 4 | 1.75 | 1.008 | 50% |",
        "| the | 2 | 0.00 | 0.850 | 100% |",
    ]
