"""Records from before an edit of what they ran."""

from collections.abc import Callable

import pytest

from lra_bench.leaderboard import rows
from lra_bench.records import Record
from lra_bench.tables import build_tables


def test_the_latest_record_of_a_seed_counts(make_record: Callable[..., Record]) -> None:
    old = make_record(accuracy=50.0, created="2026-01-01T00:00:00+00:00")
    new = make_record(accuracy=60.0, created="2026-01-02T00:00:00+00:00")
    for order in ([old, new], [new, old]):
        (row,) = rows(build_tables(order))
        assert (row["accuracy"], row["seeds"]) == (60.0, 1)


@pytest.mark.parametrize("edited", ["plugin", "YAML"])
def test_seeds_before_and_after_an_edit_are_not_mixed(edited: str, make_record: Callable[..., Record]) -> None:
    def ran(text: str, accuracy: float, day: int, **of: object) -> Record:
        record = make_record(accuracy=accuracy, created=f"2026-01-0{day}T00:00:00+00:00", **of)
        if edited == "plugin":
            return record.model_copy(update={"code": record.code.model_copy(update={"plugin": text})})
        attention = record.config.attention.model_copy(update={"settings": {"kernel": text}})
        return record.model_copy(update={"config": record.config.model_copy(update={"attention": attention})})

    before = [ran("old", 50.0, 1, name="mine", seed=seed) for seed in (0, 1, 2)]
    others = [ran("", 55.0, 1, seed=seed) for seed in (0, 1)]
    after = ran("new", 60.0, 2, name="mine")
    found = {row["model"]: (row["accuracy"], row["seeds"]) for row in rows(build_tables([after, *others, *before]))}
    assert found == {"mine": (60.0, 1), "rfa": (55.0, 2)}
    again = [ran("old", 50.0, 3, name="mine", seed=1)]  # and back
    assert rows(build_tables([after, *before, *again]))[0]["seeds"] == 3


def test_runs_before_an_edit_of_their_protocol_stand_apart(make_record: Callable[..., Record]) -> None:
    """As if --set had said what was different then: the newest run tells what the protocol is now."""

    def ran(model: str, day: int, steps: int, overrides: str = "", **train: object) -> Record:
        record = make_record(model, created=f"2026-01-0{day}T00:00:00+00:00")
        changed = record.config.train.model_copy(update={"steps": steps, **train})
        return record.model_copy(
            update={"config": record.config.model_copy(update={"train": changed, "overrides": overrides})}
        )

    warm = {"overrides": "train.warmup=7", "warmup": 7}
    # What a run was compiled or saved by does not make its protocol another one.
    alike = [ran("linear", 3, 700, compile=True), ran("sdpa", 4, 700, checkpoint_every=7)]
    before = [ran("softmax", 1, 600), ran("rfa", 1, 600), ran("rfa", 1, 600, **warm)]  # type: ignore[arg-type]
    tables = build_tables([*alike, ran("rfa", 2, 700), ran("rfa", 2, 700, **warm), *before])  # type: ignore[arg-type]
    assert {t.first.config.protocol_label: sorted(e.label for e in t.entries) for t in tables} == {
        "quick": ["linear", "rfa", "sdpa"],
        "quick with train.steps=600": ["rfa", "softmax"],
        "quick with train.warmup=7": ["rfa"],
        "quick with train.steps=600 train.warmup=7": ["rfa"],  # in the order that --set has them
    }
    assert len({t.slug for t in tables}) == 4
    back = build_tables([*alike, ran("rfa", 5, 600), *before])  # the file as it was again
    labels = {t.first.config.protocol_label: sorted(e.label for e in t.entries) for t in back}
    assert labels["quick"] == ["rfa", "softmax"]
    assert labels["quick with train.steps=700"] == ["linear", "sdpa"]
