"""Seeded synthetic film reviews, for a text task without any download.

A review names its film in the first sentence and then passes verdicts on it and on other films, some of them negated;
in a fifth of the reviews the closing verdict takes all earlier ones back. The label is the last verdict on the named
film. Only reading the title at the start, the verdicts that mention it and the end tells it for certain; a linear
classifier on counts of bytes is right for about 61 % from the first 512 bytes and 68 % from all, on counts of words
for about 63 % and 73 % (IMDb, counts of bytes: 62 % and 66 %).
"""

from __future__ import annotations

import math
import random

MIN_BYTES, MAX_BYTES = 300, 6_000
REVERSAL_SHARE = 0.2
NEGATION_SHARE = 0.2

_TITLE_FIRST = (
    "Amber Broken Crimson Distant Electric Fallen Gilded Hidden Iron Jagged Last Midnight Northern Open Paper Quiet Red"
    " Silent Twelfth Velvet Winter Yellow"
).split()
_TITLE_SECOND = (
    "Anchor Bridge Carnival Door Engine Forest Garden Harbor Island Journey Kingdom Lantern Mirror Orchard Promise"
    " River Station Tower Valley Window"
).split()
_TITLES = [f"The {first} {second}" for first in _TITLE_FIRST for second in _TITLE_SECOND]
_PRAISE = (
    "wonderful moving brilliant gripping charming superb delightful clever touching masterful funny beautiful"
    " unforgettable inspired warm thrilling"
).split()
_SCORN = (
    "dreadful boring clumsy tedious shallow awful lifeless stupid predictable painful cheap ugly forgettable lazy cold"
    " pointless"
).split()
_VERDICTS = (
    "{film} was {adverb} {word}",
    "I found {film} {adverb} {word}",
    "For me {film} remains {adverb} {word}",
    "Everyone I asked called {film} {word}",
    "If you ask me, {film} is {adverb} {word}",
    "The second half of {film} is simply {word}",
)
_NEGATED = (
    "{film} is not {word} at all",
    "I would never call {film} {word}",
    "Nobody could say that {film} is {word}",
    "There is nothing {word} about {film}",
)
_REVERSALS = (
    "And yet, having seen it again last night, I take all of that back: {film} is {adverb} {word}",
    "Then came the final hour, and it changed my mind about {film}, which is {adverb} {word} after all",
    "Forget what I wrote above, because on reflection {film} is {word}",
)
_ADVERBS = ("really", "truly", "quite", "very", "rather", "deeply", "completely")
_OPENINGS = (
    "A few words about {film} from {year}.",
    "Last {day} I finally watched {film} ({year}).",
    "This is my review of {film}, made in {year}.",
    "People keep asking me about {film}, so here it is.",
)
_FILLERS = (
    "The story begins in a small town where a {job} finds an old letter.",
    "We sat in row {number} and the cinema was half empty.",
    "The {job} is played by somebody I had only seen on television.",
    "It runs for {number} minutes, credits included.",
    "Halfway through, the {job} leaves for the city and meets a {job2}.",
    "My copy came with subtitles in {number} languages.",
    "The music is by the same people who scored {other}.",
    "It was filmed partly on the set of {other}.",
    "There is a long scene with a {job} and a {job2} in the rain.",
    "My brother, who is a {job}, came along on {day}.",
    "The screening on {day} started {number} minutes late.",
    "Some of the cast went on to make {other} afterwards.",
    "A {job2} in front of us kept whispering to a {job}.",
)
_CLOSINGS = (
    "That is all I have to say.",
    "See you next {day}.",
    "I am off to watch {other} now.",
    "Thanks for reading this far.",
)
_JOBS = "baker doctor driver farmer judge lawyer nurse painter pilot sailor singer soldier teacher waiter".split()
_DAYS = "Monday Tuesday Wednesday Thursday Friday Saturday Sunday".split()


def generate_reviews(count: int, seed: int) -> tuple[list[bytes], list[int]]:
    """`count` reviews of MIN_BYTES to MAX_BYTES with their labels (1 = positive), half of each, the same every time."""
    rng = random.Random(seed)
    labels = [i % 2 for i in range(count)]
    rng.shuffle(labels)
    return [_review(rng, label).encode() for label in labels], labels


def _review(rng: random.Random, label: int) -> str:
    film, *others = rng.sample(_TITLES, 4)
    reversed_late = rng.random() < REVERSAL_SHARE
    stance = 1 - label if reversed_late else label
    # Log-uniform lengths, as long-tailed as those of real reviews; the margin leaves room for the last sentences.
    target = math.exp(rng.uniform(math.log(MIN_BYTES + 100), math.log(MAX_BYTES - 300)))

    def neutral(templates: tuple[str, ...]) -> str:
        return rng.choice(templates).format(
            film=film,
            other=rng.choice(others),
            job=rng.choice(_JOBS),
            job2=rng.choice(_JOBS),
            day=rng.choice(_DAYS),
            year=rng.randint(1950, 2020),
            number=rng.randint(3, 180),
        )

    sentences = [neutral(_OPENINGS), _verdict(rng, film, stance)]
    size = sum(map(len, sentences))
    while size < target:
        kind = rng.random()
        if kind < 0.2:
            sentence = _verdict(rng, film, stance)
        elif kind < 0.45:
            sentence = _verdict(rng, rng.choice(others), rng.randint(0, 1))
        else:
            sentence = neutral(_FILLERS)
        # The verdict on the film may come anywhere, so its position says nothing.
        sentences.insert(rng.randint(1, len(sentences)), sentence)
        size += len(sentence) + 1
    if reversed_late:
        sentences.append(_verdict(rng, film, label, _REVERSALS))
    sentences.append(neutral(_CLOSINGS))
    return " ".join(sentences)


def _verdict(rng: random.Random, film: str, positive: int, templates: tuple[str, ...] = _VERDICTS) -> str:
    negated = templates is _VERDICTS and rng.random() < NEGATION_SHARE
    word = rng.choice(_PRAISE if positive != negated else _SCORN)
    sentence = rng.choice(_NEGATED if negated else templates).format(film=film, word=word, adverb=rng.choice(_ADVERBS))
    end = rng.random()
    return sentence + ("." if end < 0.5 else "!" if (end < 0.9) == bool(positive) else "...")
