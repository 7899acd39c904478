"""The words of the demo corpus, their inflected forms and the phrases made of them.

Several English words are ambiguous on purpose (bank, bat, hard, hit, know, letter, light, match,
play, run, spring). Their German translation follows from another word of the English sentence,
never from chance: "a light room" is "hell", "a light bag" is "leicht".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

# What decides a German word.
SOURCE = "source"
CONTEXT = "context"

# kind: "english[/irregular plural] german[/oblique case] gender [german plural]".
# Every kind has at least two nouns of each gender it uses: an article never gives the noun away.
_NOUN_TABLE = {
    "person": "man/men Mann m Männer; doctor Arzt m Ärzte; teacher Lehrer m Lehrer;"
    "uncle Onkel m Onkel; boy Junge/Jungen m Jungen; woman/women Frau f Frauen;"
    "aunt Tante f Tanten; queen Königin f Königinnen; sister Schwester f Schwestern;"
    "child/children Kind n Kinder; girl Mädchen n Mädchen",
    "animal": "dog Hund m Hunde; bird Vogel m Vögel; cat Katze f Katzen;"
    "bat Fledermaus f Fledermäuse; horse Pferd n Pferde; pig Schwein n Schweine",
    "food": "apple Apfel m Äpfel; cake Kuchen m Kuchen; cheese Käse m; pear Birne f Birnen;"
    "soup Suppe f; bread Brot n; egg Ei n Eier",
    "text": "novel Roman m Romane; report Bericht m Berichte; newspaper Zeitung f Zeitungen;"
    "story/stories Geschichte f Geschichten; book Buch n Bücher; play Stück n Stücke",
    "thing": "suitcase Koffer m Koffer; umbrella Regenschirm m Regenschirme; bag Tasche f Taschen;"
    "vase Vase f Vasen; parcel Paket n Pakete; picture Bild n Bilder",
    "furniture": "chair Stuhl m Stühle; table Tisch m Tische; bed Bett n Betten; sofa Sofa n Sofas",
    "opening": "door Tür f Türen; box/boxes Kiste f Kisten; window Fenster n Fenster;"
    "gate Tor n Tore",
    "switch": "lamp Lampe f Lampen; camera Kamera f Kameras; light Licht n Lichter;"
    "radio Radio n Radios",
    "fire": "candle Kerze f Kerzen; pipe Pfeife f; match/matches Streichholz n Streichhölzer;"
    "paper Papier n",
    "place": "garden Garten m; park Park m; kitchen Küche f; city Stadt f; village Dorf n;"
    "house Haus n",
    "institution": "school Schule f; factory Fabrik f; hotel Hotel n; museum Museum n",
    "event": "birthday Geburtstag m; trip Ausflug m; journey Reise f; party Feier f",
    "contest": "prize Preis m; fight Kampf m; match Spiel n; race Rennen n",
    "tool": "bat Schläger m; stick Stock m; hand Hand f; shovel Schaufel f",
}

# kind: "english german-stem". The kind of noun decides between two translations of an adjective.
_COMMON_ADJECTIVES = "old alt; new neu; big groß; small klein; beautiful schön"
_ADJECTIVE_TABLE = {
    "person": "old alt; young jung; clever klug; friendly freundlich; famous berühmt",
    "animal": "old alt; young jung; small klein; big groß; black schwarz",
    "food": "fresh frisch; cold kalt; sweet süß; cheap billig",
    "text": "long lang; short kurz; new neu; famous berühmt; hard schwierig",
    "thing": "light leicht; heavy schwer; new neu; red rot; small klein",
    "furniture": "hard hart; soft weich; new neu; red rot; cheap billig",
    "place": "light hell; quiet ruhig; old alt; beautiful schön; big groß",
    "institution": "light hell; quiet ruhig; old alt; famous berühmt; new neu",
    "event": "long lang; short kurz; beautiful schön; big groß",
}

# "english[/irregular past of the first word] | [prefix+]infinitive third-person participle |
#  english complements | german complements".
# "*" before the participle: the perfect takes "sein". In the complements, "@" is a slot; in German
# it names the case and the kinds of noun. A fixed German word is decided by the verb if the verb
# stands before it. Marks:
#   "word!"      is decided also where the verb only comes at the end of the clause
#   "word?"      is never decided
#   "!"          on its own: the complements alone decide the verb that ends the clause
#   "[place]"    allows a place after the complements
#   "[present]"  allows no other tense and no modal verb
_VERB_TABLE = """
call | an+rufen ruft angerufen | @ | @acc:person
invite | ein+laden lädt eingeladen | @ | @acc:person
open | auf+machen macht aufgemacht | @ | @acc:opening
close | zu+machen macht zugemacht | @ | @acc:opening
switch on | an+machen macht angemacht | @ | @acc:switch
switch off | aus+machen macht ausgemacht | @ | @acc:switch
light/lit | an+zünden zündet angezündet | @ | @acc:fire
clean up | auf+räumen räumt aufgeräumt | @ | @acc:place
pack | ein+packen packt eingepackt | @ | @acc:thing,text,fire
throw away/threw | weg+werfen wirft weggeworfen | @ | @acc:thing,fire
listen to | zu+hören hört zugehört | @ | @dat:person
read/read | vor+lesen liest vorgelesen | @ @ | @dat:person @acc:text
shop/shopped | ein+kaufen kauft eingekauft | @ | @place
visit | besuchen besucht besucht | @ | @acc:person,institution
see/saw | sehen sieht gesehen | @ | @acc:person,animal,place,bank
know/knew | kennen kennt gekannt | @ | @acc:person,institution,place [present]
reach | erreichen erreicht erreicht | @ | @acc:bank,institution,place
find/found | finden findet gefunden | @ | @acc:thing,food,text,animal [place]
buy/bought | kaufen kauft gekauft | @ | @acc:thing,furniture,food,text [place]
read/read | lesen liest gelesen | @ | @acc:text,letter [place]
write/wrote | schreiben schreibt geschrieben | @ | @acc:text,letter [place]
eat/ate | essen isst gegessen | @ | @acc:food [place]
repair | reparieren repariert repariert | @ | @acc:opening,furniture,switch,spring [place]
clean | putzen putzt geputzt | @ | @acc:opening,furniture,spring
feed/fed | füttern füttert gefüttert | @ | @acc:animal [place]
run/ran | leiten leitet geleitet | @ | @acc:institution
win/won | gewinnen gewinnt gewonnen | @ | @acc:contest
lose/lost | verlieren verliert verloren | @ | @acc:contest,thing
help | helfen hilft geholfen | @ | @dat:person
show | zeigen zeigt gezeigt | @ @ | @dat:person @acc:thing,text
give/gave | geben gibt gegeben | @ @ | @dat:person @acc:thing,text
wait | warten wartet gewartet | for @ | auf @acc:person,event !
think/thought | denken denkt gedacht | of @ | an @acc:person,event !
depend | verlassen verlässt verlassen | on @ | @self auf @acc:person !
look forward | freuen freut gefreut | to @ | @self auf @acc:event !
fear | fürchten fürchtet gefürchtet | @ | @self vor @dat:animal !
take care/took | kümmern kümmert gekümmert | of @ | @self um @acc:animal,person !
talk | sprechen spricht gesprochen | to @ in private | mit @dat:person unter! vier! Augen! !
hit/hit | schlagen schlägt geschlagen | the ball with @ | den Ball mit! @dat:tool !
hit/hit | treffen trifft getroffen | the nail on the head | den Nagel auf! den! Kopf! !
wish | drücken drückt gedrückt | @ luck | @dat:person die Daumen !
turn | zu+drücken drückt zugedrückt | a blind eye | ein? Auge !
bite/bit | beißen beißt gebissen | the dust | ins Gras !
draw/drew | ziehen zieht gezogen | the short straw | den Kürzeren !
tease | nehmen nimmt genommen | @ | @acc:person auf den Arm! !
abandon | lassen lässt gelassen | @ | @acc:person im Stich !
sleep/slept | schlafen schläft geschlafen | @ | @place
work | arbeiten arbeitet gearbeitet | @ | @place
go/went | gehen geht *gegangen | @ | @goal
run/ran | rennen rennt *gerannt | @ | @goal
play | spielen spielt gespielt | @ | @acc:game !
be | sein ist *gewesen | @ | @acc:state ! [present]
know | wissen weiß gewusst | @ | @that [present]
believe | glauben glaubt geglaubt | @ | @that [present]
say | sagen sagt gesagt | @ | @that [present]
attempt | versuchen versucht versucht | @ | @to [present]
promise | versprechen verspricht versprochen | @ | @to [present]
"""

# kind: "english = german". "+" follows a word that the source decides, "!" one that the German
# words before it decide.
_PHRASE_TABLE = {
    "bank": "the bank of the river = das Ufer+ des! Flusses+;"
    "the bank of the canal = das Ufer+ des! Kanals+;"
    "the bank in the city = die Bank+ in+ der! Stadt!;"
    "the bank in the village = die Bank+ im+ Dorf!",
    "letter": "the letter to the uncle = den Brief+ an! den Onkel+;"
    "the letter B = den Buchstaben+ B+;"
    "the letter to the doctor = den Brief+ an! den Arzt+; the letter C = den Buchstaben+ C+;"
    "the letter to the aunt = den Brief+ an! die Tante+;"
    "the letter to the woman = den Brief+ an! die Frau+",
    "spring": "the spring of the clock = die Feder+ der! Uhr+;"
    "the roof of the hall = das Dach+ des! Saals+;"
    "the spring of the scales = die Feder+ der! Waage+;"
    "the roof of the museum = das Dach+ des! Museums+",
    "game": "football = Fußball+; chess = Schach+; tennis = Tennis+; the piano = Klavier+",
    "state": "tired = müde+; sick = krank+; sad = traurig+; happy = glücklich+; hungry = hungrig+",
    "present": "today = heute+; often = oft+; every day = jeden Tag+; every evening = jeden Abend+;"
    "on Sunday = am Sonntag+; on Monday = am Montag+; in spring = im Frühling+;"
    "in winter = im Winter+",
    "past": "today = heute+; yesterday = gestern+; last week = letzte Woche+;"
    "last night = letzte Nacht+; on Sunday = am Sonntag+; on Monday = am Montag+;"
    "in spring = im Frühling+; in winter = im Winter+",
}
NAMES = ("Anna", "Lena", "Maria", "Max", "Paul", "Peter")
NUMBERS = {"two": "zwei", "three": "drei", "four": "vier"}

# German endings by case: masculine, feminine, neuter and (not in the dative) plural.
DEFINITE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem"}
INDEFINITE = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em"}  # of "ein", "mein", ...
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en"}  # adjective after "der"
MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en"}  # adjective after "ein"

POSSESSIVES = {"my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser"}
EIN_WORDS = {"a": "ein"} | POSSESSIVES  # all take the endings of "ein"
# Of a place with the dative, of a goal with the accusative.
PLACE_PREPOSITIONS = {"in": "in", "in front of": "vor", "behind": "hinter", "next to": "neben"}
GOAL_PREPOSITIONS = {"into": "in", "through": "durch", "around": "um"}
MODALS = {"can": "können", "must": "müssen", "should": "sollen", "want": "wollen"}
CONJUNCTIONS = {"because": "weil", "although": "obwohl"}

# Forms for ich, du, er, wir.
_IRREGULAR = {
    "sein": "bin bist ist sind",
    "haben": "habe hast hat haben",
    "wissen": "weiß weißt weiß wissen",
    "können": "kann kannst kann können",
    "müssen": "muss musst muss müssen",
    "sollen": "soll sollst soll sollen",
    "wollen": "will willst will wollen",
}


class Pronoun(NamedTuple):
    """A personal pronoun; `person` is 0 ich, 1 du, 2 er, 3 wir."""

    person: int
    cases: Mapping[str, str]  # the German forms
    reflexive: str
    english_object: str


# By their English subject forms.
PRONOUNS = {
    "I": Pronoun(0, {"nom": "ich", "acc": "mich", "dat": "mir"}, "mich", "me"),
    "you": Pronoun(1, {"nom": "du", "acc": "dich", "dat": "dir"}, "dich", "you"),
    "he": Pronoun(2, {"nom": "er", "acc": "ihn", "dat": "ihm"}, "sich", "him"),
    "she": Pronoun(2, {"nom": "sie", "acc": "sie", "dat": "ihr"}, "sich", "her"),
    "we": Pronoun(3, {"nom": "wir", "acc": "uns", "dat": "uns"}, "uns", "us"),
}


class LabelledWord(NamedTuple):
    """A German word and its label; `late` is the label where the verb ends the clause."""

    text: str
    label: str = ""
    late: str | None = None  # None: the same label


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence in both languages; `person` matters if it is a subject."""

    english: str
    words: tuple[LabelledWord, ...]
    person: int = 2  # 0 ich, 1 du, 2 er, 3 wir
    pronoun: str = ""  # its English subject form, if it is one


@dataclass(frozen=True)
class Noun:
    """A noun; `kind` says which verbs and adjectives it goes with."""

    kind: str
    english: str
    english_plural: str
    german: str
    oblique: str  # accusative and dative
    gender: str  # m, f, n
    plural: str  # empty if none is used


@dataclass(frozen=True)
class Verb:
    """A verb with its English and German complements."""

    english: str
    past: str
    prefix: str
    infinitive: str
    third: str
    participle: str
    auxiliary: str
    english_frame: str
    frame: tuple[str, ...]
    decided: bool  # the lone "!" of the table
    takes_place: bool
    only_present: bool

    def allows(self, form: str) -> bool:
        """Whether "present", "past" or a modal verb is possible."""
        if form == "present":
            return True
        # "I read it" would have two translations.
        is_ambiguous = form == "past" and self.past == self.english
        return not (self.only_present or is_ambiguous)


def conjugate(infinitive: str, third: str, person: int) -> str:
    """The German present tense of a verb, without prefix.

    Persons are 0 ich, 1 du, 2 er/sie/es, 3 wir/sie; `third` is the form of person 2.
    """
    if infinitive in _IRREGULAR:
        return _IRREGULAR[infinitive].split()[person]
    if person == 0:
        return infinitive[:-1] + ("e" if infinitive.endswith("ern") else "")
    if person == 1:
        stem = third.removesuffix("t")
        return stem + ("t" if stem[-1] in "sßzx" else "st")
    return third if person == 2 else infinitive


def third_person(english: str) -> str:
    """The English third person singular; only the first word of "look for" changes."""
    first, space, rest = english.partition(" ")
    ending = "es" if first.endswith(("s", "x", "ch", "sh", "o")) else "s"
    return first + ending + space + rest


def _parse_noun(kind: str, row: str) -> Noun:
    english, german, gender, *plural = row.split()
    singular, _, irregular_plural = english.partition("/")
    nominative, _, oblique = german.partition("/")
    return Noun(
        kind=kind,
        english=singular,
        english_plural=irregular_plural or singular + "s",
        german=nominative,
        oblique=oblique or nominative,
        gender=gender,
        plural="".join(plural),
    )


def _parse_adjectives(rows: str) -> dict[str, str]:
    adjectives = {}
    for row in rows.split(";"):
        english, stem = row.split()
        adjectives[english] = stem
    return adjectives


def _parse_verb(row: str) -> Verb:
    english, german, english_frame, frame = (column.strip() for column in row.split("|"))
    english, _, irregular_past = english.partition("/")
    first, space, rest = english.partition(" ")
    regular_past = first + ("d" if first.endswith("e") else "ed")
    infinitive, third, participle = german.split()
    prefix, _, infinitive = infinitive.rpartition("+")
    items = frame.split()
    return Verb(
        english=english,
        past=(irregular_past or regular_past) + space + rest,
        prefix=prefix,
        infinitive=infinitive,
        third=third,
        participle=participle.removeprefix("*"),
        auxiliary="sein" if participle.startswith("*") else "haben",
        english_frame=english_frame,
        frame=tuple(item for item in items if item != "!" and item[0] != "["),
        decided="!" in items,
        takes_place="[place]" in items,
        only_present="[present]" in items,
    )


def _parse_phrase(row: str) -> Phrase:
    english, german = row.strip().split(" = ")
    labels = {"+": SOURCE, "!": CONTEXT}
    words = []
    for marked in german.split():
        words.append(LabelledWord(marked.rstrip("+!"), labels.get(marked[-1], "")))
    return Phrase(english, tuple(words))


NOUNS: dict[str, tuple[Noun, ...]] = {}
ADJECTIVES: dict[str, dict[str, str]] = {}  # kind → English → German stem
for _kind, _rows in _NOUN_TABLE.items():
    NOUNS[_kind] = tuple(_parse_noun(_kind, row) for row in _rows.split(";"))
    ADJECTIVES[_kind] = _parse_adjectives(_ADJECTIVE_TABLE.get(_kind, _COMMON_ADJECTIVES))
PHRASES: dict[str, tuple[Phrase, ...]] = {}
for _kind, _rows in _PHRASE_TABLE.items():
    PHRASES[_kind] = tuple(_parse_phrase(row) for row in _rows.split(";"))
VERBS = tuple(_parse_verb(row) for row in _VERB_TABLE.strip().splitlines())


def noun_phrase(
    noun: Noun, case: str, determiner: str = "the", adjective: str = "", plural: bool = False
) -> Phrase:
    """Determiner, adjective and noun in agreement.

    `determiner` and `adjective` are given in English; an empty adjective is none.
    """
    column = 3 if plural else "mfn".index(noun.gender)
    if determiner == "the":
        words = [LabelledWord(DEFINITE[case].split()[column])]
        ending = WEAK[case].split()[column]
    elif determiner in NUMBERS:
        words = [LabelledWord(NUMBERS[determiner], SOURCE)]
        ending = "e"
    else:
        article_ending = INDEFINITE[case].split()[column].strip("-")
        words = [LabelledWord(EIN_WORDS[determiner] + article_ending)]
        ending = MIXED[case].split()[column]
    if adjective:
        words.append(LabelledWord(ADJECTIVES[noun.kind][adjective] + ending, SOURCE))
    singular = noun.german if case == "nom" else noun.oblique
    words.append(LabelledWord(noun.plural if plural else singular, SOURCE))

    english = noun.english_plural if plural else noun.english
    if adjective:
        english = f"{adjective} {english}"
    if determiner == "a" and english[0] in "aeiou":
        determiner = "an"
    return Phrase(f"{determiner} {english}", tuple(words), person=3 if plural else 2)


def pronoun_phrase(english: str, case: str) -> Phrase:
    """A personal pronoun, named by its English subject form."""
    pronoun = PRONOUNS[english]
    text = english if case == "nom" else pronoun.english_object
    return Phrase(text, (LabelledWord(pronoun.cases[case]),), pronoun.person, pronoun=english)


def place_phrase(preposition: str, noun: Phrase) -> Phrase:
    """Preposition and noun, contracted where German does: "im Garten", "ins Haus"."""
    german = (PLACE_PREPOSITIONS | GOAL_PREPOSITIONS)[preposition]
    article, *rest = noun.words
    contractions = {("in", "dem"): "im", ("in", "das"): "ins"}
    contracted = contractions.get((german, article.text))
    if contracted:
        words = [LabelledWord(contracted, SOURCE), *rest]
    else:
        words = [LabelledWord(german, SOURCE), article, *rest]
    return Phrase(f"{preposition} {noun.english}", tuple(words))
