"""Whole models of exact softmax against torch's own pre-norm transformer layers with the same weights."""

import math
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from models import build_decoder, build_encoder, build_translator
from models.encoder import sinusoidal_positions

from .helpers import ragged, shaken

DIM, HEADS, MLP, VOCABULARY, MAX_LEN = 16, 2, 24, 13, 20
SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "max_len": MAX_LEN, "dim": DIM, "num_heads": HEADS, "mlp_dim": MLP}
TORCH: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
NAMES = {"attention_norm": "norm1", "mlp.0": "linear1", "mlp.3": "linear2"}
EXACT = pytest.mark.parametrize("attention", ["softmax", "sdpa"])


def torch_layer(block: nn.Module, kind: type[nn.Module], attentions: dict[str, str], last_norm: str) -> nn.Module:
    """torch's layer with the weights of ours."""
    names = {**NAMES, "mlp_norm": last_norm}
    for ours, theirs in attentions.items():
        names |= {f"{ours}.qkv_proj": f"{theirs}.in_proj", f"{ours}.out_proj": f"{theirs}.out_proj"}
    state = {}
    for name, value in block.state_dict().items():
        module, _, kind_of = name.rpartition(".")
        theirs = names.get(module, "norm2")  # of cross attention
        state[f"{theirs}_{kind_of}" if theirs.endswith("in_proj") else f"{theirs}.{kind_of}"] = value
    layer = kind(DIM, HEADS, MLP, **TORCH).double().eval()
    layer.load_state_dict(state)
    return layer


def encoder_layer(block: nn.Module) -> nn.Module:
    return torch_layer(block, nn.TransformerEncoderLayer, {"attention": "self_attn"}, "norm2")


def decoder_layer(block: nn.Module) -> nn.Module:
    return torch_layer(
        block, nn.TransformerDecoderLayer, {"attention": "self_attn", "cross": "multihead_attn"}, "norm3"
    )


def run(layers: Sequence[nn.Module], x: Tensor, *inputs: Tensor, **masks: Tensor) -> Tensor:
    for layer in layers:
        x = layer(x, *inputs, **masks)
    return x


def future(seq_len: int) -> Tensor:
    return torch.ones(seq_len, seq_len, dtype=torch.bool).triu(1)


@EXACT
@pytest.mark.parametrize("cls_token", [False, True])
def test_the_encoder(attention: str, cls_token: bool) -> None:
    model = shaken(build_encoder(attention, **SIZES, cls_token=cls_token))
    ids, mask = ragged(9, 4)
    x = model.embedding(ids)  # type: ignore[operator]
    expected_mask = mask
    if cls_token:
        x = torch.cat((model.cls.expand(2, 1, DIM), x), dim=1)  # type: ignore[operator]
        expected_mask = F.pad(mask, (1, 0))
    x = x + model.positions[: x.shape[1]]  # type: ignore[index]
    layers = [encoder_layer(block) for block in model.blocks]  # type: ignore[union-attr]
    expected = model.norm(run(layers, x, src_key_padding_mask=expected_mask))  # type: ignore[operator]
    hidden, found_mask = model(ids, mask)
    assert torch.equal(found_mask, expected_mask)
    torch.testing.assert_close(hidden[~found_mask], expected[~expected_mask])


def embedded(model: nn.Module, ids: Tensor) -> Tensor:
    """Shared weights times the root of the width, and sines (Vaswani et al. 2017, sections 3.4 and 3.5)."""
    positions = sinusoidal_positions(MAX_LEN, DIM).double()
    return F.embedding(ids, model.vocabulary.weight) * math.sqrt(DIM) + positions[: ids.shape[1]]  # type: ignore


@EXACT
def test_the_language_model(attention: str) -> None:
    model = shaken(build_decoder(attention, **SIZES))
    ids, _ = ragged(12, 12)
    layers = [encoder_layer(block) for block in model.blocks]  # type: ignore[union-attr]
    hidden = model.norm(run(layers, embedded(model, ids), src_mask=future(12)))  # type: ignore[operator]
    torch.testing.assert_close(model(ids)[0], hidden @ model.vocabulary.weight.T)  # type: ignore[union-attr, operator]


@EXACT
def test_the_translator(attention: str) -> None:
    model = shaken(build_translator(attention, **SIZES))
    (source, mask), (target, _) = ragged(9, 4), ragged(7, 7)
    encoder = [encoder_layer(block) for block in model.encoder_blocks]  # type: ignore[union-attr]
    memory = model.encoder_norm(run(encoder, embedded(model, source), src_key_padding_mask=mask))  # type: ignore[operator]
    decoder = [decoder_layer(block) for block in model.decoder_blocks]  # type: ignore[union-attr]
    masks = {"tgt_mask": future(7), "memory_key_padding_mask": mask}
    hidden = model.decoder_norm(run(decoder, embedded(model, target), memory, **masks))  # type: ignore[operator]
    torch.testing.assert_close(model(source, mask, target), hidden @ model.vocabulary.weight.T)  # type: ignore[union-attr, operator]
