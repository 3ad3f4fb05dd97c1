"""Batches from packed arrays, and the order of training."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lra_bench.batching import LENGTH_MULTIPLE, Batch, DeviceSplit, TrainingOrder, fits
from tasks import PackedSequences, Split


@settings(deadline=None)
@given(
    sequences=st.lists(st.lists(st.integers(1, 256), max_size=300), min_size=1, max_size=8),
    max_len=st.sampled_from([1, 100, 128, 200, 400]),
    seed=st.integers(0, 99),
)
def test_a_batch_is_the_padded_sequences(sequences: list[list[int]], max_len: int, seed: int) -> None:
    packed = PackedSequences.from_list(sequences)
    split = Split((packed,), np.arange(len(sequences))).truncate(max_len)
    data = DeviceSplit(split, max_len, torch.device("cpu"))
    chosen = np.random.default_rng(seed).permutation(len(sequences))[:3]
    batch = data.batch(chosen)
    (tokens,), (mask,) = batch.tokens, batch.padding_masks
    cut = [sequences[i][:max_len] for i in chosen]
    longest = max(1, *(len(s) for s in cut))
    assert tokens.shape[1] == min(max_len, -(-longest // LENGTH_MULTIPLE) * LENGTH_MULTIPLE)
    for row, sequence in enumerate(cut):
        assert tokens[row].tolist() == sequence + [0] * (tokens.shape[1] - len(sequence))
        assert mask[row].sum() == tokens.shape[1] - len(sequence)
    assert batch.labels.tolist() == chosen.tolist()


@given(rows=st.integers(1, 9), size=st.integers(1, 12), full=st.booleans())
def test_parts_of_a_batch_are_its_rows_in_order(rows: int, size: int, full: bool) -> None:
    tokens, masks = torch.arange(4 * rows).view(2, rows, 2), torch.rand(2, rows, 2) < 0.5
    parts = Batch((tokens[0], tokens[1]), (masks[0], masks[1]), torch.arange(rows), full).split(size)
    assert [len(part.labels) for part in parts[:-1]] == [size] * (len(parts) - 1)
    assert 1 <= len(parts[-1].labels) <= size
    assert torch.cat([part.labels for part in parts]).tolist() == list(range(rows))
    for number in (0, 1):
        assert torch.cat([part.tokens[number] for part in parts]).equal(tokens[number])
        assert torch.cat([part.padding_masks[number] for part in parts]).equal(masks[number])
    assert {part.full for part in parts} == {full}


@given(count=st.integers(1, 50), batch_size=st.integers(1, 60), seed=st.integers(0, 9))
def test_an_epoch_sees_nothing_twice(count: int, batch_size: int, seed: int) -> None:
    order = TrainingOrder(count, batch_size, seed)
    for epoch in range(2):
        steps = range(epoch * order.steps_per_epoch, (epoch + 1) * order.steps_per_epoch)
        seen = np.concatenate([order[s] for s in steps])
        assert len(seen) == len(set(seen.tolist()))
        assert count - len(seen) < min(batch_size, count)


def test_order_is_a_function_of_seed_and_step() -> None:
    one, other = TrainingOrder(100, 7, seed=1), TrainingOrder(100, 7, seed=1)
    forwards = [one[s] for s in range(40)]
    assert all(np.array_equal(other[s], forwards[s]) for s in reversed(range(40)))
    assert not np.array_equal(TrainingOrder(100, 7, seed=2)[0], forwards[0])
    assert not np.array_equal(forwards[0], forwards[14])


def test_host_memory_gives_the_same_batches() -> None:
    packed = PackedSequences.from_list([[1] * n for n in (5, 130, 9)])
    split = Split((packed, packed), np.arange(3))
    chosen = np.array([2, 1])
    one, other = (DeviceSplit(split, 200, torch.device("cpu"), resident=r).batch(chosen) for r in (True, False))
    assert all(torch.equal(a, b) for a, b in zip(one.model_inputs(), other.model_inputs(), strict=True))
    assert torch.equal(one.labels, other.labels)


@given(count=st.integers(1, 400), batch_size=st.integers(1, 16), seed=st.integers(0, 9), ranks=st.integers(1, 4))
def test_length_grouping_and_ranks_lose_nothing(count: int, batch_size: int, seed: int, ranks: int) -> None:
    lengths = np.random.default_rng(seed).integers(1, 1000, count)
    order = TrainingOrder(count, batch_size, seed, lengths)
    batches = [order[s] for s in range(order.steps_per_epoch)]
    seen = np.concatenate([b[r::ranks] for b in batches for r in range(ranks)])
    assert len(seen) == len(set(seen.tolist())) == order.steps_per_epoch * order.batch_size
    again = TrainingOrder(count, batch_size, seed, lengths)
    assert all(np.array_equal(again[s], batches[s]) for s in reversed(range(len(batches))))


def test_length_grouping_pads_less() -> None:
    lengths = np.random.default_rng(0).integers(1, 1000, 5_000)
    plain, grouped = TrainingOrder(5_000, 16, 0), TrainingOrder(5_000, 16, 0, lengths)
    spread = [np.mean([np.ptp(lengths[o[s]]) for s in range(o.steps_per_epoch)]) for o in (plain, grouped)]
    assert spread[1] < spread[0] / 10


def test_evaluation_order_covers_everything_once() -> None:
    packed = PackedSequences.from_list([[1] * n for n in (5, 1, 9, 3, 7)])
    data = DeviceSplit(Split((packed,), np.zeros(5, np.int64)), 16, torch.device("cpu"))
    batches = data.by_length(2)
    assert [b.tolist() for b in batches] == [[1, 3], [0, 4], [2]]


def test_data_stay_on_a_card_where_they_take_less_than_a_quarter_of_what_is_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("torch.cuda.mem_get_info", lambda device: (4_000, 9_000))
    assert [fits(size, torch.device("cuda")) for size in (999, 1_000)] == [True, False]
    assert fits(10**15, torch.device("cpu"))
