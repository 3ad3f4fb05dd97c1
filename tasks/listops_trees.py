"""Random ListOps expressions, many at once: trees grow level by level in numpy arrays.

The process is that of the Long Range Arena's generator (Tay et al. 2021; Nangia and Bowman 2018): a node above the
deepest level is an operator with probability 0.25, with 2 to 10 arguments, otherwise a digit; an expression is kept
when its length lies strictly between two bounds. A tree is dropped as soon as it is too long.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]
Tokens = NDArray[np.int16]

MAX_DEPTH = 10
MAX_ARGUMENTS = 10
OPERATOR_SHARE = 0.25
MIN_LENGTH, MAX_LENGTH = 500, 2000  # exclusive

OPERATORS = ("[MIN", "[MAX", "[MED", "[SM")
SYMBOLS = (*map(str, range(10)), *OPERATORS, "]")
# Token ids; 0 is padding.
FIRST_DIGIT, FIRST_OPERATOR, CLOSE = 1, 11, 15


@dataclass
class _Level:
    """Nodes of one depth, trees in order and children of a node side by side.

    tree: which tree a node belongs to; arguments: 0 for a digit; symbol: the digit, or the number of the operator;
    parent: index into the level above.
    """

    tree: Ints
    arguments: Ints
    symbol: Ints
    parent: Ints


def sample_expressions(rng: np.random.Generator, num_trees: int) -> tuple[Tokens, Ints, Ints]:
    """Grow `num_trees` trees and keep those of accepted length, about one in twelve.

    Returns the token ids of all kept expressions end to end, their lengths and their values.
    """
    levels, length = _grow(rng, num_trees)
    kept = (length > MIN_LENGTH) & (length < MAX_LENGTH)
    return _write(_select(levels, kept), int(kept.sum()))


def _grow(rng: np.random.Generator, num_trees: int) -> tuple[list[_Level], Ints]:
    """All levels of the trees, without the deeper nodes of those too long already; and the trees' lengths."""
    length: Ints = np.zeros(num_trees, np.int64)
    levels: list[_Level] = []
    tree: Ints = np.arange(num_trees)
    parent: Ints = np.zeros(num_trees, np.int64)
    for depth in range(1, MAX_DEPTH + 1):
        operator = rng.random(len(tree)) <= OPERATOR_SHARE
        if depth == MAX_DEPTH:
            operator[:] = False
        arguments = np.where(operator, rng.integers(2, MAX_ARGUMENTS + 1, len(tree)), 0)
        symbol = np.where(operator, rng.integers(0, len(OPERATORS), len(tree)), rng.integers(0, 10, len(tree)))
        levels.append(_Level(tree, arguments, symbol, parent))
        length += np.bincount(tree, weights=1 + operator, minlength=num_trees).astype(np.int64)
        # A child adds at least 1: trees past the bound already, or with too many children to come, go no deeper.
        pending = np.bincount(tree, weights=arguments, minlength=num_trees).astype(np.int64)
        hopeless = length + pending >= MAX_LENGTH
        length[hopeless] = MAX_LENGTH
        growing = operator & ~hopeless[tree]
        parent = np.repeat(np.flatnonzero(growing), arguments[growing])
        tree = tree[parent]
    return levels, length


def _select(levels: list[_Level], kept: NDArray[np.bool_]) -> list[_Level]:
    """The levels of the kept trees only, which are numbered anew."""
    number = np.cumsum(kept) - 1
    selected: list[_Level] = []
    above: Ints = np.zeros(0, np.int64)
    for level in levels:
        chosen = kept[level.tree]
        parent = above[level.parent[chosen]] if selected else level.parent[chosen]
        selected.append(_Level(number[level.tree[chosen]], level.arguments[chosen], level.symbol[chosen], parent))
        above = np.cumsum(chosen) - 1
    return selected


def _write(levels: list[_Level], num_trees: int) -> tuple[Tokens, Ints, Ints]:
    """Token ids end to end, lengths and values of complete trees."""
    nothing: Ints = np.zeros(0, np.int64)
    sizes, values = [nothing] * len(levels), [nothing] * len(levels)
    for depth in reversed(range(len(levels))):
        level = levels[depth]
        sizes[depth], values[depth] = np.ones_like(level.tree), level.symbol.copy()
        inner = np.flatnonzero(level.arguments)
        if len(inner):
            first = np.cumsum(level.arguments[inner]) - level.arguments[inner]
            sizes[depth][inner] = 2 + np.add.reduceat(sizes[depth + 1], first)
            values[depth][inner] = _apply(level.symbol[inner], values[depth + 1], first, level.arguments[inner])
    length = sizes[0]
    tokens = np.zeros(int(length.sum()), np.int16)
    position = np.cumsum(length) - length
    for depth, level in enumerate(levels):
        inner = np.flatnonzero(level.arguments)
        tokens[position] = np.where(level.arguments > 0, FIRST_OPERATOR, FIRST_DIGIT) + level.symbol
        tokens[position[inner] + sizes[depth][inner] - 1] = CLOSE
        if depth + 1 < len(levels):
            below, parent = sizes[depth + 1], levels[depth + 1].parent
            before = np.cumsum(below) - below  # tokens of all nodes to the left on that level
            first = np.cumsum(level.arguments[inner]) - level.arguments[inner]
            offset = np.zeros(len(level.tree), np.int64)
            offset[inner] = position[inner] + 1 - before[first]
            position = before + offset[parent]
    return tokens, length, values[0]


def _apply(operator: Ints, arguments: Ints, first: Ints, count: Ints) -> Ints:
    """Values of operators whose arguments lie side by side, `count` of them from `first` on."""
    # Sorted within each operator by one sort over all, since values stay below 10.
    owner = np.repeat(np.arange(len(first)), count)
    ordered = np.sort(owner * 10 + arguments) - owner * 10
    median = (ordered[first + (count - 1) // 2] + ordered[first + count // 2]) // 2
    total = np.add.reduceat(arguments, first) % 10
    return np.select(
        [operator == 0, operator == 1, operator == 2], [ordered[first], ordered[first + count - 1], median], total
    )
