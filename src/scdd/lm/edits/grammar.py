"""What writers of English confuse although every word is spelt right: forms of a word, and small words for each other."""

from __future__ import annotations

from scdd.lm.edits.lexicon import Lexicon

ARTICLES = ("a", "an", "the")
PREPOSITIONS = ("of", "to", "in", "for", "on", "with", "at", "by", "from", "as", "about", "into", "than")
INSERTED = (
    *ARTICLES,
    *PREPOSITIONS,
    *["is", "are", "was", "were", "be", "been", "have", "has", "had", "that", "it", "and", "which", "not", "do"],
    ",",
)
"""What may be missing between two words."""
DELETED = frozenset(
    (
        *ARTICLES,
        *PREPOSITIONS,
        *["is", "are", "was", "were", "be", "been", "have", "has", "had", "that", "it", "and", "which", "do", "so"],
        ",",
    )
)
"""What may be too much."""

SETS = tuple(
    tuple(line.split())
    for line in """
    a an the
    an and
    of off
    of to in for on with at by from as about into
    is are was were be been being am
    has have had having
    do does did done doing
    this these that those
    there their they're
    its it's
    your you're
    then than
    to too two
    much many
    less fewer
    who which that whose whom
    he she they it
    him her them his their
    where were we're
    loose lose losing loss
    affect effect
    accept except
    advice advise
    though through thought
    quite quiet
    weather whether
    into onto
    other another others
    every all each
    can could
    will would
    may might
    no not
    good well
    because since
    so such
    among between
    during while
    make makes made making
    take takes took taken taking
    get gets got getting
    give gives gave given giving
    go goes went gone going
    come comes came coming
    know knows knew known knowing
    see sees saw seen seeing
    think thinks thought thinking
    find finds found finding
    become becomes became becoming
    begin begins began begun beginning
    write writes wrote written writing
    speak speaks spoke spoken speaking
    buy buys bought buying
    bring brings brought bringing
    teach teaches taught teaching
    feel feels felt feeling
    keep keeps kept keeping
    leave leaves left leaving
    tell tells told telling
    say says said saying
    mean means meant meaning
    spend spends spent spending
    build builds built building
    choose chooses chose chosen choosing choice
    eat eats ate eaten eating
    drive drives drove driven driving
    grow grows grew grown growing
    man men
    woman women
    child children
    person people persons
    life lives live
    """.strip().splitlines()
)
_OF: dict[str, tuple[str, ...]] = {}
for _line in SETS:
    for _word in _line:
        _OF[_word] = (*_OF.get(_word, ()), *(each for each in _line if each != _word))

VOWELS = frozenset("aeiou")
PREFIXES = (
    *["un", "re", "non", "over", "out", "pre", "anti", "super", "sub", "inter", "de", "dis", "mis", "under", "micro"],
    "multi",
)
SUFFIXES = (
    *["er", "ers", "or", "ors", "ness", "less", "ish", "able", "ful", "ment", "ments", "ism", "ist", "ists", "like"],
    *["wise", "y"],
)
PART = 4  # letters of a half of a compound, at least
COMMON_ROOT = 4.0  # log2 count of what others may be formed of


def confused(word: str) -> tuple[str, ...]:
    """Other members of the sets that a word (lower case) stands in."""
    return _OF.get(word, ())


def forms(word: str, lexicon: Lexicon) -> list[str]:
    """Other regular forms of a word: number, tense, -ing, -ly; only those that the lexicon has."""
    if len(word) < 3:
        return []
    made = {form for stem in _stems(word) for form in (stem, *_endings(stem))}
    return sorted(form for form in made if form != word and form in lexicon and len(form) > 2)


def formed(word: str, lexicon: Lexicon) -> bool:
    """Whether a word (lower case) that is in no list is made of known ones by rule: another form, a prefix, a suffix, a compound.

    Such words are without number, and few of them are mistakes.
    """

    def familiar(part: str) -> bool:
        return len(part) > 2 and lexicon.counts.get(part, 0.0) >= COMMON_ROOT

    word = word.removesuffix("'s")
    if any(familiar(stem) and word in _endings(stem) for stem in _stems(word) - {word}):
        return True
    if any(word.startswith(each) and familiar(word.removeprefix(each)) for each in PREFIXES):
        return True
    for each in SUFFIXES:
        root = word.removesuffix(each)
        if root != word and any(map(familiar, (root, root + "e", root[:-1] if root[-1:] == root[-2:-1] else ""))):
            return True
    return any(familiar(word[:k]) and familiar(word[k:]) for k in range(PART, len(word) - PART + 1))


def _stems(word: str) -> set[str]:
    """What the word may be a form of, itself among them."""
    stems = {word}
    for ending, others in (
        ("ies", ("y",)), ("es", ("", "e")), ("s", ("",)), ("ied", ("y",)), ("ed", ("", "e")), ("ing", ("", "e")),
        ("ly", ("",)),
    ):  # fmt: skip
        if word.endswith(ending) and len(word) - len(ending) >= 2 and not word.endswith("ss"):
            root = word[: -len(ending)]
            stems |= {root + other for other in others}
            if ending in ("ed", "ing") and len(root) > 2 and root[-1] == root[-2]:
                stems.add(root[:-1])
    return stems


def _endings(stem: str) -> set[str]:
    """Regular forms of a stem."""
    made = {stem + "s", stem + "ed", stem + "ing", stem + "ly"}
    if stem.endswith("e"):
        made |= {stem + "d", stem[:-1] + "ing"}
    if stem.endswith("y") and stem[-2:-1] not in VOWELS:
        made |= {stem[:-1] + "ies", stem[:-1] + "ied"}
    if stem.endswith(("s", "x", "z", "ch", "sh", "o")):
        made.add(stem + "es")
    if len(stem) > 2 and stem[-1] not in VOWELS and stem[-2] in VOWELS:
        made |= {stem + stem[-1] + "ed", stem + stem[-1] + "ing"}
    return made
