"""A run's model, and what can be told of it without running it."""

from __future__ import annotations

import logging
import weakref
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import cycle
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only
from torch.utils.flop_counter import FlopCounterMode

from .config import AttentionConfig, RunConfig
from .objectives import objective_of
from .records import Mode
from .step import add_gradients


def build_model(config: RunConfig) -> nn.Module:
    """The model that `config` describes, newly initialised from torch's seeded generator."""
    return objective_of(config).build_model()


def count_parameters(config: RunConfig) -> int:
    """Number of trainable parameters, counted on the meta device where that can be; a complex one is two."""
    model = None
    with suppress(Exception), torch.device("meta"):  # it may need values, such as those of a matrix that it factorises
        model = build_model(config)
    model = model or build_model(config)
    return sum(p.numel() * (2 if p.is_complex() else 1) for p in model.parameters())


def parameters_ratio(config: RunConfig) -> float:
    """Parameters over those of the softmax transformer of the same sizes, which the rule for fair entries looks at."""
    softmax = config.model_copy(update={"attention": AttentionConfig(name="softmax", settings={})})
    return count_parameters(config) / count_parameters(softmax)


@dataclass(frozen=True)
class Estimate:
    """memory_bytes: of one training step, parameters and AdamW's state included; flops: of its matrix products."""

    memory_bytes: int
    flops: int


class _LiveMemory(TorchDispatchMode):
    """Bytes of all tensors alive, now and at most, by watching every storage that an operation makes.

    band_shares: what part of its words an adaptive vocabulary finds in each of its bands, since there are no values to
    look at.
    """

    def __init__(self, band_shares: Sequence[float]) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: set[int] = set()
        self._shares = cycle(band_shares)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.nonzero.default and (found := next(self._shares, None)) is not None:
            (mask,) = args
            result = torch.empty(round(found * mask.numel()), mask.dim(), dtype=torch.long, device=mask.device)
        else:
            result = func(*args, **(kwargs or {}))
        tree_map_only(Tensor, self._watch, result)
        return result

    def _watch(self, tensor: Tensor) -> None:
        storage = tensor.untyped_storage()
        key, size = storage._cdata, storage.nbytes()
        if key not in self._known:
            self._known.add(key)
            self.live += size
            self.peak = max(self.peak, self.live)
            weakref.finalize(storage, self._forget, key, size)

    def _forget(self, key: int, size: int) -> None:
        self._known.discard(key)
        self.live -= size


def estimate_step(config: RunConfig, mode: Mode = "train") -> Estimate:
    """Memory and operations of a step at full batch and length, in float32.

    The step runs once on fake tensors, which have shapes but no values: nothing is computed or allocated. Memory is
    the largest sum of tensors alive at once, plus AdamW's two moments. Raises whatever the attention raises where
    it needs real values, such as a branch on data.
    """
    # An attention that fails does so in a real step as well, which tells; torch would print it twice.
    logging.getLogger("torch._subclasses.fake_tensor").setLevel(logging.CRITICAL)
    counter = FlopCounterMode(display=False, custom_mapping=_cpu_attention_flops())
    objective = objective_of(config)
    with FakeTensorMode(), torch.device(config.device), _LiveMemory(objective.band_shares) as memory, counter:
        model = objective.build_model().train(mode == "train")
        batch = objective.random_batch()
        moments = 0
        if mode == "train":
            add_gradients(objective, model, batch)
            moments = 2 * sum(p.numel() * p.element_size() for p in model.parameters())
        else:
            with torch.no_grad():
                objective.outputs(model, batch)
    return Estimate(memory_bytes=memory.peak + moments, flops=counter.get_total_flops())


def _cpu_attention_flops() -> dict[Any, Any]:
    """Operation counts of torch's fused attention for CPUs, which its counter leaves out."""
    from torch.utils.flop_counter import sdpa_backward_flop_count, sdpa_flop_count

    aten = torch.ops.aten

    def forward(q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return sdpa_flop_count(q, k, v)

    def backward(grad: Any, q: Any, k: Any, v: Any, *args: Any, out_shape: Any = None, **kwargs: Any) -> int:
        return sdpa_backward_flop_count(grad, q, k, v)

    return {
        aten._scaled_dot_product_flash_attention_for_cpu: forward,
        aten._scaled_dot_product_flash_attention_for_cpu_backward: backward,
    }
