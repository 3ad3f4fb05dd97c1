"""ListOps the plain way: a recursive generator and two evaluators, against which the fast one is held."""

import random
from collections.abc import Iterable, Sequence

from tasks.listops_trees import SYMBOLS

Tree = int | tuple[str, list["Tree"]]


def sample_tree(rng: random.Random, depth: int = 1) -> "Tree":
    """A random tree by the Long Range Arena's process."""
    if depth < 10 and rng.random() <= 0.25:
        arguments = [sample_tree(rng, depth + 1) for _ in range(rng.randint(2, 10))]
        return rng.choice(("[MIN", "[MAX", "[MED", "[SM")), arguments
    return rng.randint(0, 9)


def length(tree: "Tree") -> int:
    return 1 if isinstance(tree, int) else 2 + sum(map(length, tree[1]))


def depth(tree: "Tree") -> int:
    return 1 if isinstance(tree, int) else 1 + max(map(depth, tree[1]))


def value(tree: "Tree") -> int:
    if isinstance(tree, int):
        return tree
    return apply(tree[0], [value(argument) for argument in tree[1]])


def apply(operator: str, values: Sequence[int]) -> int:
    ordered = sorted(values)
    if operator == "[MED":
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else int((ordered[middle - 1] + ordered[middle]) / 2)
    return {"[MIN": ordered[0], "[MAX": ordered[-1], "[SM": sum(values) % 10}[operator]


def release_text(tree: "Tree") -> str:
    """The release's binary-tree writing."""
    if isinstance(tree, int):
        return str(tree)
    text = tree[0]
    for argument in tree[1]:
        text = f"( {text} {release_text(argument)} )"
    return f"( {text} ] )"


def parse(tokens: Iterable[int]) -> "Tree":
    """The tree that token ids write."""
    open_lists: list[tuple[str, list[Tree]]] = []
    for token in tokens:
        symbol = SYMBOLS[token - 1]
        if symbol.startswith("["):
            open_lists.append((symbol, []))
            continue
        done: Tree = open_lists.pop() if symbol == "]" else int(symbol)
        if not open_lists:
            return done
        open_lists[-1][1].append(done)
    raise ValueError("brackets left open")


def sample_kept(rng: random.Random) -> "Tree":
    """A tree of accepted length."""
    while not 500 < length(tree := sample_tree(rng)) < 2000:
        pass
    return tree
