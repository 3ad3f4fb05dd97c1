"""The training loop: learning, seeds, resuming, divergence, schedules."""

import os
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accelerate import Accelerator
from torch import Tensor, nn

from lra_bench.build import build_model, count_parameters, estimate_step
from lra_bench.checkpoint import load_checkpoint, previous, random_state, save_checkpoint, set_random_state
from lra_bench.config import RunConfig
from lra_bench.optim import learning_rate_factor
from lra_bench.packing import unpack_bits
from lra_bench.trainer import Diverged, Trainer
from models.attention.softmax import SoftmaxAttention
from tasks import Task, load_task

from .conftest import tiny


@pytest.fixture
def task(reviews: Path) -> Task:
    return load_task("text", data=reviews, max_len=64)


def trainer(config: RunConfig, task: Task, checkpoint: Path) -> Trainer:
    torch.manual_seed(config.seed)
    return Trainer(config, build_model(config), task, Accelerator(cpu=True), checkpoint)


def outcome(t: Trainer) -> tuple[Any, ...]:
    weights = torch.cat([p.flatten() for p in t.model.parameters()])
    return t.progress.loss_curve, t.progress.validation_curve, weights.tolist()


@pytest.mark.parametrize("model", ["softmax", "sdpa", "rfa"])
def test_learns(task: Task, tmp_path: Path, model: str) -> None:
    t = trainer(tiny(model, train__steps=80, train__eval_every=40, train__lr=5e-3), task, tmp_path / "c.pt")
    t.fit()
    tested, _ = t.test()
    assert len(t.test_data) == 60
    assert tested.correct
    assert tested.correct > 50
    assert tested.value == 100 * tested.correct / 60
    assert unpack_bits(tested.right, 60).sum() == tested.correct
    assert t.progress.loss_curve[0][1] > 0.5 > t.progress.loss_curve[-1][1]
    assert t.epochs == 80 / (160 // 8)


def test_batches_are_of_like_lengths_where_that_is_asked_for(task: Task, tmp_path: Path) -> None:
    lengths, spread = task.train.total_lengths(), {}
    for grouped in (False, True):
        t = trainer(tiny(train__group_by_length=grouped), task, tmp_path / "c.pt")
        spread[grouped] = sum(int(np.ptp(lengths[t.order[step]])) for step in range(t.order.steps_per_epoch))
    assert spread[True] < spread[False] / 2


def test_only_what_is_recorded_is_evaluated_as_final(task: Task, tmp_path: Path) -> None:
    """Of translations the final evaluation is a beam search, and alone keeps what each item adds."""
    t = trainer(tiny(), task, tmp_path / "c.pt")
    evaluate, seen = t.objective.evaluate, []

    def noting(model: Any, data: Any, accelerator: Any, final: bool) -> Any:
        seen.append((data is t.test_data, final))
        return evaluate(model, data, accelerator, final)

    t.objective.evaluate = noting  # type: ignore[method-assign]
    t.fit()
    t.progress.best_step = 4  # so that the last weights are tested besides
    t.test()
    assert seen == [(False, False)] * 3 + [(True, True)] * 2


def test_same_seed_same_numbers_other_seed_others(task: Task, tmp_path: Path) -> None:
    runs = []
    for number, seed in enumerate((0, 0, 1)):
        t = trainer(tiny(seed=seed, model__dropout=0.1), task, tmp_path / f"{number}.pt")
        t.fit()
        runs.append(outcome(t))
    assert runs[0] == runs[1]
    assert runs[0] != runs[2]


@pytest.mark.parametrize("stop_at", [1, 4, 7, 11])
def test_interrupted_and_resumed_is_bit_equal(task: Task, tmp_path: Path, stop_at: int) -> None:
    config = tiny(model__dropout=0.1)
    unbroken = trainer(config, task, tmp_path / "unbroken.pt")
    unbroken.fit()

    first = trainer(config, task, tmp_path / "broken.pt")
    step, count = first.training_step, 0

    def stopping(batch: Any) -> Any:
        nonlocal count
        if count == stop_at:
            os.kill(os.getpid(), signal.SIGTERM)  # in the middle of the step, which is finished first
        count += 1
        return step(batch)

    stopping.model, stopping.optimizer = step.model, step.optimizer  # type: ignore[attr-defined]
    first.training_step = stopping  # type: ignore[assignment]
    with pytest.raises(KeyboardInterrupt):
        first.fit()
    assert first.progress.step == count == stop_at + 1
    assert 0 < first.progress.seconds < 60
    saved = [p for p in (tmp_path / "broken.pt", previous(tmp_path / "broken.pt")) if p.exists()]
    steps = [torch.load(path, weights_only=True)["progress"]["step"] for path in saved]
    assert steps == [step for step in (count, (count - 1) // 4 * 4) if step]  # two states, not one twice
    torch.manual_seed(12345)
    second = trainer(config, task, tmp_path / "broken.pt")
    second.fit()
    assert outcome(second) == outcome(unbroken)
    assert second.test() == unbroken.test()


def test_a_run_goes_on_where_it_sees_other_cards(monkeypatch: pytest.MonkeyPatch) -> None:
    states = {index: torch.tensor([index], dtype=torch.uint8) for index in range(3)}
    monkeypatch.setattr("torch.cuda.get_rng_state", lambda device: states[device.index])
    monkeypatch.setattr("torch.cuda.set_rng_state", lambda state, device: states.update({device.index: state}))
    state = random_state(torch.device("cuda:2"))
    del states[2]
    set_random_state(state, torch.device("cuda:0"))
    assert {index: value.item() for index, value in states.items()} == {0: 2, 1: 1}


def test_processes_that_go_on_together_draw_their_own_dropout(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tiny(train__steps=8, train__checkpoint_every=4)
    trainer(config, task, tmp_path / "c.pt").fit()
    following = trainer(config, task, tmp_path / "c.pt")
    monkeypatch.setattr(Accelerator, "is_main_process", False)
    torch.manual_seed(1)
    own = torch.get_rng_state()
    assert following.fit().step == 8
    assert torch.equal(torch.get_rng_state(), own)


def test_damaged_checkpoints_are_named_and_not_used(
    task: Task, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    checkpoint = tmp_path / "c.pt"
    trainer(tiny(), task, checkpoint).fit()
    for path in (checkpoint, previous(checkpoint)):
        path.write_bytes(path.read_bytes()[:-200])
    t = trainer(tiny(), task, checkpoint)
    t.fit()
    assert t.progress.step == 12
    errors = capsys.readouterr().err
    assert f"checkpoint {checkpoint} is damaged and not used" in errors
    assert f"checkpoint {previous(checkpoint)} is damaged and not used" in errors


def test_checkpoints_never_run_code(tmp_path: Path) -> None:
    import os
    import pickle

    class Hostile:
        def __reduce__(self) -> tuple[Any, ...]:
            return os.system, (f"touch {tmp_path / 'owned'}",)

    (tmp_path / "c.pt").write_bytes(pickle.dumps(Hostile()))
    assert load_checkpoint(tmp_path / "c.pt") is None
    torch.save({"x": Hostile()}, tmp_path / "d.pt")
    assert load_checkpoint(tmp_path / "d.pt") is None
    assert not (tmp_path / "owned").exists()


def test_failed_save_leaves_the_old_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_checkpoint(tmp_path / "c.pt", {"step": 1})

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(torch, "save", full)
    with pytest.raises(OSError, match="No space left"):
        save_checkpoint(tmp_path / "c.pt", {"step": 2})
    assert load_checkpoint(tmp_path / "c.pt") == {"step": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["c.pt"]


def test_best_validation_weights_are_tested(task: Task, tmp_path: Path) -> None:
    t = trainer(tiny(), task, tmp_path / "c.pt")
    t.fit()
    last = t.evaluate(t.test_data)
    t.progress.best_step = 4
    t.progress.best_state = {k: torch.zeros_like(v) for k, v in t.progress.best_state.items()}
    tested, last_accuracy = t.test()
    assert tested.value == 50.0  # all-zero weights choose class 0 always
    assert last_accuracy == last.value


def test_recent_weights_are_averaged(task: Task, tmp_path: Path) -> None:
    t = trainer(tiny(train__average=2), task, tmp_path / "c.pt")
    t.fit()
    older, newest = t.progress.recent_states
    t.test()
    for name, value in t.model.state_dict().items():
        torch.testing.assert_close(value, (older[name] + newest[name]) / 2)
    assert any(not torch.equal(older[name], newest[name]) for name in newest)


def test_complex_parameters_are_trained_averaged_and_resumed(
    task: Task, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a diagonal state-space model has them; in counts each is two."""

    class Phases(SoftmaxAttention):
        def __init__(self, *sizes: int, **shared: Any) -> None:
            super().__init__(*sizes, **shared)
            self.phases = nn.Parameter(torch.ones(self.head_dim, dtype=torch.complex64))

        def attend(self, q: Tensor, k: Tensor, v: Tensor, padding_mask: Tensor | None) -> Tensor:
            return super().attend(q, k, (v * self.phases).real, padding_mask)

    plain = count_parameters(tiny("softmax"))
    monkeypatch.setattr("models.registry._ATTENTIONS", {"softmax": Phases})
    config = tiny("softmax", train__average=2)
    assert count_parameters(config) == plain + 2 * 8
    t = trainer(config, task, tmp_path / "c.pt")
    t.fit()
    name = "encoder.blocks.0.attention.phases"
    older, newest = (state[name] for state in t.progress.recent_states)
    assert not torch.equal(older, newest)
    again = trainer(config, task, tmp_path / "c.pt")
    again.fit()
    assert torch.equal(again.model.get_parameter(name), newest)
    again.test()
    torch.testing.assert_close(again.model.get_parameter(name).detach(), (older + newest) / 2)


def test_divergence_is_noticed_and_the_last_good_checkpoint_kept(task: Task, tmp_path: Path) -> None:

    t = trainer(tiny(), task, tmp_path / "c.pt")
    step = t.training_step

    def astray(batch: Any) -> torch.Tensor:
        return step(batch) * (float("nan") if t.progress.step >= 9 else 1.0)

    t.training_step = astray  # type: ignore[assignment]
    astray.optimizer, astray.model = step.optimizer, step.model  # type: ignore[attr-defined]
    with pytest.raises(Diverged, match="the training loss became nan before step 10"):
        t.fit()
    state = load_checkpoint(tmp_path / "c.pt")
    assert state is not None
    assert state["progress"]["step"] == 8
    assert all(torch.isfinite(value).all() for value in state["model"].values())


def test_linear_schedule() -> None:
    train = tiny(train__steps=10, train__warmup=4).train
    factors = [learning_rate_factor(s, train) for s in range(10)]
    assert factors == pytest.approx([0.25, 0.5, 0.75, 1.0, 1.0, 5 / 6, 4 / 6, 3 / 6, 2 / 6, 1 / 6])
    short = tiny(train__steps=2, train__warmup=4).train
    assert [learning_rate_factor(s, short) for s in range(2)] == [0.25, 0.5]
    assert learning_rate_factor(0, tiny(train__warmup=0).train) == 1.0


def test_rsqrt_schedule_peaks_as_published() -> None:
    """True peaks of base 0.05: 1.58e-3 with 1,000 steps of warm-up, 5.6e-4 with 8,000."""
    for warmup, peak in ((1_000, 1.58e-3), (8_000, 5.6e-4)):
        train = tiny(train__schedule="rsqrt", train__lr=0.05, train__warmup=warmup, train__steps=20_000).train
        rates = [train.lr * learning_rate_factor(s, train) for s in range(20_000)]
        assert max(rates) == rates[warmup - 1] == pytest.approx(peak, rel=0.01)


def test_parameter_counts() -> None:
    softmax, rfa = count_parameters(tiny("softmax")), count_parameters(tiny("rfa"))
    assert softmax == sum(p.numel() for p in build_model(tiny("softmax")).parameters())
    assert rfa - softmax == 16


def test_what_needs_values_to_be_built_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """As performer-pytorch does, whose random matrix is factorised on the CPU."""

    class Factorised(SoftmaxAttention):
        def __init__(self, *sizes: int, **shared: Any) -> None:
            super().__init__(*sizes, **shared)
            self.w = nn.Parameter(torch.linalg.qr(torch.randn(self.head_dim, self.head_dim).cpu())[0])

    plain = count_parameters(tiny("softmax"))
    monkeypatch.setattr("models.registry._ATTENTIONS", {"softmax": Factorised})
    assert count_parameters(tiny("softmax")) == plain + 8 * 8


@pytest.mark.parametrize("model", ["softmax", "sdpa", "rfa"])
def test_estimate_grows_as_it_should(model: str) -> None:
    def at(length: int) -> tuple[int, int]:
        estimate = estimate_step(tiny(model, data__max_len=length))
        return estimate.memory_bytes, estimate.flops

    (memory, flops), (memory4, flops4) = at(2048), at(8192)
    if model == "softmax":
        assert memory4 > 12 * memory
    else:
        assert memory4 < 4.5 * memory
    assert flops4 > 10 * flops if model != "rfa" else flops4 < 4.5 * flops


def test_estimated_flops_by_hand() -> None:
    """One layer, without heads: projections, two attention products, MLP and classifier; backward costs twice."""
    config = tiny("softmax", train__batch_size=2, data__max_len=32)
    tokens, dim = 2 * 32, 16
    layer = 2 * tokens * dim * (3 * dim + dim) + 2 * 2 * tokens * 32 * dim + 2 * 2 * tokens * dim * 16
    head = 2 * 2 * dim * 16 + 2 * 2 * 16 * 2
    assert estimate_step(config).flops == 3 * (layer + head)
