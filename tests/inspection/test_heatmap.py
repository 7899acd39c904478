"""The heat map page: escaped, self-contained, readable."""

import math
import re
import sys
from html.parser import HTMLParser

import pytest

from cbmi.errors import MissingExtra
from cbmi.inference.scoring import ScoredPair
from cbmi.inspection.heatmap import HeatmapEntry, write_heatmap

ATTACK = "<script>alert(1)</script>"


def entry(pieces=("▁Das", "▁Haus", ".", "</s>"), cbmi=None, note=None, **other) -> HeatmapEntry:
    """A pair as `cbmi score` writes it, all values plausible; `other` replaces some of them."""
    lm = [-3.0] * len(pieces)
    cbmi = list(cbmi or [1.5] * len(pieces))
    record = {
        "source": "The house.",
        "target": "Das Haus.",
        "pieces": list(pieces),
        "nmt": [low + value for low, value in zip(lm, cbmi, strict=True)],
        "lm": lm,
        "sentence_cbmi": sum(cbmi) / len(cbmi),
        "weights": [1.0] * len(pieces),
        "sentence_weight": 1.1,
    }
    return HeatmapEntry(ScoredPair.from_json({**record, **other}), note)


class Page(HTMLParser):
    """What a browser would find: words with their attributes, texts by class, names of tags."""

    def __init__(self, text: str):
        super().__init__()
        self.tags = []
        self.words = []
        self.texts = {}
        self.open = None
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.tags.append(tag)
        self.open = attributes.get("class", "")
        if self.open.startswith("w "):
            self.words.append(attributes)

    def handle_data(self, data):
        if self.open:
            self.texts.setdefault(self.open.split()[0], []).append(data)
            self.open = None


@pytest.fixture
def write(tmp_path):
    def written(*entries, title="Trial", introduction=""):
        path = tmp_path / "made" / "page.html"
        write_heatmap(entries, path, title, introduction)
        return path.read_text(encoding="utf-8")

    return written


def test_corpus_text_is_escaped(write):
    pieces = ("▁" + ATTACK, "\"'>" + ATTACK, "</s>")
    hostile = entry(pieces, source=ATTACK, target=ATTACK, note=ATTACK)
    text = write(hostile, title=ATTACK, introduction=ATTACK)
    assert ATTACK not in text
    page = Page(text)
    assert page.tags.count("script") == 1
    assert page.texts["note"] == page.texts["introduction"] == [ATTACK]
    assert page.texts["w"][0] == ATTACK + "\"'>" + ATTACK


def test_pieces_become_words(write):
    page = Page(write(entry(("▁Herr", "▁Kova", "<0xC4>", "<0x8D>", ".", "</s>"))))
    assert page.texts["w"] == ["Herr", "Kovač.", "end"]


def test_words_stay_apart_and_scripts_without_spaces_together(write):
    target = re.compile(r'<p class="target" dir="auto"[^>]*>(.*?)</p>', re.DOTALL)
    page = write(entry(), entry(("▁我们", "喜欢")))
    shown = [re.sub("<.*?>", "", found) for found in target.findall(page)]
    assert shown == ["Das Haus.\u00a0end", "我们喜欢"]


def test_figures_of_a_word_are_those_of_its_pieces(write):
    made = entry(("▁Hoch", "haus"), [2.0, 0.5], weights=[1.0, 2.0])
    first = Page(write(made)).words[0]
    assert first["data-v"] == "-3.5000|-6.0000|2.5000|1.5000"
    assert first["class"] == "w p2"


@pytest.mark.parametrize(
    ("cbmi", "level"),
    [
        (0, "z"),
        (0.6, "z"),
        (-0.6, "z"),
        (0.7, "p1"),
        (-0.7, "n1"),
        (2.4, "p2"),
        (-4.7, "n3"),
        (7, "p4"),
        (-99, "n4"),
    ],
)
def test_colour_follows_the_factor(write, cbmi, level):
    assert Page(write(entry(("▁a",), [cbmi]))).words[0]["class"] == f"w {level}"


def test_odd_numbers_do_not_break_the_page(write):
    odd = entry(
        ("▁a", "▁b", "▁c"),
        nmt=[-1.0, -math.inf, math.nan],
        lm=[-math.inf, -1.0, -40.0],
        sentence_cbmi=math.nan,
    )
    shown = [word["data-v"] for word in Page(write(odd)).words]
    assert shown[0].startswith("-1.0000|-Infinity|Infinity|")
    assert shown[1].startswith("-Infinity|-1.0000|-Infinity|")
    assert shown[2].startswith("|-40.0000||")


def test_nothing_is_loaded_from_elsewhere(write):
    text = write(entry(), entry(note="mismatched"))
    assert "http://" not in text
    assert "https://" not in text
    assert not {"img", "iframe", "object", "embed"} & set(Page(text).tags)
    assert not re.search(r"(?:src|href)=\"(?!data:,)", text)


def test_number_of_sentences_and_words_reached_by_keyboard(write):
    text = write(entry(), entry(), entry(source="Other."))
    assert text.count("<article") == 3
    assert [word["tabindex"] for word in Page(text).words] == ["0", "-1", "-1"] * 3


def test_weights_may_be_absent(write):
    text = write(entry(weights=None, sentence_weight=None))
    assert "<dt>sentence weight</dt>" not in text
    assert Page(text).words[0]["data-v"].endswith("|")


def luminance(colour: str) -> float:
    """Relative luminance by the Web Content Accessibility Guidelines."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [
        value / 12.92 if value <= 0.04045 else ((value + 0.055) / 1.055) ** 2.4
        for value in channels
    ]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)


def test_text_is_readable_on_every_colour_in_light_and_dark(write):
    schemes = write(entry()).split("prefers-color-scheme: dark")
    assert len(schemes) == 2
    levels = ["p1", "p2", "p3", "p4", "n1", "n2", "n3", "n4"]
    for scheme in schemes:
        colours = dict(re.findall(r"--([a-z0-9-]+): (#[0-9a-f]{6})", scheme))
        for level in levels:
            assert contrast(colours[level], colours[f"{level}-text"]) >= 4.5
        assert contrast(colours["page"], colours["muted"]) >= 4.5
        assert contrast(colours["page"], colours["text"]) >= 7


def test_without_the_extra(write, monkeypatch):
    monkeypatch.setitem(sys.modules, "jinja2", None)
    with pytest.raises(MissingExtra) as error:
        write(entry())
    assert error.value.extra == "plot"
