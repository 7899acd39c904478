"""A small English-German corpus, generated from a grammar, with the truth about every German word.

The grammar is small enough for a tiny model to learn and still has what makes translation hard:
agreement, verb-second and verb-final order, separable verbs, ambiguous English words and fixed
expressions. One English sentence has exactly one translation.

Because the grammar is known, so is what decides each German word: "source" where the German words
before it leave several choices, "context" where they leave exactly one, "" for everything in
between.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

from cbmi.demo import lexicon
from cbmi.demo.lexicon import CONTEXT, SOURCE, LabelledWord, Phrase, Verb

LENGTHS = range(4, 17)  # of a German sentence, in words
_COMMA = LabelledWord(",")  # a word of its own until the sentence is written out


def _takes_clause(verb: Verb) -> bool:
    return verb.frame[0] in ("@that", "@to")


def _takes_object_only(verb: Verb) -> bool:
    """Whether nothing but an object follows: after it, "zu" must follow in an infinitive clause."""
    has_one_object = len(verb.frame) == 1 and "@acc" in verb.frame[0]
    return has_one_object and not (verb.prefix or verb.decided or verb.only_present)


_CLAUSE_VERBS = [verb for verb in lexicon.VERBS if _takes_clause(verb)]
_PLAIN_VERBS = [verb for verb in lexicon.VERBS if not _takes_clause(verb)]
# Once more, so that they are chosen twice as often.
_PLAIN_VERBS += [verb for verb in _PLAIN_VERBS if verb.prefix or verb.decided]
_OBJECT_VERBS = [verb for verb in _PLAIN_VERBS if _takes_object_only(verb)]


@dataclass(frozen=True)
class DemoPair:
    """An English and a German sentence; if mismatched, target and labels are of another pair."""

    source: str
    target: str
    mismatched: bool
    labels: tuple[str, ...]  # one per German word


@dataclass(frozen=True)
class Clause:
    """One clause before word order; `form` is "present", "past" or an English modal verb."""

    subject: Phrase
    verb: Verb
    slots: tuple[Phrase, ...]
    form: str = "present"
    time: Phrase | None = None
    place: Phrase | None = None
    fronted: bool = False  # the time comes first

    def english(self) -> str:
        """The English words, without capital and full stop."""
        parts = [self.subject.english, self._english_verb(), self.english_complements()]
        if self.time and self.fronted:
            parts.insert(0, self.time.english)
        elif self.time:
            parts.append(self.time.english)
        return " ".join(parts)

    def _english_verb(self) -> str:
        is_third = self.subject.person == 2
        if self.verb.infinitive == "sein":
            return ("am", "are", "is", "are")[self.subject.person]
        if self.form == "past":
            return self.verb.past
        if self.form == "present":
            return lexicon.third_person(self.verb.english) if is_third else self.verb.english
        modal = self.form
        if modal == "want":
            modal = "wants to" if is_third else "want to"
        return f"{modal} {self.verb.english}"

    def english_complements(self) -> str:
        """The frame of the verb with its slots filled, then the place."""
        text = self.verb.english_frame
        for slot in self.slots:
            text = text.replace("@", slot.english, 1)
        return f"{text} {self.place.english}" if self.place else text

    def complements(self, verb_is_last: bool) -> list[LabelledWord]:
        """The same in German; the labels depend on whether the verb has been seen before."""
        slots = iter(self.slots)
        words: list[LabelledWord] = []
        for item in self.verb.frame:
            if item == "@self":
                words.append(LabelledWord(self._reflexive(), CONTEXT, late=""))
            elif item.startswith("@"):
                words += next(slots).words
            else:
                label = "" if item[-1] == "?" else CONTEXT
                late = CONTEXT if item[-1] == "!" else ""
                words.append(LabelledWord(item.rstrip("!?"), label, late))
        if self.place:
            words += self.place.words
        labelled = []
        for word in words:
            label = word.label
            if verb_is_last and word.late is not None:
                label = word.late
            labelled.append(LabelledWord(word.text, label))
        return labelled

    def _reflexive(self) -> str:
        pronoun = self.subject.pronoun
        return lexicon.PRONOUNS[pronoun].reflexive if pronoun else "sich"

    def main(self, inverted: bool = False) -> list[LabelledWord]:
        """Verb-second order; `inverted` if something outside the clause takes the first place."""
        finite, closing = self._split_verb()
        field = self.complements(verb_is_last=self.form != "present") + closing
        time = list(self.time.words) if self.time else []
        subject = list(self.subject.words)
        if not (self.fronted or inverted):
            return [*subject, finite, *time, *field]
        if self.verb.frame[0] == "@self" and not self.subject.pronoun:
            # "Heute freut sich der Mann ...": "sich" comes before the subject.
            subject = [LabelledWord(field[0].text), *subject]
            field = field[1:]
        if self.fronted:
            return [*time, finite, *subject, *field]
        return [finite, *subject, *time, *field]

    def _split_verb(self) -> tuple[LabelledWord, list[LabelledWord]]:
        """The finite verb of a main clause, and what of the verb comes at its end."""
        verb = self.verb
        person = self.subject.person
        label = CONTEXT if verb.decided else SOURCE
        if self.form == "past":
            finite = LabelledWord(lexicon.conjugate(verb.auxiliary, "", person))
            return finite, [LabelledWord(verb.participle, label)]
        if self.form != "present":
            finite = LabelledWord(lexicon.conjugate(lexicon.MODALS[self.form], "", person), SOURCE)
            return finite, [LabelledWord(verb.prefix + verb.infinitive, label)]
        text = lexicon.conjugate(verb.infinitive, verb.third, person)
        finite = LabelledWord(text, "" if verb.infinitive == "sein" else SOURCE)
        closing = [LabelledWord(verb.prefix, _prefix_label(verb))] if verb.prefix else []
        return finite, closing

    def final(self, form_known: bool) -> list[LabelledWord]:
        """Verb-final order; `form_known`: the words before the clause decide its tense."""
        verb = self.verb
        person = self.subject.person
        time = self.time.words if self.time else ()
        field = [*self.subject.words, *time, *self.complements(verb_is_last=True)]
        label = SOURCE
        if verb.decided:
            label = CONTEXT if form_known else ""
        finite = verb.prefix + lexicon.conjugate(verb.infinitive, verb.third, person)
        if self.form == "present":
            return [*field, LabelledWord(finite, label)]
        # "besucht" might already have been the end: it is present tense as well as participle.
        may_have_ended = not form_known and verb.participle == finite
        auxiliary = lexicon.conjugate(verb.auxiliary, "", person)
        auxiliary_label = "" if may_have_ended else CONTEXT
        return [
            *field,
            LabelledWord(verb.participle, label),
            LabelledWord(auxiliary, auxiliary_label),
        ]

    def as_that(self) -> Phrase:
        """The clause as the object of "know" and the like."""
        words = (_COMMA, LabelledWord("dass", CONTEXT), *self.final(form_known=False))
        return Phrase(f"that {self.english()}", words)

    def as_infinitive(self, english: str = "to", opening: tuple[LabelledWord, ...] = ()) -> Phrase:
        """The clause without its subject: ", das Buch zu lesen"."""
        closing = (LabelledWord("zu", CONTEXT), LabelledWord(self.verb.infinitive, SOURCE))
        words = (_COMMA, *opening, *self.complements(verb_is_last=True), *closing)
        return Phrase(f"{english} {self.verb.english} {self.english_complements()}", words)


def _prefix_label(verb: Verb) -> str:
    """The verb decides a prefix, unless it takes several, as in "macht ... auf/zu"."""
    prefixes = {other.prefix for other in lexicon.VERBS if other.infinitive == verb.infinitive}
    return CONTEXT if len(prefixes - {""}) == 1 else SOURCE


class _Speaker:
    """Makes the grammar's choices at random.

    The order of the draws decides the corpus: a change of it changes every sentence.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(f"demo {seed}")

    def chance(self, probability: float) -> bool:
        return self.rng.random() < probability

    def noun_phrase(self, kind: str, case: str) -> Phrase:
        noun = self.rng.choice(lexicon.NOUNS[kind])
        adjective = self.rng.choice(list(lexicon.ADJECTIVES[kind])) if self.chance(0.25) else ""
        plural = bool(noun.plural) and case != "dat" and self.chance(0.2)
        if plural:
            determiners = ["the", "my", *lexicon.NUMBERS]
        else:
            indefinite = ["a"] * 4 if noun.plural else []
            determiners = ["the"] * 8 + indefinite + list(lexicon.POSSESSIVES)
        return lexicon.noun_phrase(noun, case, self.rng.choice(determiners), adjective, plural)

    def place(self, prepositions: Mapping[str, str], case: str) -> Phrase:
        nouns = lexicon.NOUNS["place"] + lexicon.NOUNS["institution"]
        noun = lexicon.noun_phrase(self.rng.choice(nouns), case)
        return lexicon.place_phrase(self.rng.choice(list(prepositions)), noun)

    def person(self, case: str, subject: Phrase | None = None) -> Phrase:
        """Someone other than the subject: never "I call me"."""
        taken = {subject.english, subject.pronoun} if subject else set()
        if taken & {"I", "we"}:
            taken |= {"I", "we"}
        if self.chance(0.3):
            pronouns = [word for word in lexicon.PRONOUNS if word not in taken]
            return lexicon.pronoun_phrase(self.rng.choice(pronouns), case)
        if self.chance(0.25):
            name = self.rng.choice([name for name in lexicon.NAMES if name not in taken])
            return Phrase(name, (LabelledWord(name, SOURCE),))
        return self.noun_phrase("person", case)

    def slot(self, item: str, subject: Phrase) -> Phrase:
        """Something that fits a slot of a verb."""
        if item == "@that":
            return self.clause(self.rng.choice(["present", "past"])).as_that()
        if item == "@to":
            return self.clause("present", _OBJECT_VERBS, subject, bare=True).as_infinitive()
        if item == "@goal":
            return self.place(lexicon.GOAL_PREPOSITIONS, "acc")
        if item == "@place":
            return self.place(lexicon.PLACE_PREPOSITIONS, "dat")
        case, kinds = item[1:].split(":")
        kind = self.rng.choice(kinds.split(","))
        if kind in lexicon.PHRASES:
            return self.rng.choice(lexicon.PHRASES[kind])
        return self.person(case, subject) if kind == "person" else self.noun_phrase(kind, case)

    def clause(
        self,
        form: str,
        verbs: Sequence[Verb] = _PLAIN_VERBS,
        subject: Phrase | None = None,
        fronting: bool = False,
        bare: bool = False,
    ) -> Clause:
        """A clause; with `fronting` its time may come first, a `bare` one has no time or place."""
        verb = self.rng.choice([verb for verb in verbs if verb.allows(form)])
        animal = verb.frame[0] in ("@place", "@goal") and self.chance(0.3)
        if subject is None:
            subject = self.noun_phrase("animal", "nom") if animal else self.person("nom")
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
        fits = not _takes_clause(verb) and verb.frame[0] in items and not slots[0].pronoun
        if fits and self.chance(0.2):
            return replace(clause, time=time)
        return clause

    def sentence(self) -> tuple[str, list[LabelledWord]]:
        """English words, and German words with their labels."""
        plans = {"object clause": 3, "when": 2, "reason": 3, "purpose": 2, "simple": 7}
        plan = self.rng.choices(list(plans), list(plans.values()))[0]
        if plan == "object clause":
            clause = self.clause("present", _CLAUSE_VERBS, fronting=True)
            return clause.english(), clause.main()
        if plan == "when":
            first = self.clause("present")
            second = self.clause("present")
            opening = [LabelledWord("wenn"), *first.final(form_known=True), _COMMA]
            english = f"when {first.english()}, {second.english()}"
            return english, opening + second.main(inverted=True)
        modal = self.rng.choice(list(lexicon.MODALS))
        form = self.rng.choice(["present", "present", "past", modal])
        main = self.clause(form, fronting=True)
        # Nobody is hungry on purpose.
        is_simple = plan == "simple" or (plan == "purpose" and main.verb.only_present)
        if is_simple:
            return main.english(), main.main()
        if plan == "reason":
            # In the tense of the main clause.
            second = self.clause("past" if form == "past" else "present")
            english, german = self.rng.choice(list(lexicon.CONJUNCTIONS.items()))
            words = [_COMMA, LabelledWord(german, SOURCE), *second.final(form_known=True)]
            return f"{main.english()} {english} {second.english()}", main.main() + words
        purpose = self.clause("present", _OBJECT_VERBS, main.subject, bare=True)
        phrase = purpose.as_infinitive("in order to", (LabelledWord("um", SOURCE),))
        return f"{main.english()} {phrase.english}", [*main.main(), *phrase.words]

    def pairs(self, count: int) -> list[DemoPair]:
        """Pairs with distinct sources and distinct targets; the grammar rarely repeats itself."""
        found: dict[str, DemoPair] = {}
        targets: set[str] = set()
        while len(found) < count:
            english, words = self.sentence()
            pair = write_out(english, words)
            is_new = pair.source not in found and pair.target not in targets
            if is_new and len(pair.labels) in LENGTHS:
                found[pair.source] = pair
                targets.add(pair.target)
        return list(found.values())

    def exchange_targets(self, pairs: Sequence[DemoPair], share: float) -> list[DemoPair]:
        """Pass the targets of a `share` of the pairs around; a single pair borrows another's."""
        mismatched = list(pairs)
        count = round(len(pairs) * share)
        if count == 0:
            return mismatched
        chosen = self.rng.sample(range(len(pairs)), max(count, 2))
        for position in range(count):
            own = chosen[position]
            donor = pairs[chosen[(position + 1) % len(chosen)]]
            mismatched[own] = DemoPair(pairs[own].source, donor.target, True, donor.labels)
        return mismatched


def write_out(english: str, words: Sequence[LabelledWord]) -> DemoPair:
    """Capital letters and punctuation; a comma belongs to the word before it."""
    german = " ".join(word.text for word in words).replace(" ,", ",")
    labels = tuple(word.label for word in words if word != _COMMA)
    return DemoPair(_as_sentence(english), _as_sentence(german), False, labels)


def _as_sentence(text: str) -> str:
    return text[0].upper() + text[1:] + "."


def generate(pairs: int, seed: int, mismatched: float = 0.05) -> list[DemoPair]:
    """Pairs with distinct sources, `round(pairs * mismatched)` of them mismatched."""
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
    """Write the three parts as text, and the truth about every training pair.

    The truth is in train.truth.jsonl: whether the pair is mismatched, and the labels of its words.
    """
    speaker = _Speaker(seed)
    pairs = speaker.pairs(train + valid + test)
    training = speaker.exchange_targets(pairs[:train], mismatched)
    parts = {
        "train": training,
        "valid": pairs[train : train + valid],
        "test": pairs[train + valid :],
    }
    directory.mkdir(parents=True, exist_ok=True)
    for name, part in parts.items():
        _write_lines(directory / f"{name}.en", [pair.source for pair in part])
        _write_lines(directory / f"{name}.de", [pair.target for pair in part])
    truth = []
    for pair in training:
        truth.append(json.dumps({"mismatched": pair.mismatched, "labels": pair.labels}))
    _write_lines(directory / "train.truth.jsonl", truth)


def _write_lines(path: Path, lines: Iterable[str]) -> None:
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8", newline="\n")
