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

from cbmi.data import demo_lexicon as lexicon
from cbmi.data.demo_lexicon import CONTEXT, SOURCE, Phrase, Verb, Word

LENGTHS = range(4, 17)  # of a German sentence, in words
_COMMA = Word(",")  # a word of its own until the sentence is written out
_CLAUSE_VERBS = [verb for verb in lexicon.VERBS if verb.frame[0] in ("@that", "@to")]
_PLAIN_VERBS = [verb for verb in lexicon.VERBS if verb not in _CLAUSE_VERBS]
_PLAIN_VERBS += [verb for verb in _PLAIN_VERBS if verb.prefix or verb.decided]  # twice as often
_OBJECT_VERBS = [  # those with nothing but an object: after it, "zu" must follow in an infinitive clause
    v
    for v in _PLAIN_VERBS
    if len(v.frame) == 1 and "@acc" in v.frame[0] and not (v.prefix or v.decided or v.only_present)
]


@dataclass(frozen=True)
class DemoPair:
    """An English and a German sentence; a mismatched pair has the target, and the labels, of another pair."""

    source: str
    target: str
    mismatched: bool
    labels: tuple[str, ...]


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

    def english(self) -> str:
        """The English words, without capital and full stop."""
        verb, third = self.verb, self.subject.person == 2
        finite = lexicon.third_person(verb.english) if third else verb.english
        if verb.infinitive == "sein":
            finite = ("am", "are", "is", "are")[self.subject.person]
        elif self.form == "past":
            finite = verb.past
        elif self.form != "present":
            modal = {"want": "wants to" if third else "want to"}.get(self.form, self.form)
            finite = f"{modal} {verb.english}"
        parts = [self.subject.english, finite, self.english_complements()]
        if self.time:
            parts.insert(0 if self.fronted else len(parts), self.time.english)
        return " ".join(parts)

    def english_complements(self) -> str:
        """The frame of the verb with its slots filled, then the place."""
        text = self.verb.english_frame
        for slot in self.slots:
            text = text.replace("@", slot.english, 1)
        return f"{text} {self.place.english}" if self.place else text

    def complements(self, verb_is_last: bool) -> list[Word]:
        """The same in German; the labels depend on whether the verb has been seen before."""
        slots, words = iter(self.slots), []
        for item in self.verb.frame:
            if item == "@self":
                text = lexicon.PRONOUNS[self.subject.pronoun]["self"] if self.subject.pronoun else "sich"
                words.append(Word(text, CONTEXT, late=""))
            elif item.startswith("@"):
                words += next(slots).words
            else:
                early, late = "" if item[-1] == "?" else CONTEXT, CONTEXT if item[-1] == "!" else ""
                words.append(Word(item.rstrip("!?"), early, late))
        words += self.place.words if self.place else ()
        return [Word(w.text, w.label if w.late is None or not verb_is_last else w.late) for w in words]

    def main(self, inverted: bool = False) -> list[Word]:
        """Verb-second order; `inverted` when something outside the clause already takes the first place."""
        finite, closing = self._split_verb()
        field = self.complements(verb_is_last=self.form != "present") + closing
        time, subject = list(self.time.words if self.time else ()), list(self.subject.words)
        if not (self.fronted or inverted):
            return [*subject, finite, *time, *field]
        if self.verb.frame[0] == "@self" and not self.subject.pronoun:  # "Heute freut sich der Mann ..."
            subject, field = [Word(field[0].text), *subject], field[1:]
        return [*time, finite, *subject, *field] if self.fronted else [finite, *subject, *time, *field]

    def _split_verb(self) -> tuple[Word, list[Word]]:
        """The finite verb of a main clause, and what of the verb comes at its end."""
        verb, person = self.verb, self.subject.person
        label = CONTEXT if verb.decided else SOURCE
        if self.form == "past":
            finite = Word(lexicon.conjugate(verb.auxiliary, "", person))
            return finite, [Word(verb.participle, label)]
        if self.form != "present":
            finite = Word(lexicon.conjugate(lexicon.MODALS[self.form], "", person), SOURCE)
            return finite, [Word(verb.prefix + verb.infinitive, label)]
        text = lexicon.conjugate(verb.infinitive, verb.third, person)
        finite = Word(text, "" if verb.infinitive == "sein" else SOURCE)
        return finite, [Word(verb.prefix, _prefix_label(verb))] if verb.prefix else []

    def final(self, form_known: bool) -> list[Word]:
        """Verb-final order; `form_known` says that the words before the clause already decide its tense."""
        verb, person = self.verb, self.subject.person
        time = self.time.words if self.time else ()
        field = [*self.subject.words, *time, *self.complements(verb_is_last=True)]
        label = (CONTEXT if form_known else "") if verb.decided else SOURCE
        finite = verb.prefix + lexicon.conjugate(verb.infinitive, verb.third, person)
        if self.form == "present":
            return [*field, Word(finite, label)]
        ended = not form_known and verb.participle == finite  # "besucht" might already have been the end
        auxiliary = Word(lexicon.conjugate(verb.auxiliary, "", person), "" if ended else CONTEXT)
        return [*field, Word(verb.participle, label), auxiliary]

    def as_that(self) -> Phrase:
        """The clause as the object of "know" and the like."""
        words = (_COMMA, Word("dass", CONTEXT), *self.final(form_known=False))
        return Phrase(f"that {self.english()}", words)

    def as_infinitive(self, english: str = "to", opening: tuple[Word, ...] = ()) -> Phrase:
        """The clause without its subject: ", das Buch zu lesen"."""
        closing = (Word("zu", CONTEXT), Word(self.verb.infinitive, SOURCE))
        words = (_COMMA, *opening, *self.complements(verb_is_last=True), *closing)
        return Phrase(f"{english} {self.verb.english} {self.english_complements()}", words)


def _prefix_label(verb: Verb) -> str:
    """A prefix is decided by the verb unless the same verb takes several, as in "macht ... auf/zu"."""
    prefixes = {other.prefix for other in lexicon.VERBS if other.infinitive == verb.infinitive}
    return CONTEXT if len(prefixes - {""}) == 1 else SOURCE


class _Speaker:
    """Makes the grammar's choices at random."""

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"demo {seed}")

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def noun_phrase(self, kind: str, case: str) -> Phrase:
        noun = self.rng.choice(lexicon.NOUNS[kind])
        adjective = self.rng.choice(list(lexicon.ADJECTIVES[kind])) if self.chance(0.25) else ""
        plural = bool(noun.plural) and case != "dat" and self.chance(0.2)
        _, *possessives = lexicon.POSSESSIVES
        articles = ["the"] * 8 + ["a"] * (4 if noun.plural else 0)
        determiners = ["the", "my", *lexicon.NUMBERS] if plural else articles + possessives
        return lexicon.noun_phrase(noun, case, self.rng.choice(determiners), adjective, plural)

    def place(self, prepositions: dict[str, str], case: str) -> Phrase:
        nouns = lexicon.NOUNS["place"] + lexicon.NOUNS["institution"]
        noun = lexicon.noun_phrase(self.rng.choice(nouns), case)
        return lexicon.place_phrase(self.rng.choice(list(prepositions)), noun)

    def person(self, case: str, subject: Phrase | None = None) -> Phrase:
        """Someone else than the subject: never "I call me"."""
        taken = (subject.english, subject.pronoun) if subject else ()
        taken += ("I", "we") if "I" in taken or "we" in taken else ()
        if self.chance(0.3):
            pronouns = [word for word in lexicon.PRONOUNS if word not in taken]
            return lexicon.pronoun_phrase(self.rng.choice(pronouns), case)
        if self.chance(0.25):
            name = self.rng.choice([name for name in lexicon.NAMES if name not in taken])
            return Phrase(name, (Word(name, SOURCE),))
        return self.noun_phrase("person", case)

    def slot(self, item: str, subject: Phrase) -> Phrase:
        """Something that fits a slot of a verb."""
        if item == "@that":
            return self.clause(self.rng.choice(["present", "past"])).as_that()
        if item == "@to":
            return self.clause("present", _OBJECT_VERBS, subject, bare=True).as_infinitive()
        if item in ("@place", "@goal"):
            goal = item == "@goal"
            table = lexicon.GOAL_PREPOSITIONS if goal else lexicon.PLACE_PREPOSITIONS
            return self.place(table, "acc" if goal else "dat")
        case, kinds = item[1:].split(":")
        kind = self.rng.choice(kinds.split(","))
        if kind in lexicon.PHRASES:
            return self.rng.choice(lexicon.PHRASES[kind])
        return self.person(case, subject) if kind == "person" else self.noun_phrase(kind, case)

    def clause(self, form: str, verbs=_PLAIN_VERBS, subject=None, fronting=False, bare=False) -> Clause:
        """A clause; with `fronting` its time may come first, a `bare` one has neither time nor place."""
        verb = self.rng.choice([verb for verb in verbs if verb.allows(form)])
        animal = verb.frame[0] in ("@place", "@goal") and self.chance(0.3)
        subject = subject or (self.noun_phrase("animal", "nom") if animal else self.person("nom"))
        items = [item for item in verb.frame if item.startswith("@") and item != "@self"]
        slots = tuple(self.slot(item, subject) for item in items)
        clause = Clause(subject, verb, slots, form)
        if bare:
            return clause
        if verb.takes_place and self.chance(0.2):
            clause = replace(clause, place=self.place(lexicon.PLACE_PREPOSITIONS, "dat"))
        time = self.rng.choice(lexicon.PHRASES["past" if form == "past" else "present"])
        if fronting and self.chance(0.25):
            return replace(clause, time=time, fronted=True)
        # Where the verb decides the word after it, a time between the two would undo that.
        fits = verb not in _CLAUSE_VERBS and verb.frame[0] in items and not slots[0].pronoun
        return replace(clause, time=time) if fits and self.chance(0.2) else clause

    def sentence(self) -> tuple[str, list[Word]]:
        plan = self.rng.choices(["object clause", "when", "reason", "purpose", "simple"], [3, 2, 3, 2, 7])[0]
        if plan == "object clause":
            clause = self.clause("present", _CLAUSE_VERBS, fronting=True)
            return clause.english(), clause.main()
        if plan == "when":
            first, second = self.clause("present"), self.clause("present")
            words = [Word("wenn"), *first.final(form_known=True), _COMMA, *second.main(inverted=True)]
            return f"when {first.english()}, {second.english()}", words
        form = self.rng.choice(["present", "present", "past", self.rng.choice(list(lexicon.MODALS))])
        main = self.clause(form, fronting=True)
        if plan == "simple" or (plan == "purpose" and main.verb.only_present):  # none is hungry on purpose
            return main.english(), main.main()
        if plan == "reason":  # in the tense of the main clause
            second = self.clause("past" if form == "past" else "present")
            english, german = self.rng.choice(list(lexicon.CONJUNCTIONS.items()))
            words = [_COMMA, Word(german, SOURCE), *second.final(form_known=True)]
            return f"{main.english()} {english} {second.english()}", main.main() + words
        purpose = self.clause("present", _OBJECT_VERBS, main.subject, bare=True)
        phrase = purpose.as_infinitive("in order to", (Word("um", SOURCE),))
        return f"{main.english()} {phrase.english}", [*main.main(), *phrase.words]

    def pairs(self, count: int) -> list[DemoPair]:
        """Pairs with distinct sources and distinct targets; the grammar has so many that repeats are rare."""
        found: dict[str, DemoPair] = {}
        targets: set[str] = set()
        while len(found) < count:
            pair = write_out(*self.sentence())
            if len(pair.labels) in LENGTHS and pair.source not in found and pair.target not in targets:
                found[pair.source] = pair
                targets.add(pair.target)
        return list(found.values())

    def exchange_targets(self, pairs: list[DemoPair], share: float) -> list[DemoPair]:
        """Passes the targets of a `share` of the pairs around; a single pair borrows that of another."""
        count = round(len(pairs) * share)
        chosen = self.rng.sample(range(len(pairs)), max(count, 2)) if count else []
        donors = list(zip(chosen, chosen[1:] + chosen[:1], strict=True))[:count]
        result = list(pairs)
        for i, j in donors:
            result[i] = DemoPair(pairs[i].source, pairs[j].target, True, pairs[j].labels)
        return result


def write_out(english: str, words: Sequence[Word]) -> DemoPair:
    """Capital letters and punctuation; a comma belongs to the word before it."""
    target = " ".join(word.text for word in words).replace(" ,", ",")
    source, target = (text[0].upper() + text[1:] + "." for text in (english, target))
    return DemoPair(source, target, False, tuple(word.label for word in words if word != _COMMA))


def generate(pairs: int, seed: int, mismatched: float = 0.05) -> list[DemoPair]:
    """Generates pairs with distinct sources, `round(pairs * mismatched)` of them mismatched."""
    speaker = _Speaker(seed)
    return speaker.exchange_targets(speaker.pairs(pairs), mismatched)


def write(
    directory: Path,
    seed: int = 1,
    train: int = 12000,
    valid: int = 300,
    test: int = 500,
    mismatched: float = 0.05,
) -> None:
    """Writes the three parts as text, and train.truth.jsonl with what is known about every training pair."""
    speaker = _Speaker(seed)
    pairs = speaker.pairs(train + valid + test)
    training = speaker.exchange_targets(pairs[:train], mismatched)
    parts = {"train": training, "valid": pairs[train : train + valid], "test": pairs[train + valid :]}
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        _write_lines(directory / f"{name}.en", (pair.source for pair in part))
        _write_lines(directory / f"{name}.de", (pair.target for pair in part))
    truth = (json.dumps({"mismatched": pair.mismatched, "labels": pair.labels}) for pair in training)
    _write_lines(directory / "train.truth.jsonl", truth)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
