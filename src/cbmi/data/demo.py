"""A small English-German demo corpus, generated from a grammar, with the truth about every German word.

The grammar is small enough for a tiny model to learn and still has what makes translation hard: agreement,
verb-second and verb-final order, separable verbs, ambiguous English words and fixed expressions. One English
sentence has exactly one translation.

Because the grammar is known, so is what decides each German word: "source" where the German words before it
leave several choices, "context" where they leave exactly one, "" for everything in between.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import NamedTuple

from cbmi.data import demo_lexicon as lexicon
from cbmi.data.demo_lexicon import Noun, Verb

SOURCE, CONTEXT = "source", "context"
_CLAUSE_VERBS = tuple(verb for verb in lexicon.VERBS if verb.frame[0] in ("@that", "@to"))
_PLAIN_VERBS = tuple(verb for verb in lexicon.VERBS if verb not in _CLAUSE_VERBS)
_OBJECT_VERBS = tuple(  # those with nothing but an object: after it, "zu" must follow in an infinitive clause
    verb
    for verb in _PLAIN_VERBS
    if verb.frame[0].startswith("@acc") and len(verb.frame) == 1 and not (verb.prefix or verb.decided)
)


class Word(NamedTuple):
    """A German word and its label; `late` is the label where the clause's verb only comes at the end."""

    text: str
    label: str = ""
    late: str | None = None


_COMMA = Word(",")  # a word of its own until the sentence is written out


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence in both languages; `person` (0 ich, 1 du, 2 er, 3 wir) matters for subjects."""

    english: str
    words: tuple[Word, ...]
    person: int = 2
    pronoun: str = ""


@dataclass(frozen=True)
class Clause:
    """One clause before word order; `form` is "present", "past" or an English modal verb."""

    subject: Phrase
    verb: Verb
    slots: tuple[Phrase, ...]
    form: str = "present"
    time: Phrase | None = None
    place: Phrase | None = None
    fronted: bool = False


@dataclass(frozen=True)
class DemoPair:
    """An English and a German sentence; a mismatched pair has the target, and the labels, of another pair."""

    source: str
    target: str
    mismatched: bool
    labels: tuple[str, ...]


def noun_phrase(noun: Noun, case: str, determiner: str = "the", adjective: str = "", plural=False) -> Phrase:
    """Determiner, adjective and noun in agreement; `determiner` and `adjective` are given in English."""
    column = 3 if plural else "mfn".index(noun.gender)
    if determiner == "the":
        first, ending = Word(lexicon.DEFINITE[case].split()[column]), lexicon.WEAK[case].split()[column]
    elif determiner in lexicon.NUMBERS:
        first, ending = Word(lexicon.NUMBERS[determiner], SOURCE), "e"
    else:
        article = lexicon.POSSESSIVES[determiner] + lexicon.INDEFINITE[case].split()[column].strip("-")
        first, ending = Word(article), lexicon.MIXED[case].split()[column]
    middle = (Word(lexicon.ADJECTIVES[noun.kind][adjective] + ending, SOURCE),) if adjective else ()
    last = noun.plural if plural else noun.german if case == "nom" else noun.oblique
    english = f"{adjective} {noun.english_plural if plural else noun.english}".strip()
    determiner = "an" if determiner == "a" and english[0] in "aeiou" else determiner
    return Phrase(f"{determiner} {english}", (first, *middle, Word(last, SOURCE)), person=3 if plural else 2)


def pronoun_phrase(english: str, case: str) -> Phrase:
    """A personal pronoun, named by its English subject form."""
    forms = lexicon.PRONOUNS[english]
    text = english if case == "nom" else forms["object"]
    return Phrase(text, (Word(forms[case]),), forms["person"], pronoun=english)


def name_phrase(name: str) -> Phrase:
    """A first name, the same in every case."""
    return Phrase(name, (Word(name, SOURCE),))


def set_phrase(kind: str, english: str) -> Phrase:
    """A phrase of the lexicon that does not change, such as an adverb or "the bank of the river"."""
    marks = {"+": SOURCE, "!": CONTEXT}
    texts = lexicon.PHRASES[kind][english].split()
    return Phrase(english, tuple(Word(text.rstrip("+!"), marks.get(text[-1], "")) for text in texts))


def place_phrase(preposition: str, noun: Phrase) -> Phrase:
    """Preposition and noun, contracted where German does: "im Garten", "ins Haus"."""
    german = (lexicon.PLACE_PREPOSITIONS | lexicon.GOAL_PREPOSITIONS)[preposition]
    contracted = {("in", "dem"): "im", ("in", "das"): "ins"}.get((german, noun.words[0].text))
    head = (Word(contracted, SOURCE),) if contracted else (Word(german, SOURCE), noun.words[0])
    return Phrase(f"{preposition} {noun.english}", head + noun.words[1:])


def paired_phrase(english: tuple[str, str], first: Phrase, second: Phrase) -> Phrase:
    """Two phrases with two words of which the first calls for the second: "weder ... noch"."""
    opening, linking = lexicon.PAIRS[english]
    words = (Word(opening), *first.words, Word(linking, CONTEXT), *second.words)
    return Phrase(f"{english[0]} {first.english} {english[1]} {second.english}", words)


def english_clause(clause: Clause) -> str:
    """The English words, without capital and full stop."""
    verb, third = clause.verb, clause.subject.person == 2
    if verb.infinitive == "sein":
        finite = ("am", "are", "is", "are")[clause.subject.person]
    elif clause.form == "present":
        finite = lexicon.third_person(verb.english) if third else verb.english
    elif clause.form == "past":
        finite = verb.past
    else:
        modal = {"want": "wants to" if third else "want to"}.get(clause.form, clause.form)
        finite = f"{modal} {verb.english}"
    parts = [clause.subject.english, finite, _english_complements(clause)]
    if clause.time:
        parts.insert(0 if clause.fronted else len(parts), clause.time.english)
    return " ".join(parts)


def _english_complements(clause: Clause) -> str:
    text = clause.verb.english_frame
    for slot in clause.slots:
        text = text.replace("@", slot.english, 1)
    return f"{text} {clause.place.english}" if clause.place else text


def _complements(clause: Clause, verb_is_last: bool) -> list[Word]:
    """The filled slots and the fixed words of the verb in their order, then the place."""
    slots, words = iter(clause.slots), []
    for item in clause.verb.frame:
        if item == "@self":
            text = lexicon.PRONOUNS[clause.subject.pronoun or "he"]["self"]
            words.append(Word(text if clause.subject.pronoun else "sich", CONTEXT, late=""))
        elif item.startswith("@"):
            words += next(slots).words
        else:
            early, late = "" if item[-1] == "?" else CONTEXT, CONTEXT if item[-1] == "!" else ""
            words.append(Word(item.rstrip("!?"), early, late))
    words += clause.place.words if clause.place else ()
    late = [word if word.late is None else Word(word.text, word.late) for word in words]
    return late if verb_is_last else words


def main_clause(clause: Clause, inverted: bool = False) -> list[Word]:
    """Verb-second order; `inverted` when something outside the clause already takes the first place."""
    verb, person = clause.verb, clause.subject.person
    label = CONTEXT if verb.decided else SOURCE
    if clause.form == "present":
        text = lexicon.conjugate(verb.infinitive, verb.third, person)
        finite = Word(text, "" if verb.infinitive == "sein" else SOURCE)
        closing = [Word(verb.prefix, _prefix_label(verb))] if verb.prefix else []
    elif clause.form == "past":
        finite = Word(lexicon.conjugate(verb.auxiliary, "", person))
        closing = [Word(verb.participle, label)]
    else:
        finite = Word(lexicon.conjugate(lexicon.MODALS[clause.form], "", person), SOURCE)
        closing = [Word(verb.prefix + verb.infinitive, label)]
    field = _complements(clause, verb_is_last=clause.form != "present") + closing
    time, subject = list(clause.time.words if clause.time else ()), list(clause.subject.words)
    if not (clause.fronted or inverted):
        return [*subject, finite, *time, *field]
    if verb.frame[0] == "@self" and not clause.subject.pronoun:  # "Heute freut sich der Mann ..."
        subject, field = [Word(field[0].text), *subject], field[1:]
    return [*time, finite, *subject, *field] if clause.fronted else [finite, *subject, *time, *field]


def _prefix_label(verb: Verb) -> str:
    """A prefix is decided by the verb unless the same verb takes several, as in "macht ... auf/zu"."""
    prefixes = {other.prefix for other in lexicon.VERBS if other.infinitive == verb.infinitive}
    return CONTEXT if len(prefixes - {""}) == 1 else SOURCE


def final_clause(clause: Clause, form_known: bool) -> list[Word]:
    """Verb-final order; `form_known` says that the words before the clause already decide its tense."""
    verb, person = clause.verb, clause.subject.person
    time = clause.time.words if clause.time else ()
    field = [*clause.subject.words, *time, *_complements(clause, verb_is_last=True)]
    label = (CONTEXT if form_known else "") if verb.decided else SOURCE
    finite = verb.prefix + lexicon.conjugate(verb.infinitive, verb.third, person)
    if clause.form == "present":
        return [*field, Word(finite, label)]
    auxiliary = Word(lexicon.conjugate(verb.auxiliary, "", person), CONTEXT)
    if not form_known and verb.participle == finite:  # "besucht" might already have ended the clause
        auxiliary = auxiliary._replace(label="")
    return [*field, Word(verb.participle, label), auxiliary]


def that_phrase(clause: Clause) -> Phrase:
    """A clause as the object of "know" and the like."""
    words = (_COMMA, Word("dass", CONTEXT), *final_clause(clause, form_known=False))
    return Phrase(f"that {english_clause(clause)}", words)


def to_phrase(clause: Clause, english: str = "to", opening: tuple[Word, ...] = ()) -> Phrase:
    """An infinitive clause, "das Buch zu lesen"; the subject only serves to keep pronouns apart."""
    closing = (Word("zu", CONTEXT), Word(clause.verb.infinitive, SOURCE))
    words = (_COMMA, *opening, *_complements(clause, verb_is_last=True), *closing)
    return Phrase(f"{english} {clause.verb.english} {_english_complements(clause)}", words)


def _some_noun_phrase(rng: Random, kind: str, case: str) -> Phrase:
    noun = rng.choice(lexicon.NOUNS[kind])
    adjective = rng.choice(list(lexicon.ADJECTIVES[kind])) if rng.random() < 0.3 else ""
    if noun.plural and case != "dat" and rng.random() < 0.2:
        return noun_phrase(noun, case, rng.choice(["the", "my", *lexicon.NUMBERS]), adjective, plural=True)
    articles = ["the"] * 8 + ["a"] * (4 if noun.plural else 0)
    return noun_phrase(noun, case, rng.choice([*articles, *list(lexicon.POSSESSIVES)[1:]]), adjective)


def _some_pair(rng: Random, nouns: Sequence[Noun], case: str, pairs: Sequence[tuple[str, str]]) -> Phrase:
    first, second = (noun_phrase(noun, case) for noun in rng.sample(nouns, 2))
    return paired_phrase(rng.choice(pairs), first, second)


def _some_place(rng: Random, goal: bool = False) -> Phrase:
    nouns = lexicon.NOUNS["place"] + lexicon.NOUNS["institution"]
    if not goal and rng.random() < 0.2:
        return _some_pair(rng, nouns, "dat", [("between", "and")])
    table = lexicon.GOAL_PREPOSITIONS if goal else lexicon.PLACE_PREPOSITIONS
    return place_phrase(rng.choice(list(table)), noun_phrase(rng.choice(nouns), "acc" if goal else "dat"))


def _some_slot(rng: Random, item: str, subject: Phrase, first: bool) -> Phrase:
    """Something that fits a slot of a verb; never the subject itself ("I call me")."""
    if item in ("@place", "@goal"):
        return _some_place(rng, goal=item == "@goal")
    if item == "@that":
        return that_phrase(_some_clause(rng, rng.choice(["present", "past"])))
    if item == "@to":
        return to_phrase(_some_clause(rng, "present", _OBJECT_VERBS, subject, bare=True))
    case, kinds = item[1:].split(":")
    kind, chance = rng.choice(kinds.split(",")), rng.random()
    if kind in lexicon.PHRASES:
        return set_phrase(kind, rng.choice(list(lexicon.PHRASES[kind])))
    if kind == "person" and chance < 0.2:
        taken = ("I", "we") if subject.pronoun in ("I", "we") else (subject.pronoun,)
        return pronoun_phrase(rng.choice([word for word in lexicon.PRONOUNS if word not in taken]), case)
    if kind == "person" and chance < 0.35:
        return name_phrase(rng.choice([name for name in lexicon.NAMES if name != subject.english]))
    if first and case == "acc" and chance > 0.93:
        return _some_pair(rng, lexicon.NOUNS[kind], case, [("neither", "nor"), ("either", "or")])
    return _some_noun_phrase(rng, kind, case)


def _some_subject(rng: Random, kinds: Sequence[str]) -> Phrase:
    chance = rng.random()
    if chance < 0.3:
        return pronoun_phrase(rng.choice(list(lexicon.PRONOUNS)), "nom")
    return (
        name_phrase(rng.choice(lexicon.NAMES))
        if chance < 0.5
        else _some_noun_phrase(rng, rng.choice(kinds), "nom")
    )


def _some_clause(
    rng: Random,
    form: str,
    verbs: Sequence[Verb] = _PLAIN_VERBS,
    subject: Phrase | None = None,
    fronting: bool = False,
    bare: bool = False,
) -> Clause:
    """A random clause; with `fronting` its time may come first, a `bare` one has neither time nor place."""
    verb = rng.choice([verb for verb in verbs if verb.allows(form)])
    kinds = ("person", "animal") if verb.frame[0] in ("@place", "@goal") else ("person",)
    subject = subject or _some_subject(rng, kinds)
    items = [item for item in verb.frame if item.startswith("@") and item != "@self"]
    slots = tuple(_some_slot(rng, item, subject, item == verb.frame[0]) for item in items)
    clause = Clause(subject, verb, slots, form)
    if bare:
        return clause
    if verb.takes_place and rng.random() < 0.2:
        clause = replace(clause, place=_some_place(rng))
    times = "past" if form == "past" else "present"
    time, chance = set_phrase(times, rng.choice(list(lexicon.PHRASES[times]))), rng.random()
    if fronting and chance < 0.3:
        return replace(clause, time=time, fronted=True)
    # Where the word after the verb is decided by the verb, a time between them would undo that.
    fits = verb not in _CLAUSE_VERBS and items[:1] == [verb.frame[0]] and not slots[0].pronoun
    return replace(clause, time=time) if fits and chance > 0.75 else clause


def _some_sentence(rng: Random) -> tuple[str, list[Word]]:
    chance = rng.random()
    form = rng.choice(["present", "present", "past", rng.choice(list(lexicon.MODALS))])
    if chance < 0.2:
        clause = _some_clause(rng, "present", _CLAUSE_VERBS, fronting=True)
        return english_clause(clause), main_clause(clause)
    if chance < 0.35:  # a clause with "wenn" first, so that the main clause begins with its verb
        first, second = _some_clause(rng, "present"), _some_clause(rng, "present")
        words = [
            Word("wenn"),
            *final_clause(first, form_known=True),
            _COMMA,
            *main_clause(second, inverted=True),
        ]
        return f"when {english_clause(first)}, {english_clause(second)}", words
    main = _some_clause(rng, form, fronting=True)
    english, words = english_clause(main), main_clause(main)
    if chance < 0.55:  # the second clause takes the tense of the first
        second = _some_clause(rng, "past" if form == "past" else "present")
        conjunction, german = rng.choice(list(lexicon.CONJUNCTIONS.items()))
        words = [*words, _COMMA, Word(german, SOURCE), *final_clause(second, form_known=True)]
        return f"{english} {conjunction} {english_clause(second)}", words
    if chance < 0.65:
        purpose = _some_clause(rng, "present", _OBJECT_VERBS, main.subject, bare=True)
        phrase = to_phrase(purpose, "in order to", (Word("um", SOURCE),))
        return f"{english} {phrase.english}", [*words, *phrase.words]
    return english, words


def write_out(english: str, words: Sequence[Word]) -> DemoPair:
    """Capital letters and punctuation; a comma belongs to the word before it."""
    text = " ".join(word.text for word in words).replace(" ,", ",")
    labels = tuple(word.label for word in words if word is not _COMMA)
    return DemoPair(_capitalised(english) + ".", _capitalised(text) + ".", False, labels)


def _capitalised(text: str) -> str:
    return text[0].upper() + text[1:]


def _distinct_pairs(rng: Random, count: int) -> list[DemoPair]:
    """Pairs with distinct sources; the grammar has so many that repeats are rare."""
    pairs: dict[str, DemoPair] = {}
    while len(pairs) < count:
        pair = write_out(*_some_sentence(rng))
        pairs.setdefault(pair.source, pair)
    return list(pairs.values())


def _exchange_targets(rng: Random, pairs: list[DemoPair], share: float) -> list[DemoPair]:
    """Passes the targets of a random `share` of the pairs around among them, so that each one changes."""
    count = round(len(pairs) * share)
    if count == 0:
        return pairs
    if count == 1 or not 0 <= share <= 1:
        raise ValueError(f"cannot exchange targets among {count} of {len(pairs)} pairs: it takes two or more")
    while True:
        chosen = rng.sample(range(len(pairs)), count)
        moves = [(i, pairs[j]) for i, j in zip(chosen, chosen[1:] + chosen[:1], strict=True)]
        if all(pairs[i].target != donor.target for i, donor in moves):
            break
    result = list(pairs)
    for i, donor in moves:
        result[i] = DemoPair(pairs[i].source, donor.target, True, donor.labels)
    return result


def generate(pairs: int, seed: int, mismatched: float = 0.05) -> list[DemoPair]:
    """Generates sentence pairs with distinct sources, `round(pairs * mismatched)` of them mismatched."""
    rng = Random(f"demo {seed}")
    return _exchange_targets(rng, _distinct_pairs(rng, pairs), mismatched)


def write(
    directory: Path,
    seed: int = 1,
    train: int = 12000,
    valid: int = 300,
    test: int = 500,
    mismatched: float = 0.05,
) -> None:
    """Writes the three parts as text, and train.truth.jsonl with what is known about every training pair."""
    rng = Random(f"demo {seed}")
    pairs = _distinct_pairs(rng, train + valid + test)
    parts = {
        "train": _exchange_targets(rng, pairs[:train], mismatched),
        "valid": pairs[train : train + valid],
        "test": pairs[train + valid :],
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        _write_lines(directory / f"{name}.en", (pair.source for pair in part))
        _write_lines(directory / f"{name}.de", (pair.target for pair in part))
    truth = (json.dumps({"mismatched": pair.mismatched, "labels": pair.labels}) for pair in parts["train"])
    _write_lines(directory / "train.truth.jsonl", truth)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
