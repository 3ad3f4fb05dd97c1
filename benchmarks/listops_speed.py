"""How fast ListOps is generated, beside a plain recursive generator in the same run.

    make bench-listops

Both make complete samples (token ids and label) and are run in turn; the figure is the ratio of
their rates. The recursive one is that of the tests, one process; ours is one process too.
"""

import random
import time
from statistics import median

import numpy as np

from tasks.listops_trees import SYMBOLS, sample_expressions
from tests.tasks.naive_listops import Tree, sample_kept, value

ROUNDS, SECONDS = 5, 4.0
IDS = {symbol: number for number, symbol in enumerate(SYMBOLS, 1)}


def write(tree: Tree, ids: list[int]) -> None:
    """Append the token ids of a tree."""
    if isinstance(tree, int):
        ids.append(IDS[str(tree)])
        return
    ids.append(IDS[tree[0]])
    for argument in tree[1]:
        write(argument, ids)
    ids.append(IDS["]"])


def naive_rate(rng: random.Random) -> float:
    """Kept samples a second of the recursive generator."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        tree = sample_kept(rng)
        ids: list[int] = []
        write(tree, ids)
        np.array(ids, np.int16)
        value(tree)
        count += 1
    return count / (time.perf_counter() - started)


def our_rate(rng: np.random.Generator) -> float:
    """Kept samples a second of the level-by-level generator."""
    started, count = time.perf_counter(), 0
    while time.perf_counter() - started < SECONDS:
        count += len(sample_expressions(rng, 4096)[1])
    return count / (time.perf_counter() - started)


def main() -> None:
    plain, fast = random.Random(0), np.random.default_rng(0)
    rates = [(naive_rate(plain), our_rate(fast)) for _ in range(ROUNDS)]
    naive, ours = median(n for n, _ in rates), median(o for _, o in rates)
    print(f"recursive {naive:,.0f} samples a second, level by level {ours:,.0f}")
    print(f"ratio: {median(o / n for n, o in rates):.1f} (median of {ROUNDS} alternating rounds of {SECONDS:.0f} s)")


if __name__ == "__main__":
    main()
