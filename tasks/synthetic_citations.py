"""Seeded synthetic papers with a citation graph, for a retrieval task without any download.

Papers belong to topics and mostly cite within their own. A paper is a title, an abstract and sections in its topic's
vocabulary, with its citations in the running text ("Author (year) …") and in a list of references at the end. Sharing
a topic tells much, since three quarters of the negatives are of another one; finding the other paper's author and
year tells the rest.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field

NUM_PAPERS = 1_500
NUM_TOPICS = 20
CITATIONS = (4, 10)
WITHIN_TOPIC_SHARE = 0.9
NEGATIVES_WITHIN_TOPIC_SHARE = 0.25

_CONSONANTS, _VOWELS = "bcdfghklmnprstvz", "aeiou"
_GLUE = "the of a in for with on we and is by that from as are this to our each".split()
_PHRASES = (
    "{author} ({year}) study {a} {b}.",
    "This follows {author} ({year}), who apply {a} to {b}.",
    "Unlike the {a} of {author} ({year}), ours needs no {b}.",
)


@dataclass
class _Paper:
    topic: int
    author: str
    year: int
    title: str
    cites: list[int] = field(default_factory=list)
    text: str = ""


def generate_papers(seed: int = 0) -> tuple[list[bytes], list[list[int]], list[int]]:
    """Texts of the papers, what each of them cites, and their topics; the same every time."""
    rng = random.Random(seed)
    vocabulary = [[_word(rng) for _ in range(60)] for _ in range(NUM_TOPICS)]
    common = [_word(rng) for _ in range(300)]
    papers = [_paper(rng, rng.randrange(NUM_TOPICS), vocabulary) for _ in range(NUM_PAPERS)]
    by_topic = [[i for i, p in enumerate(papers) if p.topic == topic] for topic in range(NUM_TOPICS)]
    for number, paper in enumerate(papers):
        wanted = rng.randint(*CITATIONS)
        while len(paper.cites) < wanted:
            pool = by_topic[paper.topic] if rng.random() < WITHIN_TOPIC_SHARE else range(NUM_PAPERS)
            other = rng.choice(pool)
            if other != number and other not in paper.cites:
                paper.cites.append(other)
    texts = [_text(rng, paper, papers, vocabulary[paper.topic], common).encode() for paper in papers]
    return texts, [p.cites for p in papers], [p.topic for p in papers]


def generate_pairs(
    cites: list[list[int]], topics: list[int], citing: list[int], seed: int
) -> tuple[list[int], list[int], list[int]]:
    """First and second papers and labels: every citation of the papers `citing`, and as many pairs that are none."""
    rng = random.Random(seed)
    popular = [cited for paper in citing for cited in cites[paper]]  # negatives as popular as positives
    pairs = []
    for paper in citing:
        for cited in cites[paper]:
            pairs.append((paper, cited, 1))
            within = rng.random() < NEGATIVES_WITHIN_TOPIC_SHARE
            while True:
                other = rng.choice(popular)
                if other != paper and other not in cites[paper] and (topics[other] == topics[paper]) == within:
                    break
            pairs.append((paper, other, 0))
    rng.shuffle(pairs)
    first, second, labels = zip(*pairs, strict=True)
    return list(first), list(second), list(labels)


def _word(rng: random.Random) -> str:
    return "".join(rng.choice(_CONSONANTS) + rng.choice(_VOWELS) for _ in range(rng.randint(2, 4)))


def _paper(rng: random.Random, topic: int, vocabulary: list[list[str]]) -> _Paper:
    title = " ".join(rng.sample(vocabulary[topic], 4)).capitalize()
    return _Paper(topic, _word(rng).capitalize() + rng.choice(("", "s", "n", "r")), rng.randint(1980, 2020), title)


def _text(rng: random.Random, paper: _Paper, papers: list[_Paper], own: list[str], common: list[str]) -> str:
    def sentence() -> str:
        words = [rng.choice(own if rng.random() < 0.3 else _GLUE if rng.random() < 0.5 else common) for _ in range(12)]
        return " ".join(words).capitalize() + "."

    mentions = [
        rng.choice(_PHRASES).format(
            author=papers[i].author,
            year=papers[i].year,
            a=rng.choice(own),
            b=rng.choice(papers[i].title.split()).lower(),
        )
        for i in paper.cites
    ]
    body = [sentence() for _ in range(rng.randint(15, 60))] + mentions
    rng.shuffle(body)
    references = [f"{papers[i].author} {papers[i].year}. {papers[i].title}." for i in paper.cites]
    abstract = " ".join(sentence() for _ in range(4))
    head = f"{paper.title}\n{paper.author}, {paper.year}\nAbstract. {abstract}\n"
    return head + " ".join(body) + "\nReferences\n" + "\n".join(references) + "\n"
