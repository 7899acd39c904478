"""Words found by how often they occur in training, counted on lines that can be counted by hand."""

import subprocess
import sys

from tasks import ROOT, environment


def test_counts(tmp_path):
    texts = {
        "train": "the cat . the dog .\n" * 6,
        "reference": "the cat .\nthe the bird\n",
        "one": "the dog .\nthe bird bird\n",
    }
    for name, text in texts.items():
        (tmp_path / name).write_text(text)
    command = [
        sys.executable,
        str(ROOT / "studies" / "word_recall.py"),
        "--words=The,bird",
        "train",
        "reference",
        "same=reference",
        "one=one,one",
    ]
    result = subprocess.run(
        command, cwd=tmp_path, env=environment(), capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    titles = [cell.strip() for cell in result.stdout.splitlines()[0].strip("|").split("|")]
    assert titles[1:7] == ["0", "1–9", "10–99", "100–999", "1,000–9,999", "10,000+"]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in result.stdout.splitlines()[2:]
    ]
    # "the" and "." occur twelve times in training, "cat" and "dog" six times, "bird" never.
    assert rows[0] == ["words of the references", "1", "1", "4", "0", "0", "0", "6", "4", ""]
    assert rows[1][1:4] == ["100.0 (100.0)"] * 3
    assert rows[2][1:4] == ["100.0 (50.0)", "0.0 (0.0)", "75.0 (100.0)"]
    assert rows[2][-3:] == ["66.7 (66.7)", "75.0 (75.0)", "100.0"]
