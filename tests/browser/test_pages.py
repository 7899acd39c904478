"""The pages in a real browser, used as people use them."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest
from servers import server
from tasks import cbmi

from cbmi.humaneval.schemes import Span
from cbmi.humaneval.study import create_study
from cbmi.inference.scoring import ScoredPair
from cbmi.inspection.heatmap import HeatmapEntry, write_heatmap

pytestmark = pytest.mark.slow

ATTACK = "<script>alert(1)</script><img src=x onerror=alert(2)>"


def entry(source: str, words: list[str], cbmi: list[float]) -> HeatmapEntry:
    lm = np.full(len(words), -3.0)
    pair = ScoredPair(
        source=source,
        target=" ".join(words),
        tokens=tuple(f"▁{word}" for word in words),
        log_p_nmt=lm + cbmi,
        log_p_lm=lm,
        sentence_cbmi=sum(cbmi) / len(cbmi),
        token_weights=np.ones(len(words)),
        sentence_weight=1.25,
        weights=np.full(len(words), 1.25),
    )
    return HeatmapEntry(pair)


@pytest.fixture
def heatmap(tmp_path, page):
    entries = [
        entry("one", ["the", "cat", "sees", "the", "dog"], [4.0, 2.0, 1.0, 0.1, 2.0]),
        entry("two", ["a", "bird"], [-1.0, -2.0]),
        entry(ATTACK, [ATTACK, "x"], [5.0, 5.0]),
    ]
    write_heatmap(entries, tmp_path / "page.html", "A page", "With words.")
    page.goto((tmp_path / "page.html").as_uri())
    return page


def sources(page) -> list[str]:
    """Of what is shown, painted or not: a browser under load may paint later."""
    return page.locator("article:visible .source").all_text_contents()


def test_the_heat_map_sorts_searches_and_filters(heatmap):
    assert sources(heatmap) == ["one", "two", ATTACK]  # shown, not run
    heatmap.select_option("#sort", "best")
    assert sources(heatmap) == [ATTACK, "one", "two"]
    heatmap.select_option("#sort", "worst")
    assert sources(heatmap) == ["two", "one", ATTACK]
    heatmap.fill("#search", "bird")
    assert sources(heatmap) == ["two"]
    assert heatmap.inner_text("#count") == "1 of 3 sentences"
    heatmap.fill("#search", "CBMI")
    assert sources(heatmap) == []  # labels are not text
    heatmap.fill("#search", "")
    heatmap.check("#repeats")
    assert sources(heatmap) == ["one"]
    assert heatmap.locator(".repeats .r").all_text_contents() == ["the", "the"]


def test_the_heat_map_shows_figures_by_pointer_and_by_keyboard(heatmap):
    heatmap.locator(".w", has_text="cat").hover()
    tip = heatmap.locator("#tip")
    expected = "p NMT 37% p LM 5.0% CBMI 2.00 (×7.4) token weight 1.00 sentence weight 1.25"
    assert " ".join(tip.inner_text().split()) == expected
    heatmap.locator("#repeats").focus()
    for key in ("Tab", "ArrowRight", "ArrowDown"):
        heatmap.keyboard.press(key)
    assert "CBMI" in tip.inner_text()
    assert heatmap.evaluate("document.activeElement.textContent") == "a"
    heatmap.keyboard.press("Escape")
    assert not tip.is_visible()


def test_two_thousand_pairs(tmp_path, page):
    entries = []
    for number in range(2000):
        words = [f"w{number}", *["word"] * 18]
        entries.append(entry(f"source {number}", words, [number % 7 - 3.0, *[0.5] * 18]))
    write_heatmap(entries, tmp_path / "page.html", "Many")
    page.goto((tmp_path / "page.html").as_uri())
    page.select_option("#sort", "best")
    page.fill("#search", "w1999")
    assert sources(page) == ["source 1999"]
    page.fill("#search", "")
    page.locator(".w").first.focus()
    begun = time.monotonic()
    for key in ("ArrowDown", "ArrowDown", "ArrowUp"):
        page.keyboard.press(key)
    assert page.evaluate("document.activeElement.textContent") == "w13"  # the second of the best
    assert time.monotonic() - begun < 3  # not a matter of milliseconds, but of freezing
    page.emulate_media(color_scheme="dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(20, 23, 27)"


def test_two_models_and_the_filters_page(small_run, tmp_path, page):
    files = ("--source", small_run / "valid.src", "--target", small_run / "valid.tgt")
    both = ("--compare", small_run / "run", "-o", tmp_path / "two.html")
    assert cbmi("inspect", small_run / "run", *files, *both).returncode == 0
    page.goto((tmp_path / "two.html").as_uri())
    first = page.locator("article").first
    boxes = [target.bounding_box() for target in first.locator(".target").all()]
    assert boxes[0]["y"] == boxes[1]["y"]  # side by side
    assert boxes[0]["x"] < boxes[1]["x"]
    keeping = ("--keep", "0.5", "-o", tmp_path / "kept")
    assert cbmi("filter", small_run / "run", *files, *keeping).returncode == 0
    page.goto((tmp_path / "kept.html").as_uri())
    assert page.locator("article.dropped").count() > 0
    page.locator(".w").first.hover()
    assert "CBMI" in page.inner_text("#tip")


@pytest.mark.timeout(120)
def test_the_inspector_translates_and_scores_an_edit(small_run, page):
    with server("serve", small_run / "run", "--no-open", "--device", "cpu") as (_, addresses):
        page.goto(addresses[0])
        assert page.title() == "Translate xx → yy · cbmi"
        assert not page.locator("#shown").is_visible()
        example = page.locator("#examples button").first
        text = example.inner_text()
        example.click()
        page.wait_for_selector("article")
        assert page.locator("article .source").all_inner_texts() == [text]
        assert not page.locator("#examples").is_visible()
        page.fill("#source", f"ba de ki\n{ATTACK}")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("article >> nth=1")
        assert page.locator("article .source").all_inner_texts()[1] == ATTACK
        card = page.locator("article").first
        shown = card.locator(".text").inner_text()
        others = card.locator("ol button span:first-child").all_inner_texts()
        assert shown not in others  # a translation is shown once
        before = card.locator(".facts").inner_text()
        # Editing in place: the words are scored again, and the caret stays where it was.
        words = card.locator(".text")
        words.click()
        page.keyboard.press("Control+A")
        page.keyboard.type("mi mi " + ATTACK)
        page.wait_for_selector(".target:not(.old) .w:text-is('mi')")
        assert card.locator(".facts").inner_text() != before
        assert words.inner_text() == "mi mi " + ATTACK
        page.keyboard.type("x")
        page.wait_for_selector(f".target:not(.old) .text:has-text('{ATTACK[-5:]}x')")
        assert words.inner_text() == "mi mi " + ATTACK + "x"
        second = card.locator("ol button").nth(1)
        chosen = second.locator("span").first.inner_text()
        second.click()
        assert words.inner_text() == chosen
        assert chosen not in card.locator("ol button span:first-child").all_inner_texts()
        # What is typed stays where it was typed, while words are coloured meanwhile.
        words.click()
        page.keyboard.press("Home")
        page.keyboard.type("ba ")
        page.wait_for_selector(".target:not(.old) .w:text-is('ba')")
        page.keyboard.type(" fo ")
        page.wait_for_selector(".target:not(.old) .w:text-is('fo')")
        page.keyboard.type("x")
        assert words.inner_text().startswith("ba  fo x")
        card.locator(".w.end").hover()
        tip = page.inner_text("#tip")
        assert "p LM" in tip
        assert "token weight" in tip
        page.fill(
            "#source", "".join(f"ba de ki line {number} {'mi ' * 20}\n" for number in range(70))
        )
        page.keyboard.press("Control+Enter")  # more than a request may have
        page.wait_for_selector("article .source:has-text('line 69')")
        assert page.locator("article").count() == 70
        page.goto(addresses[0] + "/docs")
        assert "POST /translate" in page.inner_text("main")


@pytest.mark.timeout(120)
def test_the_inspector_without_a_language_model(without_language_model, page):
    with server("serve", without_language_model, "--no-open", "--device", "cpu") as (_, addresses):
        page.goto(addresses[0])
        page.fill("#source", "ba de ki")
        page.keyboard.press("Control+Enter")
        page.wait_for_selector("article")
        assert page.locator(".colours").count() == 0
        assert page.locator("article .facts").inner_text().startswith("log p −")
        assert page.locator(".w:not(.z)").count() == 0
        page.locator("article .w.end").hover()
        assert "p LM" not in page.inner_text("#tip")
        assert "no language model" in page.inner_text("footer")


def test_the_tooltip_hides_no_line_of_its_sentence(tmp_path, page):
    words = [f"word{number}" for number in range(60)]
    write_heatmap([entry("one", words, [0.5] * 60)], tmp_path / "page.html", "A page")
    page.goto((tmp_path / "page.html").as_uri())
    page.locator(".w").first.hover()
    tip = page.locator("#tip").bounding_box()
    target = page.locator(".target").bounding_box()
    assert tip["y"] >= target["y"] + target["height"]


def test_odd_values_are_shown_as_words(tmp_path, page):
    odd = entry("one", ["a", "b"], [0.0, 0.0])
    pair = replace(
        odd.pair,
        log_p_nmt=np.array([-1.0, -np.inf]),
        log_p_lm=np.array([-np.inf, -1.0]),
        token_weights=None,
        weights=None,
        sentence_weight=None,
    )
    write_heatmap([HeatmapEntry(pair)], tmp_path / "page.html", "A page")
    page.goto((tmp_path / "page.html").as_uri())
    shown = []
    for word in page.locator(".w").all():
        word.hover()
        shown.append(" ".join(page.inner_text("#tip").split()))
    assert shown == [
        "p NMT 37% p LM below 1 in a billion CBMI ∞ (> ×1,000,000)",
        "p NMT below 1 in a billion p LM 37% CBMI −∞ (> ÷1,000,000)",
    ]


@pytest.mark.timeout(120)
def test_an_annotator_leaves_comes_back_and_finishes(browser, page, tmp_path):
    for name in ("source", "one"):
        (tmp_path / name).write_text("".join(f"{name} {n} {ATTACK}\n" for n in range(8)))
    study = create_study(
        tmp_path / "study",
        str(tmp_path / "source"),
        None,
        [("one", str(tmp_path / "one"))],
        8,
        1,
        1,
    )
    with server("humaneval", "serve", tmp_path / "study") as (_, links):
        page.goto(links[0])
        page.wait_for_selector("#intro:has-text('semantically equal')")
        page.keyboard.press("4")  # rates nothing: the instructions are shown
        page.click("#begin")
        page.wait_for_selector("#translation:has-text('one')")
        assert ATTACK in page.inner_text("#source")
        for _ in range(2):
            page.keyboard.press("Space")  # scrolls, and rates nothing
        for number in range(5):  # three by keyboard, two by mouse
            if number < 3:
                for key in ("4", "5", "Enter"):
                    page.keyboard.press(key)
            else:
                page.click("[data-criterion=adequacy] [data-value='2']")
                page.click("[data-criterion=fluency] [data-value='3']")
                page.click("#next")
        page.wait_for_selector("#saved:text-is('Saved')")
        page.context.close()
        page = browser.new_page()
        page.goto(links[0])
        page.wait_for_selector("#place:has-text('6 of 8')")
        assert page.inner_text("#done") == "5 rated"
        page.keyboard.press("ArrowLeft")
        assert page.locator("[data-criterion=adequacy] [aria-checked=true]").inner_text() == "2"
        page.click("#skip")
        for _ in range(3):
            for key in ("5", "5", "Enter"):
                page.keyboard.press(key)
        page.wait_for_selector("text=Thank you")
        page.wait_for_selector("#saved:text-is('Saved')")
        page.close()
    given = [item.ratings for item in study.items("annotator-1")]
    assert given[:3] == [{"adequacy": 4, "fluency": 5}] * 3
    assert given[3:5] == [{"adequacy": 2, "fluency": 3}] * 2
    assert given[5:] == [{"adequacy": 5, "fluency": 5}] * 3
    assert cbmi("humaneval", "report", tmp_path / "study").returncode == 0
    report = browser.new_page()
    report.goto((tmp_path / "study" / "report" / "report.html").as_uri())
    assert "3.88" in report.locator("tbody tr").first.inner_text()  # (4·3 + 2·2 + 5·3) / 8
    report.close()


@pytest.mark.timeout(120)
def test_ratings_do_not_overtake_each_other_and_nothing_is_done_too_early(page, tmp_path):
    (tmp_path / "source").write_text("one\ntwo\n")
    systems = [("one", str(tmp_path / "source"))]
    study = create_study(tmp_path / "study", str(tmp_path / "source"), None, systems, 2, 1, 1)
    with server("humaneval", "serve", tmp_path / "study") as (_, links):
        held = []

        def hold_the_first(route):
            if held or route.request.post_data_json["value"] != 1:
                route.continue_()
            else:
                held.append(route)

        page.route("**/ratings", hold_the_first)
        page.goto(links[0])
        page.click("#begin")
        page.wait_for_selector("#translation:not(:empty)")
        for value in (1, 5):  # changed while the first is on its way
            page.click(f"[data-criterion=adequacy] [data-value='{value}']")
        page.wait_for_timeout(300)
        assert page.inner_text("#saved") == "Saving …"
        held[0].continue_()
        page.wait_for_selector("#saved:text-is('Saved')")
        assert study.items("annotator-1")[0].ratings == {"adequacy": 5}
        for _ in range(3):
            page.keyboard.press("ArrowRight")
        assert page.inner_text("#over") == "2 are not rated yet."
        page.click("#skip")
        assert page.inner_text("#place") == "1 of 2"
        page.keyboard.press("Space")
        page.keyboard.press("4")  # adequacy has its rating: fluency is next
        page.keyboard.press("Enter")
        page.keyboard.down("3")
        page.keyboard.down("3")  # held: it rates once
        page.keyboard.up("3")
        page.wait_for_selector("#saved:text-is('Saved')")
        assert [item.ratings for item in study.items("annotator-1")] == [
            {"adequacy": 5, "fluency": 4},
            {"adequacy": 3},
        ]
        for key, criterion in (("Shift+Tab", "adequacy"), ("Tab", "fluency")):
            page.keyboard.press(key)
            assert (
                page.evaluate("document.activeElement.closest('fieldset').dataset.criterion")
                == criterion
            )


@pytest.mark.timeout(120)
def test_a_refused_rating_is_not_sent_again_and_a_failed_one_is(page, tmp_path):
    (tmp_path / "source").write_text("one\ntwo\n")
    systems = [("one", str(tmp_path / "source"))]
    study = create_study(tmp_path / "study", str(tmp_path / "source"), None, systems, 2, 1, 1)
    with server("humaneval", "serve", tmp_path / "study") as (_, links):
        statuses = [422, 503]
        sent = []

        def refuse(route):
            sent.append(route.request.post_data_json["criterion"])
            if statuses:
                route.fulfill(status=statuses.pop(0), json={"error": "There is no such item."})
            else:
                route.continue_()

        page.route("**/ratings", refuse)
        page.goto(links[0])
        page.click("#begin")
        page.wait_for_selector("#translation:not(:empty)")
        page.click("[data-criterion=adequacy] [data-value='4']")
        page.wait_for_selector("#saved.error:text-is('Not saved: There is no such item.')")
        assert page.locator("[aria-checked=true]").count() == 0
        page.wait_for_timeout(2500)
        assert sent == ["adequacy"]
        page.click("[data-criterion=fluency] [data-value='5']")
        page.wait_for_selector("#saved.error:text-is('Not saved yet, trying again …')")
        page.wait_for_selector("#saved:text-is('Saved')")
        assert sent == ["adequacy", "fluency", "fluency"]
    assert study.items("annotator-1")[0].ratings == {"fluency": 5}


@pytest.mark.timeout(120)
def test_an_annotator_marks_errors(page, tmp_path):
    """By clicking, by dragging over several words and by keyboard; none is a judgement, too."""
    (tmp_path / "source").write_text("one\ntwo\nthree\n")
    (tmp_path / "system").write_text("eins zwei drei 😀 vier\n" * 3)
    systems = [("one", str(tmp_path / "system"))]
    study = create_study(
        tmp_path / "study", str(tmp_path / "source"), None, systems, 3, ["Anna"], 1, "spans"
    )
    with server("humaneval", "serve", tmp_path / "study") as (_, links):
        page.goto(links[0])
        page.wait_for_selector("#intro:has-text('Hello, Anna')")
        page.click("#begin")
        page.wait_for_selector(".word")
        assert page.inner_text("#next") == "No errors, next"
        first = page.query_selector(".word >> nth=0")
        page.click(".word >> nth=0")
        page.keyboard.press("2")
        boxes = [page.locator(f".word >> nth={number}").bounding_box() for number in (2, 4)]
        page.mouse.move(boxes[0]["x"] + 3, boxes[0]["y"] + 5)
        page.mouse.down()
        page.mouse.move(boxes[1]["x"] + 3, boxes[1]["y"] + 5)
        page.mouse.up()
        page.wait_for_selector("#saved:text-is('Saved')")
        assert first.is_visible()  # a redraw replaces no word that may be under the pointer
        assert page.locator(".word.minor").all_inner_texts() == ["eins"]
        assert page.locator(".word.major").all_inner_texts() == ["drei", "😀", "vier"]
        assert page.inner_text("#count") == "2 errors marked"
        page.click("#next")
        page.locator(".word.missing").focus()
        page.keyboard.press("Space")
        page.keyboard.press("1")
        page.click(".word >> nth=1")
        page.click(".word >> nth=1")  # and no more
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Enter")  # the third has none
        page.wait_for_selector("text=Thank you, everything is done.")
        page.wait_for_selector("#saved:text-is('Saved')")
    marked = [item.spans for item in study.items("Anna")]
    assert marked[0] == (Span(0, 4, "minor"), Span(10, 21, "major"))
    assert marked[1] == (Span(21, 21, "major"),)
    assert marked[2] == ()
