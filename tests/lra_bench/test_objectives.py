"""Language modelling and translation through the trainer, the command line and the tables."""

import csv
import math
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from accelerate import Accelerator

from lra_bench.build import estimate_step
from lra_bench.config import ConfigError, ModelConfig, RunConfig
from lra_bench.leaderboard import rows
from lra_bench.markup import markdown
from lra_bench.objectives import Evaluation, LanguageModelling, objective_of
from lra_bench.packing import unpack_numbers
from lra_bench.plugins import load_plugins
from lra_bench.records import Record, Score
from lra_bench.resolve import HEEDED_BY, resolve
from lra_bench.stats import score_of_sums
from lra_bench.tables import build_tables
from lra_bench.trainer import Diverged, Trainer
from tasks import Metric, Task, load_task

from .conftest import TINY
from .test_cli import lra_bench
from .test_documents import code_block

CAUSAL = ["sdpa", "linear", "rfa", "rfa-gate-arccos"]
TEXT = "Sing, O goddess, the anger of Achilles son of Peleus. " * 60


@pytest.fixture
def book(tmp_path: Path) -> Path:
    path = tmp_path / "book.txt"
    path.write_text(TEXT)
    return path


def score_of_summands(found: Evaluation, items: int, metric: Metric) -> float:
    """The score of a whole split again, from what its record keeps of every item."""
    return float(score_of_sums(unpack_numbers(found.summands, items).sum(axis=0), metric))


def small(task: str, model: str = "rfa", **changes: object) -> RunConfig:
    named = {key.replace("__", "."): value for key, value in changes.items()}
    return resolve(task, model, "quick", overrides={**TINY, "model.num_heads": 2, **named})


def trainer(config: RunConfig, task: Task, checkpoint: Path) -> Trainer:
    torch.manual_seed(config.seed)
    return Trainer(config, objective_of(config).build_model(), task, Accelerator(cpu=True), checkpoint)


@pytest.mark.parametrize(("task", "builder"), [("text", "classifier"), ("lm", "decoder"), ("mt", "translator")])
def test_the_model_gets_every_setting_that_may_be_set(task: str, builder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    built: dict[str, object] = {}
    monkeypatch.setattr(f"lra_bench.objectives.build_{builder}", lambda name, **settings: built.update(settings))
    objective = objective_of(small(task))
    objective.build_model()
    heeded = {
        name
        for name in ModelConfig.model_fields
        if objective.spec.kind in HEEDED_BY.get(f"model.{name}", (objective.spec.kind,))
    }
    assert heeded == built.keys() & ModelConfig.model_fields.keys()


@pytest.mark.parametrize("model", CAUSAL)
def test_a_language_model_learns(model: str, book: Path, tmp_path: Path) -> None:
    config = small("lm", model, data__max_len=32, train__steps=120, train__lr=1e-2, train__eval_every=40)
    t = trainer(config, load_task("lm", book, 32), tmp_path / "c.pt")
    t.fit()
    tested, last = t.test()
    assert tested.value == last < 3.0  # bits per byte; its alphabet alone takes 4.2
    assert tested.interval
    assert tested.interval[0] < tested.value < tested.interval[1]
    assert t.progress.best_score == min(score for _, score in t.progress.validation_curve)


def test_bits_per_byte_by_hand(book: Path, tmp_path: Path) -> None:
    config = small("lm", data__max_len=32)
    task = load_task("lm", book, 32)
    t = trainer(config, task, tmp_path / "c.pt")
    text = task.test.inputs[0]
    assert text.lengths[-1] < 33  # the last segment is padded
    t.model.eval()
    losses = []
    with torch.inference_mode():
        for i in range(len(text)):
            tokens = torch.from_numpy(text[i]).long().unsqueeze(0)
            losses += t.model(tokens[:, :-1], targets=tokens[:, 1:])[0][0].tolist()
    found = t.evaluate(t.test_data)
    assert found.value == pytest.approx(sum(losses) / len(losses) / math.log(2), rel=1e-5)
    assert score_of_summands(found, len(text), "bits per byte") == pytest.approx(found.value)


@pytest.mark.parametrize("model", ["rfa", "linear", "rfa-gate"])
def test_a_carried_state_makes_one_text_of_the_segments(model: str, book: Path, tmp_path: Path) -> None:
    """With one row the losses are those of one long pass, but for positions, which start anew in every segment."""
    config = small("lm", model, data__max_len=16, train__batch_size=1, evaluation__carry_state=True)
    t = trainer(config, load_task("lm", book, 16), tmp_path / "c.pt")
    t.model.eval()
    text = torch.from_numpy(t.test_data.split.inputs[0].tokens).long()[None]
    with torch.inference_mode():
        positions = t.model.positions  # type: ignore[union-attr]
        t.model.positions = positions.repeat(20, 1)  # type: ignore[operator, union-attr]
        t.model.max_len = 320  # type: ignore[assignment]
        whole = t.model(text[:, :-1], targets=text[:, 1:])[0].mean() / math.log(2)
        t.model.positions, t.model.max_len = positions, 16  # type: ignore[assignment]
    carried = t.evaluate(t.test_data).value
    assert carried == pytest.approx(float(whole), rel=1e-5)
    separate = trainer(small("lm", model, data__max_len=16), load_task("lm", book, 16), tmp_path / "d.pt")
    assert separate.evaluate(separate.test_data).value != pytest.approx(carried, rel=1e-4)


@pytest.mark.parametrize(("weight", "score"), [(float("nan"), "nan"), (1e4, "inf")])
def test_a_score_that_is_no_number_is_divergence(weight: float, score: str, book: Path, tmp_path: Path) -> None:
    t = trainer(small("lm", data__max_len=16), load_task("lm", book, 16), tmp_path / "c.pt")
    t.objective.spec = t.objective.spec.model_copy(update={"metric": "perplexity"})  # e to the 710 is beyond a float
    with torch.no_grad():
        t.model.vocabulary.weight.mul_(weight)  # type: ignore[union-attr, operator]
    with pytest.raises(Diverged, match=f"perplexity became {score} after step 0"):
        t.evaluate(t.test_data)


def test_a_class_of_what_is_no_number_is_divergence(
    reviews: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one example in evaluation alone, whose largest logit would be that of the first class."""
    t = trainer(small("text"), load_task("text", reviews, 64), tmp_path / "c.pt")
    assert 0 <= t.evaluate(t.test_data).value <= 100
    outputs, wrong = t.objective.outputs, torch.tensor([[math.nan, 0.0]])
    monkeypatch.setattr(t.objective, "outputs", lambda *args: torch.cat([wrong, outputs(*args)[1:]]))
    with pytest.raises(Diverged, match="accuracy became nan after step 0"):
        t.evaluate(t.test_data)


@pytest.mark.parametrize("final", [False, True])
def test_a_translation_of_what_is_no_number_is_divergence(final: bool, pairs: Path, tmp_path: Path) -> None:
    t = trainer(small("mt", data__max_len=16), load_task("mt", pairs, 16), tmp_path / "c.pt")
    with torch.no_grad():
        t.model.positions[3] = math.nan  # type: ignore[index, operator]
    with pytest.raises(Diverged, match="the log-probability of a translation became nan after step 0"):
        t.evaluate(t.test_data, final)


@pytest.mark.parametrize("rows_", [1, 3, 8, 500])
def test_every_segment_is_read_once_whatever_the_rows(rows_: int, book: Path, tmp_path: Path) -> None:
    config = small("lm", data__max_len=16, train__batch_size=rows_, evaluation__carry_state=True)
    t = trainer(config, load_task("lm", book, 16), tmp_path / "c.pt")
    assert isinstance(t.objective, LanguageModelling)
    with torch.inference_mode():
        seen = [int(i) for indices, *_ in t.objective._carried(t.model.eval(), t.test_data) for i in indices]
    assert sorted(seen) == list(range(len(t.test_data)))


def test_a_growing_state_cannot_be_carried() -> None:
    for model in ("softmax", "sdpa"):
        with pytest.raises(ConfigError, match="cannot carry"):
            small("lm", model, evaluation__carry_state=True)
    with pytest.raises(ConfigError, match="whole splits"):
        small("lm", "rfa", evaluation__carry_state=True, data__test_items=5)


@pytest.fixture
def pairs(tmp_path: Path) -> Path:
    """Sentences of a language of twelve, each with its own words backwards."""
    from tasks.parquet import write_parquet

    words = "red green blue white black brown".split()
    source = [" ".join(words[(i + j * k) % 6] for j in range(4)) for i in range(6) for k in (1, 5)]
    target = [" ".join(reversed(s.upper().split())) for s in source]
    for split in ("train", "validation", "test"):
        many = 20 if split == "train" else 1
        write_parquet(tmp_path / f"{split}.parquet", {"en": source * many, "de": target * many})
    return tmp_path


@pytest.mark.parametrize("model", ["sdpa", "rfa-gate"])
def test_a_translator_learns(model: str, pairs: Path, tmp_path: Path) -> None:
    config = small("mt", model, model__dim=32, model__dropout=0.0, data__max_len=16, train__steps=300,
                   train__batch_size=24, train__lr=0.05, train__warmup=30, train__eval_every=150)  # fmt: skip
    t = trainer(config, load_task("mt", pairs, 16), tmp_path / "c.pt")
    t.fit()
    tested, _ = t.test()
    assert tested.value > 60  # a copy has none
    assert score_of_summands(tested, len(t.test_data), "BLEU") == pytest.approx(tested.value)
    assert t.progress.validation_curve[-1][1] > 60


@pytest.mark.parametrize("task", ["text", "retrieval", "lm", "mt"])
def test_compiled_training_has_the_shapes_that_were_compiled_and_timed(task: str) -> None:
    objective = objective_of(small(task))
    data = objective.on_device(load_task(task, "embedded", 64).train, torch.device("cpu"), trim=False)
    batch = data.batch(np.arange(8))
    assert [t.shape for t in batch.tokens] == [t.shape for t in objective.random_batch().tokens]


@pytest.mark.parametrize("task", ["lm", "mt", "wikitext103", "wmt14-de", "wmt14-fr"])
@pytest.mark.parametrize("protocol", ["quick", "compact", "paper"])
def test_every_protocol_can_be_built_and_estimated(task: str, protocol: str) -> None:
    config = resolve(task, "rfa", protocol)
    with torch.device("meta"):
        objective_of(config).build_model()
    if protocol == "quick":
        estimate = estimate_step(config)
        assert estimate.flops > 0 < estimate.memory_bytes


def test_the_paper_s_sizes() -> None:
    with torch.device("meta"):
        model = objective_of(resolve("wikitext103", "rfa", "paper")).build_model()
    config = resolve("wikitext103", "rfa", "paper")
    assert (config.model.num_layers, config.data.max_len, config.train.steps) == (16, 512, 150_000)
    assert 230e6 < sum(p.numel() for p in model.parameters()) < 260e6  # Baevski and Auli's 247 million
    assert config.attention.settings["num_features"] == 64
    translation = resolve("wmt14-de", "rfa-gate", "paper").attention
    assert (translation.cross["num_features"], translation.cross["gate"]) == (128, False)
    assert (translation.settings["num_features"], translation.settings["gate"]) == (64, True)


@pytest.mark.parametrize(
    ("task", "model", "form"),
    [("lm", "linformer", "causal"), ("mt", "reformer", "causal"), ("text", "rfa-gate", "encoder")],
)
def test_models_that_cannot_are_refused_in_one_line(task: str, model: str, form: str) -> None:
    with pytest.raises(ConfigError, match=f"model '{model}' has no {form} form"):
        resolve(task, model, "quick")


def test_lower_is_better_where_it_is(make_record: Callable[..., Record]) -> None:
    def scored(model: str, score: float, half: float) -> Record:
        record = make_record(model, dataset="shakespeare")
        config = resolve("lm", model, "quick")
        result = Score(metric="bits per byte", score=score, ci95=(score - half, score + half), last_score=score,
                       validation_score=score, best_step=200)  # fmt: skip
        data = record.data.model_copy(update={"baselines": {"byte frequencies": 4.8, "better guess": 3.5}})
        return record.model_copy(update={"config": config, "result": result, "data": data})

    tables = build_tables([scored("softmax", 2.5, 0.1), scored("rfa", 2.2, 0.1), scored("linear", 2.25, 0.1)])
    (table,) = tables
    assert [e.label for e in table.entries] == ["rfa", "linear", "softmax"]
    assert [table.rank(e) for e in table.entries] == ["1=", "1=", "3"]
    flat = rows(tables)
    assert [r["model"] for r in flat] == ["rfa", "linear", "softmax", "byte frequencies", "better guess"]
    assert (flat[0]["metric"], flat[0]["score"], flat[0]["accuracy"]) == ("bits per byte", 2.2, None)
    text = markdown(tables)
    assert "| bits per byte |" in text
    assert "Lower is better" in text
    assert text.index("better guess") < text.index("byte frequencies")  # the best guess is the nearest to the models


def test_command_line_from_text_to_table(book: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options = [f"--set={key}={value}" for key, value in TINY.items()]
    done = lra_bench("bench", "--task", "lm", "--models", "sdpa,rfa-gate", "--data", book, "--out", out, *options)
    assert done.returncode == 0, done.stderr
    table = list(csv.DictReader((out / "leaderboard.csv").open(newline="")))
    assert [row["metric"] for row in table[:2]] == ["bits per byte"] * 2
    assert all(1 < float(row["score"]) < 9 for row in table)
    assert [row["status"] for row in table] == ["ok", "ok", "baseline", "baseline"]
    assert "bits per byte" in done.stderr
    refused = lra_bench("bench", "--task", "lm", "--models", "linformer", "--data", book, "--out", out)
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "no causal form" in refused.stderr


def test_the_documented_mix_translates(tmp_path: Path) -> None:
    plugin = tmp_path / "mixed.py"
    plugin.write_text(code_block("docs/language.md", "# mixed.py"))
    load_plugins([str(plugin)])
    config = resolve("mt", "rfa-exact-across", "quick", overrides={**TINY, "cross.num_features": 8})
    model = objective_of(config).build_model().eval()
    source, target = torch.randint(3, 300, (2, 9)), torch.randint(3, 300, (2, 5))
    mask = torch.arange(9) >= torch.tensor([[5], [9]])
    expected = model(source, mask, target)
    torch.testing.assert_close(model(torch.where(mask, 7, source), mask, target), expected)
    assert not torch.equal(model(torch.where(mask, 7, source), None, target), expected)
    translated = model.translate(source, mask, begin=1, end=2, max_steps=4, beam=2)  # type: ignore[operator]
    assert translated.shape[0] == 2
