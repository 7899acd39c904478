"""`cbmi inspect`: the page of pairs, of two models, and the figures."""

import re
import shutil
from importlib import resources

import numpy as np
import pytest
from tasks import cbmi, refused, write_run

from cbmi.data.words import repeats, words
from cbmi.inference.scoring import ScoredPair
from cbmi.inspection.inspect import most_telling_pair
from cbmi.inspection.sentence_figure import COLORS, DARK, MUTED


def inspect(run, output, *more):
    files = ("--source", run / "valid.src", "--target", run / "valid.tgt")
    if "--sentence" in more:
        files = ()
    return cbmi("inspect", run / "run", "-o", output, *files, *more)


def test_the_page_of_a_file(small_run, tmp_path):
    result = inspect(small_run, tmp_path / "page.html", "--limit", "12")
    assert result.returncode == 0, result.stderr.decode()
    assert "Showing the first 12 of 20 pairs" in result.stderr.decode()
    page = (tmp_path / "page.html").read_text()
    assert page.count("<article") == 12
    # p_NMT, p_LM, CBMI, token weight
    assert re.search(r'data-v="-[\d.]+\|-[\d.]+\|-?[\d.]+\|[\d.]+"', page)
    assert re.search(r'data-weight="[\d.]+"', page)


def test_without_a_language_model_words_have_no_colour(small_run, without_language_model, tmp_path):
    files = ("--source", small_run / "valid.src", "--target", small_run / "valid.tgt")
    command = ("inspect", without_language_model, *files, "-o", tmp_path / "page.html")
    result = cbmi(*command)
    assert result.returncode == 0, result.stderr.decode()
    assert "has no language model" in result.stderr.decode()
    page = (tmp_path / "page.html").read_text()
    assert "lowest log p first" in page
    assert 'class="colours"' not in page
    assert set(re.findall(r'class="w (\w+)', page)) == {"z"}
    assert re.search(r'data-v="-[\d.]+\|\|\|"', page)
    message = refused(*command, "--figures", tmp_path / "figures")
    assert "--figures: " in message
    assert "the figures are of CBMI" in message


def test_two_models_side_by_side(small_run, tmp_path):
    path = write_run(small_run, "other.yaml", output=str(small_run / "other"), seed=2)
    assert cbmi("train", path).returncode == 0
    result = inspect(small_run, tmp_path / "page.html", "--compare", small_run / "other")
    assert result.returncode == 0, result.stderr.decode()
    page = (tmp_path / "page.html").read_text()
    assert page.count('<p class="model">') == 2 * 20
    assert "largest difference first" in page


@pytest.mark.slow
def test_figures(small_run, tmp_path):
    figures = tmp_path / "figures"
    result = inspect(small_run, tmp_path / "page.html", "--figures", figures, "--pair", "3")
    assert result.returncode == 0, result.stderr.decode()
    names = {"sentence-3", "distribution", "frequency", "course"}
    expected = {f"{name}.svg" for name in names} | {f"{name}.png" for name in names}
    assert {path.name for path in figures.iterdir()} == expected
    first = {path.name: path.read_bytes() for path in figures.iterdir()}
    again = inspect(small_run, tmp_path / "page.html", "--figures", figures, "--pair", "3")
    assert again.returncode == 0
    assert first == {path.name: path.read_bytes() for path in figures.iterdir()}  # the same twice


def test_a_damaged_training_corpus_is_not_said_to_be_gone(small_run, tmp_path):
    (tmp_path / "copy").mkdir()
    run = shutil.copytree(small_run / "run", tmp_path / "copy" / "run")
    arguments = ("inspect", run, "-o", tmp_path / "page.html", "--sentence", "ba", "ba")
    figures = tmp_path / "figures"
    meta = run / "data" / "train" / "meta.json"
    meta.write_text("{")
    assert "meta.json" in refused(*arguments, "--figures", figures)
    shutil.rmtree(run / "data" / "train")
    result = cbmi(*arguments, "--figures", figures)
    assert result.returncode == 0, result.stderr.decode()
    assert "the run's training corpus (RUN/data/train) is gone" in result.stderr.decode()
    assert not (figures / "frequency.svg").exists()


def test_the_figure_has_the_colours_of_the_page():
    style = resources.files("cbmi.reporting").joinpath("base.css.jinja").read_text()
    light = style.partition("@media")[0]
    assert f"--muted: {MUTED};" in light
    for level, color in COLORS.items():
        name = "page" if level == "z" else level
        assert f"--{name}: {color};" in light
        if level in DARK:
            assert f"--{level}-text: #ffffff;" in light


def test_one_sentence_of_the_command_line(small_run, tmp_path):
    hostile = "<script>alert(1)</script> $x_1$"
    result = inspect(
        small_run,
        tmp_path / "one.html",
        "--sentence",
        hostile,
        hostile,
        "--figures",
        tmp_path / "f",
    )
    assert result.returncode == 0, result.stderr.decode()
    page = (tmp_path / "one.html").read_text()
    assert "<script>alert" not in page
    assert page.count("<article") == 1


def test_long_lines_without_spaces_are_drawn_within_the_page(small_run, tmp_path):
    from PIL import Image

    text = "我们喜欢看书" * 60
    result = inspect(
        small_run, tmp_path / "one.html", "--sentence", text, text, "--figures", tmp_path / "f"
    )
    assert result.returncode == 0, result.stderr.decode()
    assert result.stderr.decode().count("have no glyph here") <= 1
    assert "Warning" not in result.stderr.decode()
    assert Image.open(tmp_path / "f" / "sentence-1.png").width < 1400


def test_bad_input_is_refused(small_run, tmp_path):
    page = tmp_path / "page.html"
    either = "either --source FILE --target FILE (or --source FILE.tsv) or --sentence SOURCE TARGET"
    assert either in refused("inspect", small_run / "run", "-o", page)
    assert either in refused(
        "inspect", small_run / "run", "-o", page, "--target", small_run / "valid.tgt"
    )
    alone = refused("inspect", small_run / "run", "-o", page, "--source", small_run / "valid.src")
    assert "name the translations of" in alone
    both = ("--source", small_run / "valid.src", "--target", small_run / "valid.tgt")
    assert either in refused(
        "inspect", small_run / "run", "-o", page, *both, "--sentence", "a", "b"
    )
    assert "this is a folder" in refused("inspect", small_run / "run", "-o", tmp_path, *both)
    figures = ("--figures", tmp_path / "figures")
    assert "--pair: 21 is not between 1 and 20" in refused(
        "inspect", small_run / "run", "-o", page, *both, *figures, "--pair", "21"
    )
    assert "say --figures FOLDER" in refused(
        "inspect", small_run / "run", "-o", page, *both, "--pair", "2"
    )
    (tmp_path / "figures").write_text("mine")
    assert "figures is a file; name a folder" in refused(
        "inspect", small_run / "run", "-o", page, *both, *figures
    )
    broken = b"a\xff".decode(errors="surrogateescape")
    assert "--sentence: this is not valid UTF-8" in refused(
        "inspect", small_run / "run", "-o", page, "--sentence", broken, "b"
    )
    corpus = (tmp_path / "mine.src", tmp_path / "mine.tgt")
    for path in corpus:
        path.write_text("ba\n")
    for command in ("inspect", "score"):
        arguments = (
            command,
            small_run / "run",
            "--source",
            corpus[0],
            "--target",
            corpus[1],
            "-o",
            corpus[1],
        )
        assert "mine.tgt would be overwritten" in refused(*arguments)
    assert "mine.src would be overwritten" in refused(
        "translate", small_run / "run", corpus[0], "-o", corpus[0]
    )
    assert [path.read_text() for path in corpus] == ["ba\n", "ba\n"]
    (tmp_path / "short").write_text("ba\n")
    unequal = ("--source", small_run / "valid.src", "--target", tmp_path / "short", "--limit", "1")
    assert "short has 1" in refused("inspect", small_run / "run", "-o", page, *unequal)
    assert "no such run" in refused("inspect", tmp_path / "none", "-o", page, *both)
    assert not page.exists()


def test_repeated_words():
    joined = words(["▁the", "▁cat", ",", "▁The", "▁dog", ".", "▁the", "</s>"])
    values = [1.0, 2.0, 5.0, 3.0, 4.0, 0.0]
    assert repeats(joined, values[: len(joined)]) == [(4.0, [0, 2, 4])]
    assert repeats(joined[:2], values[:2]) == []
    assert repeats(joined, [float("nan")] * len(joined)) == []


def pair(pieces, cbmi, sentence_cbmi):
    lm = np.full(len(pieces), -3.0)
    return ScoredPair("source", "target", tuple(pieces), lm + cbmi, lm, sentence_cbmi)


@pytest.mark.parametrize("chosen", [0, 1])
def test_the_telling_sentence_has_a_word_twice(chosen):
    plain = pair(["▁a", "▁b"], [9.0, -9.0], 1.0)
    twice = pair(["▁a", "▁b", "▁a"], [1.0, 1.0, 3.0], 1.0)
    wrong = pair(["▁a", "▁b", "▁a"], [-9.0, 1.0, 3.0], -1.0)
    pairs = [plain, wrong]
    pairs.insert(chosen, twice)
    assert most_telling_pair(pairs) == chosen + 1


def test_the_first_sentence_is_shown_if_none_is_telling():
    plain = pair(["▁a", "▁b"], [9.0, -9.0], 1.0)
    assert most_telling_pair([plain, plain]) == 1
