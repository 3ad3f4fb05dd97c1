"""Embedding and output layer with shared weights, plain and adaptive."""

import pytest
import torch
from torch.nn import functional as F

from models.vocabulary import AdaptiveVocabulary, Vocabulary

SIZE, DIM = 50, 16


@pytest.fixture(params=["plain", "adaptive"])
def vocabulary(request: pytest.FixtureRequest) -> Vocabulary | AdaptiveVocabulary:
    torch.manual_seed(0)
    made = Vocabulary(SIZE, DIM) if request.param == "plain" else AdaptiveVocabulary(SIZE, DIM, [10, 30])
    return made.double()


def test_losses_are_those_of_the_logits(vocabulary: Vocabulary | AdaptiveVocabulary) -> None:
    hidden, targets = torch.randn(3, 7, DIM, dtype=torch.float64), torch.randint(SIZE, (3, 7))
    expected = F.cross_entropy(vocabulary.logits(hidden).transpose(1, 2), targets, reduction="none")
    torch.testing.assert_close(vocabulary.losses(hidden, targets).double(), expected, rtol=1e-5, atol=1e-5)
    assert vocabulary.logits(hidden).shape == (3, 7, SIZE)


def test_adaptive_losses_are_torchs() -> None:
    torch.manual_seed(0)
    vocabulary, hidden = AdaptiveVocabulary(SIZE, DIM, [10, 30]), torch.randn(3, 7, DIM, requires_grad=True)
    for highest in (SIZE, 30):  # also where no target is of the last band
        targets = torch.randint(highest, (3, 7))
        ours = vocabulary.losses(hidden, targets)
        theirs = -vocabulary.softmax(hidden.flatten(0, 1), targets.flatten()).output.view_as(targets)
        torch.testing.assert_close(ours, theirs)
        inputs = [hidden, *vocabulary.parameters()]
        gradients = [torch.autograd.grad(x.sum(), inputs, materialize_grads=True) for x in (ours, theirs)]
        torch.testing.assert_close(*gradients)


def test_losses_are_of_float32_under_bf16(vocabulary: Vocabulary | AdaptiveVocabulary) -> None:
    vocabulary, hidden, targets = vocabulary.float(), torch.randn(3, 7, DIM), torch.randint(SIZE, (3, 7))
    with torch.autocast("cpu", torch.bfloat16):
        losses = vocabulary.losses(hidden, targets)
    assert losses.dtype == torch.float32
    torch.testing.assert_close(losses, vocabulary.losses(hidden, targets), rtol=0.02, atol=0.02)


def test_every_id_has_its_own_vector_of_unit_size(vocabulary: Vocabulary | AdaptiveVocabulary) -> None:
    vectors = vocabulary.embed(torch.arange(SIZE).unsqueeze(0))[0]
    assert vectors.shape == (SIZE, DIM)
    assert len(torch.unique(vectors, dim=0)) == SIZE
    assert 0.1 < float(vectors.detach().std()) < 1.5


def test_adaptive_inputs_by_hand() -> None:
    vocabulary = AdaptiveVocabulary(SIZE, DIM, [10, 30])
    head, tail = vocabulary.softmax.head.weight, vocabulary.softmax.tail
    for token, expected in ((9, head[9]), (10, tail[0][1].weight[0] @ tail[0][0].weight), (49, tail[1][1].weight[19])):
        vector = vocabulary.embed(torch.tensor([[token]]))[0, 0] / DIM**0.5
        torch.testing.assert_close(vector, expected @ tail[1][0].weight if token == 49 else expected)
    assert tail[0][0].weight.shape == (4, DIM)
    assert tail[1][0].weight.shape == (1, DIM)


def test_weights_learn_from_both_ends() -> None:
    vocabulary = AdaptiveVocabulary(SIZE, DIM, [10, 30])
    tokens = torch.arange(SIZE).unsqueeze(0)
    vocabulary.losses(vocabulary.embed(tokens), tokens.roll(1)).sum().backward()
    assert all(p.grad is not None and bool(p.grad.abs().sum() > 0) for p in vocabulary.parameters())
