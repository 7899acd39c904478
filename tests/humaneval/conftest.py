"""A study to rate."""

import pytest

from cbmi.humaneval.schemes import CRITERIA, Rating
from cbmi.humaneval.study import create_study


@pytest.fixture
def files(tmp_path):
    """A test set of 12 lines with three systems.

    "same" says the same as "one" on every other line.
    """
    texts = {
        "source": [f"source {n}" for n in range(12)],
        "reference": [f"reference {n}" for n in range(12)],
        "one": [f"one says {n}" for n in range(12)],
        "same": [f"{'one' if n % 2 else 'same'} says {n}" for n in range(12)],
        "<b>&|": [f"=cmd() {n}" for n in range(12)],
    }
    paths = {}
    for number, (name, lines) in enumerate(texts.items()):
        paths[name] = tmp_path / f"{number}.txt"
        paths[name].write_text("".join(line + "\n" for line in lines))
    return {name: str(path) for name, path in paths.items()}


@pytest.fixture
def study(files, tmp_path):
    systems = [(name, files[name]) for name in ("one", "same", "<b>&|")]
    return create_study(
        tmp_path / "study", files["source"], files["reference"], systems, 10, 2, seed=3
    )


@pytest.fixture
def rate_all():
    """A function that rates all items of an annotator by `value(translation, criterion)`."""

    def rate(study, annotator, value):
        for item in study.items(annotator):
            ratings = []
            for criterion in CRITERIA:
                given = value(item.translation, criterion)
                ratings.append(Rating(item.number, criterion, given))
            study.rate(annotator, ratings)

    return rate
