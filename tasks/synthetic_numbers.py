"""Seeded sentence pairs, English and German, for a translation task without any download.

A sentence is about one or two numbers in words. German puts the units before the tens and writes a number as one word
("four hundred and twenty-three" is "vierhundertdreiundzwanzig"), and its articles depend on the noun, so that copying
the source or translating word by word is not enough.
"""

from __future__ import annotations

import random

_ONES = "zero one two three four five six seven eight nine ten eleven twelve".split()
_TEENS = "thirteen fourteen fifteen sixteen seventeen eighteen nineteen".split()
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety".split()
_EINER = "null ein zwei drei vier fünf sechs sieben acht neun zehn elf zwölf".split()
_ZEHNER = "dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn".split()
_ZIGER = "zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig".split()
_NOUNS = (
    ("table", "Der Tisch"),
    ("book", "Das Buch"),
    ("lamp", "Die Lampe"),
    ("house", "Das Haus"),
    ("garden", "Der Garten"),
    ("bridge", "Die Brücke"),
    ("train", "Der Zug"),
    ("ship", "Das Schiff"),
    ("bicycle", "Das Fahrrad"),
    ("watch", "Die Uhr"),
)
_SENTENCES = (
    ("The {noun} costs {a} euros.", "{noun} kostet {a} Euro."),
    ("The {noun} is {a} years old.", "{noun} ist {a} Jahre alt."),
    ("The {noun} has number {a}, not {b}.", "{noun} hat Nummer {a}, nicht {b}."),
    ("The {noun} weighs between {a} and {b} grams.", "{noun} wiegt zwischen {a} und {b} Gramm."),
)


def english(number: int) -> str:
    """A number from 0 to 999,999 in words."""
    if number >= 1000:
        rest = number % 1000
        return f"{english(number // 1000)} thousand" + (f" {'and ' * (rest < 100)}{english(rest)}" if rest else "")
    if number >= 100:
        rest = number % 100
        return f"{_ONES[number // 100]} hundred" + (f" and {english(rest)}" if rest else "")
    if number >= 20:
        return _TENS[number // 10 - 2] + (f"-{_ONES[number % 10]}" if number % 10 else "")
    return (_ONES + _TEENS)[number]


def german(number: int, alone: bool = True) -> str:
    """The same in German; alone: at the end of the word, where one is "eins"."""
    if number >= 1000:
        return f"{german(number // 1000, False)}tausend" + (german(number % 1000) if number % 1000 else "")
    if number >= 100:
        return f"{_EINER[number // 100]}hundert" + (german(number % 100, alone) if number % 100 else "")
    if number >= 20:
        return (f"{_EINER[number % 10]}und" if number % 10 else "") + _ZIGER[number // 10 - 2]
    return "eins" if number == 1 and alone else (_EINER + _ZEHNER)[number]


def generate_pairs(count: int, seed: int) -> tuple[list[str], list[str]]:
    """`count` sentences in English and in German, the same every time."""
    rng = random.Random(seed)
    pairs = [_pair(rng) for _ in range(count)]
    return [source for source, _ in pairs], [target for _, target in pairs]


def _pair(rng: random.Random) -> tuple[str, str]:
    noun, nomen = rng.choice(_NOUNS)
    a, b = (int(10 ** rng.uniform(0.5, 6.0)) for _ in range(2))
    source, target = rng.choice(_SENTENCES)
    return (
        source.format(noun=noun, a=english(a), b=english(b)),
        target.format(noun=nomen, a=german(a), b=german(b)),
    )
