"""Packed storage and stratified sampling."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks import PackedSequences, Split
from tasks.dataset import stratified

SEQUENCES = st.lists(st.lists(st.integers(1, 300), max_size=20), max_size=12)


@given(sequences=SEQUENCES, max_len=st.integers(1, 25), seed=st.integers(0, 1000))
def test_behaves_like_a_list_of_lists(sequences: list[list[int]], max_len: int, seed: int) -> None:
    packed = PackedSequences.from_list(sequences)
    assert [s.tolist() for s in map(packed.__getitem__, range(len(packed)))] == sequences
    order = np.random.default_rng(seed).permutation(len(sequences))
    chosen = packed.select(order).truncate(max_len)
    assert [chosen[i].tolist() for i in range(len(chosen))] == [sequences[j][:max_len] for j in order]
    assert chosen.tokens is packed.tokens


def test_wide_vocabularies_take_wide_tokens() -> None:
    assert PackedSequences.from_list([[1, 32_767]]).tokens.dtype == np.int16
    assert PackedSequences.from_list([[1, 32_768]]).tokens.dtype == np.int32


@given(counts=st.lists(st.integers(1, 60), min_size=1, max_size=5), share=st.floats(0, 1), seed=st.integers(0, 99))
def test_stratified_keeps_shares(counts: list[int], share: float, seed: int) -> None:
    labels = np.repeat(np.arange(len(counts)), counts)
    size = int(share * len(labels))
    chosen = stratified(labels, size, seed)
    assert len(chosen) == len(set(chosen)) == size
    assert (np.diff(chosen) > 0).all()
    for label, count in enumerate(counts):
        assert abs((labels[chosen] == label).sum() - size * count / len(labels)) < 1
    assert np.array_equal(chosen, stratified(labels, size, seed))


def test_what_is_held_out_or_scored_stays_the_same() -> None:
    """Other examples would be other splits, or another test of `quick`: raise `version` in configs/tasks."""
    labels = np.array([0, 1] * 10)
    assert stratified(labels, 4, seed=2021).tolist() == [5, 12, 16, 17]
    sample = Split((PackedSequences.from_list([[i] for i in range(20)]),), labels).sample(4)
    assert [int(sample.inputs[0][i][0]) for i in range(4)] == [5, 8, 12, 19]


def test_sample_takes_all_when_asked_for_more() -> None:
    split = Split((PackedSequences.from_list([[1], [2], [3]]),), np.array([0, 1, 0]))
    assert split.sample(None) is split
    assert split.sample(9) is split
    assert len(split.sample(2)) == 2


def test_index_out_of_range() -> None:
    with pytest.raises(IndexError):
        PackedSequences.from_list([[1]])[1]
