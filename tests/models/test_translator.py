"""The encoder-decoder: teacher forcing against decoding step by step, padding, beam search against all sequences."""

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from models import Translator, build_translator

from .helpers import ragged, shaken

VARIANTS: dict[str, dict[str, Any]] = {
    "softmax": {"attention": "softmax"},
    "sdpa": {"attention": "sdpa"},
    "linear": {"attention": "linear"},
    "rfa": {"attention": "rfa", "cross": {"num_features": 32}},
    "rfa-gate": {"attention": "rfa", "gate": True, "cross": {"gate": False}},
    "rfa-gate-arccos": {"attention": "rfa", "gate": True, "kernel": "arccos", "cross": {"gate": False}},
}
each_variant = pytest.mark.parametrize("variant", VARIANTS)
BEGIN, END = 1, 2


def build(variant: str, vocab_size: int = 13) -> Translator:
    settings = dict(VARIANTS[variant])
    model = build_translator(
        settings.pop("attention"), vocab_size=vocab_size, max_len=24, dim=16, num_heads=2, mlp_dim=16, **settings
    )
    return shaken(model)


@each_variant
def test_step_by_step_is_teacher_forcing(variant: str) -> None:
    model, (source, mask) = build(variant), ragged(9, 4)
    target = torch.randint(3, 13, (2, 8))
    whole = model(source, mask, target)
    memories, states, steps = model.remember(model.encode(source, mask), mask), None, []
    for t in range(8):
        logits, states = model.decode(target[:, t : t + 1], memories, states, t, keep_state=True)
        steps.append(logits)
    torch.testing.assert_close(torch.cat(steps, dim=1), whole)


@each_variant
def test_a_target_never_sees_its_future_and_a_source_no_padding(variant: str) -> None:
    model, (source, mask) = build(variant), ragged(9, 4)
    target = torch.randint(3, 13, (2, 8))
    changed = target.clone()
    changed[:, 5] = 3 + (changed[:, 5] - 2) % 10
    before, after = model(source, mask, target), model(source, mask, changed)
    torch.testing.assert_close(before[:, :5], after[:, :5], atol=0, rtol=0)
    assert not torch.allclose(before[:, 5], after[:, 5])
    alone = model(source[1:, :4], mask[1:, :4], target[1:])
    torch.testing.assert_close(before[1:], alone)
    noisy = source.masked_fill(mask, 7)
    torch.testing.assert_close(model(noisy, mask, target), before)


@each_variant
def test_greedy_takes_the_likeliest_token_each_time(variant: str) -> None:
    model, (source, mask) = build(variant), ragged(9, 4)
    found = model.translate(source, mask, begin=BEGIN, end=END, max_steps=10)
    whole = model.translate(source[:1], None, begin=BEGIN, end=END, max_steps=10)  # a sentence without padding
    assert [t for t in whole[0].tolist() if t] == [t for t in found[0].tolist() if t]
    for row in range(2):
        prefix = torch.tensor([[BEGIN]])
        for token in found[row].tolist():
            logits = model(source[row : row + 1], mask[row : row + 1], prefix)[0, -1].clone()
            logits[0] = -torch.inf
            assert token == int(logits.argmax())
            if token == END:
                break
            prefix = torch.cat((prefix, torch.tensor([[token]])), dim=1)


@each_variant
@pytest.mark.parametrize("beam", [1, 4])
def test_nothing_follows_an_end(variant: str, beam: int) -> None:
    model, (source, mask) = build(variant), ragged(9, 4, 6)
    options = {"begin": BEGIN, "max_steps": 10, "beam": beam}
    endless = model.translate(source, mask, end=-1, **options)
    end = int(endless[0, 4])
    found = model.translate(source, mask, end=end, **options)
    ends = (found == end).cumsum(dim=1)
    assert ends.max() == 1
    assert (found[(ends == 1) & (found != end)] == 0).all()
    if beam == 1:
        for row, tokens in enumerate(endless.tolist()):
            length = tokens.index(end) + 1 if end in tokens else len(tokens)
            assert [t for t in found[row].tolist() if t] == tokens[:length]


def log_probability(model: Translator, source: Tensor, mask: Tensor, tokens: tuple[int, ...]) -> float:
    target = torch.tensor([[BEGIN, *tokens]])
    logits = model(source, mask, target)[0].log_softmax(-1)
    return float(sum(logits[i, token] for i, token in enumerate(tokens)).detach())  # type: ignore[union-attr]


@pytest.mark.parametrize("variant", ["softmax", "rfa", "rfa-gate"])
@pytest.mark.parametrize("length_penalty", [0.0, 0.6, 8.0])
def test_a_beam_that_holds_everything_finds_the_best(variant: str, length_penalty: float) -> None:
    model, (source, mask) = build(variant, vocab_size=13), ragged(5)
    steps = 2
    # What is likeliest at once is the end, so that it depends on the penalty whether a longer one is better.
    end = int(model.translate(source, mask, begin=BEGIN, end=-1, max_steps=1))
    # Everything that ends within two tokens, and everything that does not end.
    ending = [(end,)] + [(t, end) for t in range(1, 13) if t != end]
    unfinished = [c for c in itertools.product(range(1, 13), repeat=steps) if end not in c]
    candidates = ending + unfinished
    scored = {c: log_probability(model, source, mask, c) / len(c) ** length_penalty for c in candidates}
    best = max(scored, key=lambda c: scored[c])
    assert len(best) == (2 if length_penalty == 8.0 else 1)
    found = model.translate(
        source, mask, begin=BEGIN, end=end, max_steps=steps, beam=150, length_penalty=length_penalty
    )
    assert tuple(t for t in found[0].tolist() if t) == best


@each_variant
def test_a_beam_is_never_worse_than_greedy_and_rows_do_not_mix(variant: str) -> None:
    model, (source, mask) = build(variant), ragged(9, 4, 6)
    options = {"begin": BEGIN, "end": END, "max_steps": 6, "length_penalty": 0.0}
    found = {beam: model.translate(source, mask, beam=beam, **options) for beam in (1, 4)}  # type: ignore[arg-type]

    def score(row: int, beam: int) -> float:
        tokens = tuple(t for t in found[beam][row].tolist() if t)
        return log_probability(model, source[row : row + 1], mask[row : row + 1], tokens)

    assert sum(score(row, 4) for row in range(3)) >= sum(score(row, 1) for row in range(3)) - 1e-9
    alone = model.translate(source[1:2, :4], mask[1:2, :4], beam=4, **options)  # type: ignore[arg-type]
    row = found[4][1].tolist()
    assert [t for t in row if t] == [t for t in alone[0].tolist() if t]


@each_variant
def test_a_model_in_training_translates_as_in_evaluation_and_stays_in_training(variant: str) -> None:
    model, (source, mask) = build(variant), ragged(9, 4)
    options = {"begin": BEGIN, "end": END, "max_steps": 20}
    for beam in (1, 4):
        expected = model.eval().translate(source, mask, beam=beam, **options)
        assert torch.equal(model.train().translate(source, mask, beam=beam, **options), expected)
        assert all(module.training for module in model.modules())


@each_variant
def test_a_mask_of_numbers_is_refused(variant: str) -> None:
    model, (source, mask) = build(variant), ragged(9, 4)
    with pytest.raises(TypeError, match=r"expected torch.bool, True = padding"):
        model.remember(model.encode(source, mask), mask.long())


def test_attentions_without_the_forms_are_refused() -> None:
    with pytest.raises(TypeError, match="no causal form"):
        build_translator("linformer", vocab_size=9, max_len=8)
    with pytest.raises(TypeError, match="no cross form"):
        build_translator("rfa", vocab_size=9, max_len=8, gate=True)
