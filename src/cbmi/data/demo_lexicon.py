"""The words of the demo corpus, their inflected forms and the phrases made of them, as text tables and rules.

Several English words are ambiguous on purpose (bank, bat, hard, hit, know, letter, light, match, play,
run, spring). Their German translation follows from another word of the English sentence, never from chance:
"a light room" is "hell", "a light bag" is "leicht".
"""

from dataclasses import dataclass
from typing import NamedTuple

SOURCE, CONTEXT = "source", "context"  # what decides a German word

# kind: "english[/irregular plural] german[/oblique case] gender [german-plural]".
# Every kind has at least two nouns of each gender it uses, so that an article never gives the noun away.
_NOUN_TABLE = {
    "person": "man/men Mann m Männer; doctor Arzt m Ärzte; teacher Lehrer m Lehrer; uncle Onkel m Onkel;"
    "boy Junge/Jungen m Jungen; woman/women Frau f Frauen; aunt Tante f Tanten; queen Königin f Königinnen;"
    "sister Schwester f Schwestern; child/children Kind n Kinder; girl Mädchen n Mädchen",
    "animal": "dog Hund m Hunde; bird Vogel m Vögel; cat Katze f Katzen; bat Fledermaus f Fledermäuse;"
    "horse Pferd n Pferde; pig Schwein n Schweine",
    "food": "apple Apfel m Äpfel; cake Kuchen m Kuchen; cheese Käse m; pear Birne f Birnen; soup Suppe f;"
    "bread Brot n; egg Ei n Eier",
    "text": "novel Roman m Romane; report Bericht m Berichte; newspaper Zeitung f Zeitungen;"
    "story/stories Geschichte f Geschichten; book Buch n Bücher; play Stück n Stücke",
    "thing": "suitcase Koffer m Koffer; umbrella Regenschirm m Regenschirme; bag Tasche f Taschen;"
    "vase Vase f Vasen; parcel Paket n Pakete; picture Bild n Bilder",
    "furniture": "chair Stuhl m Stühle; table Tisch m Tische; bed Bett n Betten; sofa Sofa n Sofas",
    "opening": "door Tür f Türen; box/boxes Kiste f Kisten; window Fenster n Fenster; gate Tor n Tore",
    "switch": "lamp Lampe f Lampen; camera Kamera f Kameras; light Licht n Lichter; radio Radio n Radios",
    "fire": "candle Kerze f Kerzen; pipe Pfeife f; match/matches Streichholz n Streichhölzer; paper Papier n",
    "place": "garden Garten m; park Park m; kitchen Küche f; city Stadt f; village Dorf n; house Haus n",
    "institution": "school Schule f; factory Fabrik f; hotel Hotel n; museum Museum n",
    "event": "birthday Geburtstag m; trip Ausflug m; journey Reise f; party Feier f",
    "contest": "prize Preis m; fight Kampf m; match Spiel n; race Rennen n",
    "tool": "bat Schläger m; stick Stock m; hand Hand f; shovel Schaufel f",
}

# kind: "english german-stem"; the kind of the noun decides between two translations of one adjective.
_ADJECTIVE_TABLE = dict.fromkeys(_NOUN_TABLE, "old alt; new neu; big groß; small klein; beautiful schön") | {
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

# "english[/irregular past of the first word] | [prefix+]infinitive third-person participle | complements".
# "*" before the participle: the perfect takes "sein". In the complements, "@" is a slot; in German it names
# the case and the kinds of noun. A fixed German word is decided by the verb where the verb stands before it.
# Marks: "word!" is decided also where the verb only comes at the clause end; "word?" is never decided; a "!"
# on its own says that the complements alone already decide the verb that ends the clause; "[place]" allows
# a place after the complements, "[present]" allows no other tense and no modal verb.
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

# kind: "english = german"; "+" after a word the source decides, "!" after one the German before it decides.
_PHRASE_TABLE = {
    "bank": "the bank of the river = das Ufer+ des! Flusses+; the bank of the canal = das Ufer+ des! Kanals+;"
    "the bank in the city = die Bank+ in+ der! Stadt!; the bank in the village = die Bank+ im+ Dorf!",
    "letter": "the letter to the uncle = den Brief+ an! den Onkel+; the letter B = den Buchstaben+ B+;"
    "the letter to the doctor = den Brief+ an! den Arzt+; the letter C = den Buchstaben+ C+;"
    "the letter to the aunt = den Brief+ an! die Tante+; the letter to the woman = den Brief+ an! die Frau+",
    "spring": "the spring of the clock = die Feder+ der! Uhr+; the roof of the hall = das Dach+ des! Saals+;"
    "the spring of the scales = die Feder+ der! Waage+; the roof of the museum = das Dach+ des! Museums+",
    "game": "football = Fußball+; chess = Schach+; tennis = Tennis+; the piano = Klavier+",
    "state": "tired = müde+; sick = krank+; sad = traurig+; happy = glücklich+; hungry = hungrig+",
    "present": "today = heute+; often = oft+; every day = jeden Tag+; every evening = jeden Abend+;"
    "on Sunday = am Sonntag+; on Monday = am Montag+; in spring = im Frühling+; in winter = im Winter+",
    "past": "today = heute+; yesterday = gestern+; last week = letzte Woche+; last night = letzte Nacht+;"
    "on Sunday = am Sonntag+; on Monday = am Montag+; in spring = im Frühling+; in winter = im Winter+",
}
NAMES = ("Anna", "Lena", "Maria", "Max", "Paul", "Peter")
NUMBERS = {"two": "zwei", "three": "drei", "four": "vier"}
# German endings: masculine, feminine, neuter and (not in the dative) plural.
DEFINITE = {"nom": "der die das die", "acc": "den die das die", "dat": "dem der dem"}
INDEFINITE = {"nom": "- e - e", "acc": "en e - e", "dat": "em er em"}  # of "ein", "mein", ...
WEAK = {"nom": "e e e en", "acc": "en e e en", "dat": "en en en"}  # adjective after "der"
MIXED = {"nom": "er e es en", "acc": "en e es en", "dat": "en en en"}  # adjective after "ein", "mein"
POSSESSIVES = {"a": "ein", "my": "mein", "your": "dein", "his": "sein", "her": "ihr", "our": "unser"}
PRONOUNS = {  # English subject: person, then the forms the other cases need
    "I": {"person": 0, "nom": "ich", "acc": "mich", "dat": "mir", "self": "mich", "object": "me"},
    "you": {"person": 1, "nom": "du", "acc": "dich", "dat": "dir", "self": "dich", "object": "you"},
    "he": {"person": 2, "nom": "er", "acc": "ihn", "dat": "ihm", "self": "sich", "object": "him"},
    "she": {"person": 2, "nom": "sie", "acc": "sie", "dat": "ihr", "self": "sich", "object": "her"},
    "we": {"person": 3, "nom": "wir", "acc": "uns", "dat": "uns", "self": "uns", "object": "us"},
}
PLACE_PREPOSITIONS = {"in": "in", "in front of": "vor", "behind": "hinter", "next to": "neben"}  # dative
GOAL_PREPOSITIONS = {"into": "in", "through": "durch", "around": "um"}  # accusative
MODALS = {"can": "können", "must": "müssen", "should": "sollen", "want": "wollen"}
CONJUNCTIONS = {"because": "weil", "although": "obwohl"}

_IRREGULAR = {  # forms for ich, du, er, wir
    "sein": "bin bist ist sind",
    "haben": "habe hast hat haben",
    "wissen": "weiß weißt weiß wissen",
    "können": "kann kannst kann können",
    "müssen": "muss musst muss müssen",
    "sollen": "soll sollst soll sollen",
    "wollen": "will willst will wollen",
}


class Word(NamedTuple):
    """A German word and its label; `late` is the label where the clause's verb only comes at the end."""

    text: str
    label: str = ""
    late: str | None = None


@dataclass(frozen=True)
class Phrase:
    """A piece of a sentence in both languages; `person` (0 ich, 1 du, 2 er, 3 wir) matters for subjects."""

    english: str
    words: tuple[Word, ...]
    person: int = 2
    pronoun: str = ""


@dataclass(frozen=True)
class Noun:
    """A noun; `kind` says which verbs and adjectives it goes with, `plural` is empty where none is used."""

    kind: str
    english: str
    english_plural: str
    german: str
    oblique: str
    gender: str
    plural: str


@dataclass(frozen=True)
class Verb:
    """A verb with its English and German complements; `decided` is the lone "!" of the table."""

    english: str
    past: str
    prefix: str
    infinitive: str
    third: str
    participle: str
    auxiliary: str
    english_frame: str
    frame: tuple[str, ...]
    decided: bool
    takes_place: bool
    only_present: bool

    def allows(self, form: str) -> bool:
        """Whether "present", "past" or a modal verb is possible; "I read it" would have two translations."""
        return form == "present" or not (self.only_present or (form == "past" and self.past == self.english))


def conjugate(infinitive: str, third: str, person: int) -> str:
    """German present tense of a verb (without prefix); persons are 0 ich, 1 du, 2 er/sie/es, 3 wir/sie."""
    if infinitive in _IRREGULAR:
        return _IRREGULAR[infinitive].split()[person]
    if person == 0:
        return infinitive[:-1] + ("e" if infinitive.endswith("ern") else "")
    if person == 1:
        stem = third.removesuffix("t")
        return stem + ("t" if stem[-1] in "sßzx" else "st")
    return third if person == 2 else infinitive


def third_person(english: str) -> str:
    """English third person singular; only the first word of "look for" changes."""
    first, space, rest = english.partition(" ")
    return first + ("es" if first.endswith(("s", "x", "ch", "sh", "o")) else "s") + space + rest


def _parse_noun(kind: str, row: str) -> Noun:
    english, german, gender, *plural = row.split()
    singular, _, irregular = english.partition("/")
    nominative, _, oblique = german.partition("/")
    english_forms, german_forms = (singular, irregular or singular + "s"), (nominative, oblique or nominative)
    return Noun(kind, *english_forms, *german_forms, gender, "".join(plural))


def _parse_verb(row: str) -> Verb:
    english, german, english_frame, frame = (column.strip() for column in row.split("|"))
    english, _, irregular = english.partition("/")
    first, space, rest = english.partition(" ")
    infinitive, third, participle = german.split()
    prefix, _, infinitive = infinitive.rpartition("+")
    past = (irregular or first + ("d" if first.endswith("e") else "ed")) + space + rest
    auxiliary = "sein" if participle.startswith("*") else "haben"
    forms = (prefix, infinitive, third, participle.removeprefix("*"), auxiliary)
    words = frame.split()
    marks = ("!" in words, "[place]" in words, "[present]" in words)
    items = tuple(word for word in words if word != "!" and word[0] != "[")
    return Verb(english, past, *forms, english_frame, items, *marks)


def _parse_phrase(row: str) -> Phrase:
    english, german = row.strip().split(" = ")
    labels = {"+": SOURCE, "!": CONTEXT}
    words = (Word(text.rstrip("+!"), labels.get(text[-1], "")) for text in german.split())
    return Phrase(english, tuple(words))


NOUNS = {kind: tuple(_parse_noun(kind, row) for row in rows.split(";")) for kind, rows in _NOUN_TABLE.items()}
ADJECTIVES = {kind: dict(row.split() for row in rows.split(";")) for kind, rows in _ADJECTIVE_TABLE.items()}
PHRASES = {kind: tuple(map(_parse_phrase, rows.split(";"))) for kind, rows in _PHRASE_TABLE.items()}
VERBS = tuple(_parse_verb(row) for row in _VERB_TABLE.strip().splitlines())


def noun_phrase(noun: Noun, case: str, determiner: str = "the", adjective: str = "", plural=False) -> Phrase:
    """Determiner, adjective and noun in agreement; `determiner` and `adjective` are given in English."""
    column = 3 if plural else "mfn".index(noun.gender)
    if determiner == "the":
        first, ending = Word(DEFINITE[case].split()[column]), WEAK[case].split()[column]
    elif determiner in NUMBERS:
        first, ending = Word(NUMBERS[determiner], SOURCE), "e"
    else:
        article = POSSESSIVES[determiner] + INDEFINITE[case].split()[column].strip("-")
        first, ending = Word(article), MIXED[case].split()[column]
    middle = (Word(ADJECTIVES[noun.kind][adjective] + ending, SOURCE),) if adjective else ()
    last = noun.plural if plural else noun.german if case == "nom" else noun.oblique
    english = f"{adjective} {noun.english_plural if plural else noun.english}".strip()
    determiner = "an" if determiner == "a" and english[0] in "aeiou" else determiner
    return Phrase(f"{determiner} {english}", (first, *middle, Word(last, SOURCE)), person=3 if plural else 2)


def pronoun_phrase(english: str, case: str) -> Phrase:
    """A personal pronoun, named by its English subject form."""
    forms = PRONOUNS[english]
    text = english if case == "nom" else forms["object"]
    return Phrase(text, (Word(forms[case]),), forms["person"], pronoun=english)


def place_phrase(preposition: str, noun: Phrase) -> Phrase:
    """Preposition and noun, contracted where German does: "im Garten", "ins Haus"."""
    german = (PLACE_PREPOSITIONS | GOAL_PREPOSITIONS)[preposition]
    contracted = {("in", "dem"): "im", ("in", "das"): "ins"}.get((german, noun.words[0].text))
    head = (Word(contracted, SOURCE),) if contracted else (Word(german, SOURCE), noun.words[0])
    return Phrase(f"{preposition} {noun.english}", head + noun.words[1:])
