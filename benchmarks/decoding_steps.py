"""Steps that `make decode` compares: a layer's own, compiled, or captured as a CUDA graph."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._inductor import config as inductor_config
from torch.utils._pytree import tree_map, tree_map_only

from models import build_attention

Step = Callable[[Tensor, Any], tuple[Tensor, Any]]

# Attentions and their settings.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {}),
    "sdpa": ("sdpa", {}),
    "linear": ("linear", {}),
    "rfa": ("rfa", {}),
    "rfa-gate": ("rfa", {"gate": True}),
}


class Variant(NamedTuple):
    """How a layer decodes. in_place: whether its step updates a state of constant size where it lies."""

    attention: str
    settings: dict[str, Any]
    compiled: bool
    in_place: bool = False


def variants_of(plugged: Iterable[str] = ()) -> dict[str, Variant]:
    """What can be compared, by name; plugged: attentions from plugins."""
    layers = OURS | {name: (name, {}) for name in plugged}
    constant = ("linear", "rfa")
    eager = {name: Variant(*layer, compiled=False) for name, layer in layers.items()}
    compiled = {
        f"{name} compiled": Variant(*layer, compiled=True, in_place=layer[0] in constant)
        for name, layer in layers.items()
        if name != "sdpa"  # which is one kernel as it is
    }
    return eager | compiled


class CapturedStep:
    """A step as a CUDA graph: launching its small kernels one by one takes longer than running them.

    For states of constant size, which the step updates in place.
    """

    def __init__(self, step: Step) -> None:
        self.step = step
        self.graph: torch.cuda.CUDAGraph | None = None

    def __call__(self, x: Tensor, state: Any) -> tuple[Tensor, Any]:
        if state is None:
            return self.step(x, None)
        if self.graph is None:
            self.x, self.state = x.clone(), tree_map_only(Tensor, torch.clone, state)
            self.step(
                self.x, tree_map_only(Tensor, torch.clone, state)
            )  # what is set up at a first call is no part of it
            torch.cuda.synchronize()
            self.graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self.graph):
                self.y, self.after = self.step(self.x, self.state)
                self.x.copy_(self.y)  # for the next token: between two replays nothing is launched
        elif state is not self.after:
            tree_map(_copy, self.state, state)
        if x is not self.y:
            self.x.copy_(x)
        self.graph.replay()
        return self.y, self.after


@contextmanager
def for_inference() -> Iterator[None]:
    """No gradients; and what torch.compile compiles packs its weights, as constants, and multiplies by oneDNN."""
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    # What makes Inductor choose oneDNN, which computes in float32 where a processor has no TF32.
    matmul.fp32_precision = "tf32"
    try:
        # A gated state is made of more tensors than Inductor by itself reads in one pass.
        with torch.inference_mode(), inductor_config.patch(freezing=True, realize_reads_threshold=8):
            yield
    finally:
        matmul.fp32_precision = before


def build_layer(variant: Variant, arguments: Any, length: int) -> Any:
    """The variant's layer for `length` tokens, and two more."""
    torch.manual_seed(0)
    # One token more for the memory of a step, and one because a compiled slice of a whole cache is another program.
    layer = build_attention(variant.attention, arguments.dim, arguments.heads, length + 2, **variant.settings)
    return layer.to(arguments.device).eval()


def build_step(variant: Variant, arguments: Any, length: int) -> Step:
    """The layer's step from (token, state) to (token, state)."""
    layer = build_layer(variant, arguments, length)

    def step(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return layer.causal(x, state, keep_state=True)

    if not variant.compiled:
        return step
    if arguments.device.startswith("cuda") and variant.in_place:
        return CapturedStep(step)
    later = torch.compile(step)
    return lambda x, state: step(x, None) if state is None else later(x, state)


def _copy(own: Any, other: Any) -> Any:
    return own.copy_(other) if isinstance(own, Tensor) else own
