"""The demo corpus: its German, the truth about every word, and that it stays the same."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import pytest

from cbmi.demo import corpus as demo
from cbmi.demo import lexicon as demo_lexicon
from cbmi.demo.corpus import Clause, DemoPair, generate, write, write_out
from cbmi.demo.lexicon import (
    CONTEXT,
    SOURCE,
    LabelledWord,
    Noun,
    Phrase,
    Verb,
    noun_phrase,
    place_phrase,
    pronoun_phrase,
)

MARKS = {SOURCE: "/S", CONTEXT: "/C", "": ""}


@pytest.fixture(scope="module")
def clean():
    return generate(30_000, seed=11, mismatched=0.0)


# Building one particular sentence ---------------------------------------------------------------


def noun(english: str, kind: str = "person") -> Noun:
    return next(noun for noun in demo_lexicon.NOUNS[kind] if noun.english == english)


def verb(german: str) -> Verb:
    return next(verb for verb in demo_lexicon.VERBS if verb.prefix + verb.infinitive == german)


def fixed(kind: str, english: str) -> Phrase:
    return next(phrase for phrase in demo_lexicon.PHRASES[kind] if phrase.english == english)


def np(english: str, case: str = "nom", kind: str = "person", **options: Any) -> Phrase:
    return noun_phrase(noun(english, kind), case, **options)


def name(text: str) -> Phrase:
    return Phrase(text, (LabelledWord(text, SOURCE),))


def marked(pair: DemoPair) -> str:
    """The target, with "/S" after words that the source decides and "/C" for the context."""
    words = []
    for word, label in zip(pair.target.split(), pair.labels, strict=True):
        words.append(word + MARKS[label])
    return " ".join(words)


MAN = np("man")
WOMAN = np("woman")
ME = pronoun_phrase("I", "nom")
YOU = pronoun_phrase("you", "nom")
HE = pronoun_phrase("he", "nom")
WE = pronoun_phrase("we", "nom")
TODAY = fixed("present", "today")
SUNDAY = fixed("present", "on Sunday")
YESTERDAY = fixed("past", "yesterday")
DOCTOR = np("doctor", "acc")
CALL = Clause(MAN, verb("anrufen"), (DOCTOR,))
READ = Clause(HE, verb("lesen"), (np("book", "acc", "text"),))
HIT_NAIL = Clause(WOMAN, verb("treffen"), ())
PARK = np("park", "acc", "place")

MAIN_CLAUSES = [
    (CALL, "The man calls the doctor.", "Der Mann/S ruft/S den Arzt/S an./C"),
    (
        Clause(MAN, verb("anrufen"), (DOCTOR,), time=TODAY, fronted=True),
        "Today the man calls the doctor.",
        "Heute/S ruft/S der Mann/S den Arzt/S an./C",
    ),
    (
        Clause(YOU, verb("anrufen"), (DOCTOR,), time=TODAY),
        "You call the doctor today.",
        "Du rufst/S heute/S den Arzt/S an./C",
    ),
    (
        Clause(WE, verb("anrufen"), (pronoun_phrase("she", "acc"),), form="want"),
        "We want to call her.",
        "Wir wollen/S sie anrufen./S",
    ),
    (
        Clause(ME, verb("einladen"), (DOCTOR,), form="past", time=YESTERDAY, fronted=True),
        "Yesterday I invited the doctor.",
        "Gestern/S habe ich den Arzt/S eingeladen./S",
    ),
    (
        # This verb takes several prefixes: the German words before do not tell which.
        Clause(HE, verb("ausmachen"), (np("light", "acc", "switch"),)),
        "He switches off the light.",
        "Er macht/S das Licht/S aus./S",
    ),
    (
        Clause(
            WE, verb("vorlesen"), (np("boy", "dat"), np("story", "acc", "text", determiner="a"))
        ),
        "We read the boy a story.",
        "Wir lesen/S dem Jungen/S eine Geschichte/S vor./C",
    ),
    (
        Clause(
            name("Anna"),
            verb("einkaufen"),
            (place_phrase("in", np("village", "dat", "place")),),
            time=SUNDAY,
        ),
        "Anna shops in the village on Sunday.",
        "Anna/S kauft/S am Sonntag/S im/S Dorf/S ein./C",
    ),
    (
        Clause(
            name("Max"),
            verb("gehen"),
            (place_phrase("into", np("house", "acc", "place")),),
            form="past",
        ),
        "Max went into the house.",
        "Max/S ist ins/S Haus/S gegangen./S",
    ),
    (
        HIT_NAIL,
        "The woman hits the nail on the head.",
        "Die Frau/S trifft/S den/C Nagel/C auf/C den/C Kopf./C",
    ),
    (
        Clause(WOMAN, verb("treffen"), (), form="must"),
        "The woman must hit the nail on the head.",
        "Die Frau/S muss/S den Nagel auf/C den/C Kopf/C treffen./C",
    ),
    (
        Clause(ME, verb("drücken"), (pronoun_phrase("you", "dat"),)),
        "I wish you luck.",
        "Ich drücke/S dir die/C Daumen./C",
    ),
    (Clause(YOU, verb("zudrücken"), ()), "You turn a blind eye.", "Du drückst/S ein Auge/C zu./C"),
    (
        Clause(WOMAN, verb("nehmen"), (DOCTOR,), form="past"),
        "The woman teased the doctor.",
        "Die Frau/S hat den Arzt/S auf den Arm/C genommen./C",
    ),
    (
        Clause(MAN, verb("sprechen"), (np("aunt", "dat", determiner="my"),)),
        "The man talks to my aunt in private.",
        "Der Mann/S spricht/S mit/C meiner Tante/S unter/C vier/C Augen./C",
    ),
    (
        Clause(WOMAN, verb("freuen"), (np("trip", "acc", "event"),), time=TODAY, fronted=True),
        "Today the woman looks forward to the trip.",
        "Heute/S freut/S sich die Frau/S auf/C den Ausflug./S",
    ),
    (
        Clause(ME, verb("kümmern"), (np("cat", "acc", "animal", determiner="your"),)),
        "I take care of your cat.",
        "Ich kümmere/S mich/C um/C deine Katze./S",
    ),
    (
        Clause(WE, verb("erreichen"), (fixed("bank", "the bank of the river"),)),
        "We reach the bank of the river.",
        "Wir erreichen/S das Ufer/S des/C Flusses./S",
    ),
    (
        Clause(
            HE, verb("wissen"), (Clause(MAN, verb("besuchen"), (WOMAN,), form="past").as_that(),)
        ),
        "He knows that the man visited the woman.",
        # The clause might end with "besucht".
        "Er weiß,/S dass/C der Mann/S die Frau/S besucht/S hat.",
    ),
    (
        Clause(MAN, verb("wissen"), (CALL.as_that(),), time=TODAY, fronted=True),
        "Today the man knows that the man calls the doctor.",
        "Heute/S weiß/S der Mann,/S dass/C der Mann/S den Arzt/S anruft./S",
    ),
    (
        Clause(MAN, verb("versprechen"), (READ.as_infinitive(),)),
        "The man promises to read the book.",
        "Der Mann/S verspricht,/S das Buch/S zu/C lesen./S",
    ),
]


@pytest.mark.parametrize(
    ("clause", "english", "german"), MAIN_CLAUSES, ids=lambda value: str(value)[:40]
)
def test_main_clause(clause, english, german):
    pair = write_out(clause.english(), clause.main())
    assert (pair.source, marked(pair)) == (english, german)


@pytest.mark.parametrize(
    ("clause", "known", "german"),
    [
        (CALL, True, "Der Mann/S den Arzt/S anruft./S"),
        (Clause(MAN, verb("anrufen"), (DOCTOR,), form="past"), True,
         "Der Mann/S den Arzt/S angerufen/S hat./C"),
        (Clause(HE, verb("gehen"), (place_phrase("through", PARK),), form="past"), True,
         "Er durch/S den Park/S gegangen/S ist./C"),
        (HIT_NAIL, True, "Die Frau/S den Nagel auf/C den/C Kopf/C trifft./C"),
        (HIT_NAIL, False, "Die Frau/S den Nagel auf/C den/C Kopf/C trifft."),
        (Clause(YOU, verb("sein"), (fixed("state", "tired"),)), True, "Du müde/S bist./C"),
        (Clause(ME, verb("verlassen"), (DOCTOR,)), True, "Ich mich auf den Arzt/S verlasse./C"),
        (Clause(WE, verb("zumachen"), (np("door", "acc", "opening"),), time=TODAY), True,
         "Wir heute/S die Tür/S zumachen./S"),
    ],
)  # fmt: skip
def test_subordinate_clause(clause, known, german):
    assert marked(write_out("-", clause.final(form_known=known))) == german


@pytest.mark.parametrize(
    ("phrase", "english", "german"),
    [
        (np("man", "nom", adjective="old"), "the old man", "der alte Mann"),
        (np("man", "acc", adjective="old"), "the old man", "den alten Mann"),
        (np("man", "dat", adjective="old"), "the old man", "dem alten Mann"),
        (np("man", "nom", determiner="a", adjective="old"), "an old man", "ein alter Mann"),
        (np("man", "acc", determiner="a", adjective="young"), "a young man", "einen jungen Mann"),
        (np("man", "dat", determiner="a", adjective="young"), "a young man", "einem jungen Mann"),
        (np("woman", "nom", determiner="a", adjective="clever"), "a clever woman",
         "eine kluge Frau"),
        (np("woman", "dat", adjective="clever"), "the clever woman", "der klugen Frau"),
        (np("child", "nom", determiner="my", adjective="old"), "my old child", "mein altes Kind"),
        (np("child", "dat", determiner="our", adjective="old"), "our old child",
         "unserem alten Kind"),
        (np("book", "acc", "text", adjective="new"), "the new book", "das neue Buch"),
        (np("book", "acc", "text", determiner="her", adjective="hard"), "her hard book",
         "ihr schwieriges Buch"),
        (np("bed", "acc", "furniture", determiner="a", adjective="hard"), "a hard bed",
         "ein hartes Bett"),
        (np("bag", "acc", "thing", determiner="a", adjective="light"), "a light bag",
         "eine leichte Tasche"),
        (np("city", "acc", "place", determiner="our", adjective="light"), "our light city",
         "unsere helle Stadt"),
        (np("boy", "nom"), "the boy", "der Junge"),
        (np("boy", "dat", determiner="your"), "your boy", "deinem Jungen"),
        (np("dog", "nom", "animal", adjective="big", plural=True), "the big dogs",
         "die großen Hunde"),
        (np("dog", "acc", "animal", determiner="two", adjective="big", plural=True),
         "two big dogs", "zwei große Hunde"),
        (np("child", "acc", determiner="my", adjective="old", plural=True), "my old children",
         "meine alten Kinder"),
        (np("bat", "acc", "animal", determiner="a"), "a bat", "eine Fledermaus"),
        (np("bat", "dat", "tool"), "the bat", "dem Schläger"),
        (np("match", "acc", "fire", determiner="a"), "a match", "ein Streichholz"),
        (np("match", "acc", "contest"), "the match", "das Spiel"),
    ],
)  # fmt: skip
def test_agreement(phrase, english, german):
    assert (phrase.english, " ".join(word.text for word in phrase.words)) == (english, german)


def finite_forms(verb: Verb) -> list[str]:
    """The present tense for ich, du, er, wir."""
    return [demo_lexicon.conjugate(verb.infinitive, verb.third, person) for person in range(4)]


@pytest.mark.parametrize(
    ("german", "forms"),
    [
        ("warten", "warte wartest wartet warten"),
        ("lesen", "lese liest liest lesen"),
        ("beißen", "beiße beißt beißt beißen"),
        ("füttern", "füttere fütterst füttert füttern"),
        ("einladen", "lade lädst lädt laden"),
        ("sein", "bin bist ist sind"),
        ("wissen", "weiß weißt weiß wissen"),
    ],
)
def test_conjugation(german, forms):
    assert finite_forms(verb(german)) == forms.split()


HOTEL = np("hotel", "acc", "institution")
MAX = name("Max")


@pytest.mark.parametrize(
    ("clause", "english", "german"),
    [
        (Clause(MAX, verb("kennen"), (DOCTOR,)), "knows the doctor", "kennt den Arzt"),
        (Clause(MAX, verb("wissen"), (CALL.as_that(),)), "knows that the man calls the doctor",
         "weiß, dass der Mann den Arzt anruft"),
        (Clause(MAX, verb("leiten"), (HOTEL,)), "runs the hotel", "leitet das Hotel"),
        (Clause(MAX, verb("rennen"), (place_phrase("into", HOTEL),)), "runs into the hotel",
         "rennt ins Hotel"),
        (Clause(MAX, verb("sehen"), (fixed("bank", "the bank in the city"),)),
         "sees the bank in the city", "sieht die Bank in der Stadt"),
        (Clause(MAX, verb("sehen"), (fixed("bank", "the bank of the canal"),)),
         "sees the bank of the canal", "sieht das Ufer des Kanals"),
        (Clause(MAX, verb("schreiben"), (fixed("letter", "the letter to the aunt"),)),
         "writes the letter to the aunt", "schreibt den Brief an die Tante"),
        (Clause(MAX, verb("schreiben"), (fixed("letter", "the letter B"),)), "writes the letter B",
         "schreibt den Buchstaben B"),
        (Clause(MAX, verb("reparieren"), (fixed("spring", "the spring of the clock"),),
                time=fixed("present", "in spring")),
         "repairs the spring of the clock in spring", "repariert im Frühling die Feder der Uhr"),
        (Clause(MAX, verb("anzünden"), (np("match", "acc", "fire"),)), "lights the match",
         "zündet das Streichholz an"),
        (Clause(MAX, verb("gewinnen"), (np("match", "acc", "contest"),)), "wins the match",
         "gewinnt das Spiel"),
        (Clause(MAX, verb("schlagen"), (np("bat", "dat", "tool"),)), "hits the ball with the bat",
         "schlägt den Ball mit dem Schläger"),
        (Clause(MAX, verb("füttern"), (np("bat", "acc", "animal"),)), "feeds the bat",
         "füttert die Fledermaus"),
        (Clause(MAX, verb("spielen"), (fixed("game", "chess"),)), "plays chess", "spielt Schach"),
    ],
)  # fmt: skip
def test_another_word_of_the_source_decides_an_ambiguous_one(clause, english, german):
    pair = write_out(clause.english(), clause.main())
    assert (pair.source, pair.target) == (f"Max {english}.", f"Max {german}.")


# The truth about every word ---------------------------------------------------------------------


def noun_classes() -> dict[str, str]:
    """Noun form to what the grammar knows: its kind, and the number if the form shows it."""
    singular = {}
    plural = {}
    for noun in chain.from_iterable(demo_lexicon.NOUNS.values()):
        singular[noun.german] = noun.kind
        singular[noun.oblique] = noun.kind
        if noun.plural:
            plural[noun.plural] = f"{noun.kind} (plural)"
    either = {form: f"{kind} (either number)" for form, kind in singular.items() if form in plural}
    return plural | singular | either | dict.fromkeys(demo_lexicon.NAMES, "name")


def determiner_classes() -> dict[str, str]:
    """All of "meinen", "deinen", ... to "einen"; but "ihr" is also a pronoun."""
    classes = {}
    for stem in demo_lexicon.EIN_WORDS.values():
        for ending in ("", "e", "en", "em", "er"):
            classes[stem + ending] = "ein" + ending
    classes["ihr"] = "ihr"
    return classes


def time_classes() -> dict[str, str]:
    phrases = demo_lexicon.PHRASES["present"] + demo_lexicon.PHRASES["past"]
    return {phrase.words[-1].text: "time" for phrase in phrases}


def adjective_forms() -> set[str]:
    forms = set()
    for adjectives in demo_lexicon.ADJECTIVES.values():
        for stem in adjectives.values():
            forms.update(stem + ending for ending in ("e", "en", "er", "es"))
    return forms


def clause_verb_forms() -> set[str]:
    """Of the verbs that take "dass" or an infinitive with "zu"."""
    forms = set()
    for verb in demo_lexicon.VERBS:
        if verb.frame[0] in ("@that", "@to"):
            forms.update(finite_forms(verb))
    return forms


CLASSES = (
    noun_classes()
    | determiner_classes()
    | time_classes()
    | dict.fromkeys(demo_lexicon.NUMBERS.values(), "number")
)
ADJECTIVE_FORMS = adjective_forms()
CLAUSE_VERB_FORMS = clause_verb_forms()
PARTICIPLES = {verb.participle for verb in demo_lexicon.VERBS}
AUXILIARIES = {"bin", "bist", "ist", "sind", "habe", "hast", "hat", "haben"}

Context = tuple[str, ...]


def tokens(pair: DemoPair) -> Iterator[tuple[str, str | None]]:
    """Words with their labels, and punctuation, which has none.

    Words are in lower case if only the start of the sentence raised them.
    """
    for position, (word, label) in enumerate(zip(pair.target.split(), pair.labels, strict=True)):
        bare = word.rstrip(".,")
        is_raised = position == 0 and bare not in demo_lexicon.NAMES
        yield (bare.lower() if is_raised else bare), label
        if bare != word:
            yield word[-1], None


def extended(context: Context, word: str) -> Context:
    """A left context with one more word, reduced to what can matter for the words to come.

    Adjectives, determiners and nouns become classes, and a finished clause becomes its tense: full
    left contexts almost never come twice. Fewer distinctions only make it harder for "context"
    labels to hold.
    """
    if word in ADJECTIVE_FORMS:
        return context
    if word != ",":
        return (*context, CLASSES.get(word, word))
    if context[0] == "wenn":
        return ("wenn ...",)
    if context[-1] in PARTICIPLES and AUXILIARIES.intersection(context):
        return ("perfect ...",)
    return tuple(word for word in context if word in CLAUSE_VERB_FORMS) or ("present ...",)


def after_each_left_context(
    pairs: Iterable[DemoPair],
) -> tuple[dict[Context, Counter[str]], dict[str | None, set[Context]]]:
    """How often each word follows each left context, and the contexts of the words by label."""
    following: dict[Context, Counter[str]] = defaultdict(Counter)
    labelled: dict[str | None, set[Context]] = defaultdict(set)
    for pair in pairs:
        context: Context = ()
        for word, label in tokens(pair):
            following[context][word] += 1
            labelled[label].add(context)
            context = extended(context, word)
    return following, labelled


@pytest.fixture(scope="module")
def contexts(clean):
    return after_each_left_context(clean)


def test_context_words_are_the_only_continuation(contexts):
    following, labelled = contexts
    several = {key: dict(following[key]) for key in labelled[CONTEXT] if len(following[key]) > 1}
    assert several == {}
    occurrences = [sum(following[key].values()) for key in labelled[CONTEXT]]
    repeated = sum(count for count in occurrences if count >= 5)
    # With fewer repeated left contexts the check would mean nothing.
    assert repeated > 0.4 * sum(occurrences)


def test_source_words_are_one_of_several_continuations(contexts):
    following, labelled = contexts
    frequent = [following[key] for key in labelled[SOURCE] if sum(following[key].values()) >= 40]
    assert len(frequent) > 300
    assert min(len(words) for words in frequent) >= 2
    assert max(max(words.values()) / sum(words.values()) for words in frequent) < 0.9


def test_shares_of_the_labels(clean):
    counts = Counter(chain.from_iterable(pair.labels for pair in clean))
    assert counts[CONTEXT] >= 0.12 * counts.total()
    assert counts[SOURCE] >= 0.35 * counts.total()
    assert set(counts) == {CONTEXT, SOURCE, ""}


def test_one_label_per_word(clean):
    assert all(len(pair.labels) == len(pair.target.split()) for pair in clean)


# The corpus as a whole --------------------------------------------------------------------------


def test_one_english_sentence_has_one_translation():
    speaker = demo._Speaker(seed=5)
    translations = defaultdict(set)
    for _ in range(30_000):
        pair = write_out(*speaker.sentence())
        translations[pair.source].add((pair.target, pair.labels))
    assert len(translations) < 30_000  # if no sentence came twice, nothing was compared
    assert [source for source, found in translations.items() if len(found) > 1] == []


def test_lengths_and_vocabulary(clean):
    lengths = [len(pair.labels) for pair in clean]
    assert (min(lengths), max(lengths)) == (4, 16)
    assert 8 <= sum(lengths) / len(lengths) <= 10
    words = chain.from_iterable(pair.target.split() for pair in clean)
    forms = {word.rstrip(".,") for word in words}
    assert 400 <= len(forms) <= 700


def test_sentences_are_written_like_ordinary_text(clean):
    for pair in clean:
        for text in (pair.source, pair.target):
            assert text[0].isupper()
            assert text.endswith(".")
            assert text == " ".join(text.split())
            assert not set(text) & set("@!?+*|")


def test_same_seed_same_pairs_and_another_seed_others():
    assert generate(200, seed=3) == generate(200, seed=3)
    first = {pair.source for pair in generate(50, seed=3)}
    other = {pair.source for pair in generate(50, seed=4)}
    assert not first >= other


def test_the_pairs_of_a_seed_stay_the_same_on_every_platform():
    first = generate(3, seed=1, mismatched=0.0)
    assert [(pair.source, pair.target) for pair in first] == [
        (
            "His big pig runs around the hotel in winter.",
            "Sein großes Schwein rennt im Winter um das Hotel.",
        ),
        (
            "Every evening our young sister shops in front of the kitchen "
            "in order to read our report.",
            "Jeden Abend kauft unsere junge Schwester vor der Küche ein, "
            "um unseren Bericht zu lesen.",
        ),
        ("You can listen to our woman.", "Du kannst unserer Frau zuhören."),
    ]


@pytest.mark.parametrize(
    ("pairs", "share", "expected"), [(1000, 0.05, 50), (1000, 1.0, 1000), (20, 0.05, 1), (7, 0, 0)]
)
def test_share_of_mismatched_pairs(pairs, share, expected):
    right = {pair.source: pair for pair in generate(pairs, seed=2, mismatched=0.0)}
    found = generate(pairs, seed=2, mismatched=share)
    assert [pair.source for pair in found] == list(right)
    assert sum(pair.mismatched for pair in found) == expected
    for pair in found:
        assert (pair.target != right[pair.source].target) == pair.mismatched
        donor = next(other for other in right.values() if other.target == pair.target)
        assert pair.labels == donor.labels
    if expected > 1:
        targets = sorted(pair.target for pair in found)
        assert targets == sorted(pair.target for pair in right.values())


def test_sources_are_distinct(clean):
    assert len({pair.source for pair in clean}) == len(clean)


def read(directory: Path, name: str) -> list[str]:
    return (directory / name).read_text(encoding="utf-8").splitlines()


def test_written_files(tmp_path):
    write(tmp_path / "demo", seed=4, train=400, valid=30, test=50)
    sizes = {path.name: len(read(path.parent, path.name)) for path in (tmp_path / "demo").iterdir()}
    assert sizes == {
        "train.en": 400, "train.de": 400, "train.truth.jsonl": 400,
        "valid.en": 30, "valid.de": 30, "test.en": 50, "test.de": 50,
    }  # fmt: skip
    sources = set()
    for part in ("train", "valid", "test"):
        sources.update(read(tmp_path / "demo", f"{part}.en"))
    assert len(sources) == 480
    truth = [json.loads(line) for line in read(tmp_path / "demo", "train.truth.jsonl")]
    assert sum(line["mismatched"] for line in truth) == 20
    targets = read(tmp_path / "demo", "train.de")
    assert [len(line["labels"]) for line in truth] == [len(target.split()) for target in targets]
    assert set().union(*(line["labels"] for line in truth)) == {SOURCE, CONTEXT, ""}


def test_validation_and_test_are_clean(tmp_path):
    write(tmp_path, seed=4, train=40, valid=30, test=50, mismatched=1.0)
    right = {pair.source: pair.target for pair in generate(120, seed=4, mismatched=0.0)}
    for part in ("valid", "test"):
        sources = read(tmp_path, f"{part}.en")
        targets = read(tmp_path, f"{part}.de")
        assert [right[source] for source in sources] == targets


def test_same_seed_same_bytes(tmp_path):
    def written(directory: Path, seed: int) -> dict[str, bytes]:
        write(directory, seed=seed, train=300, valid=20, test=20)
        return {path.name: path.read_bytes() for path in directory.iterdir()}

    one = written(tmp_path / "one", seed=8)
    two = written(tmp_path / "two", seed=8)
    other = written(tmp_path / "other", seed=9)
    assert one == two
    assert all(one[name] != other[name] for name in one)
    assert not any(b"\r" in content for content in one.values())
