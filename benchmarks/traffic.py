"""What bounds a training step on a card from below: the bytes that its operations read and write, and the host's time.

`text` under `compact` in bf16, without dropout, which CPU and GPU do in different operations, and without padding;
counted on a CPU with a few sequences and scaled to the protocol's batch. Of a compiled step the blocks are counted as
Inductor itself does for the kernels that it makes, the rest is eager. The host's time, in which it launches a step's
operations, is that of a step with next to nothing to compute, here and on one thread.
"""

from __future__ import annotations

import argparse
import logging
import warnings
from statistics import median
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra_bench.batching import Batch
from lra_bench.objectives import objective_of
from lra_bench.profiler import time_steps
from lra_bench.resolve import resolve
from lra_bench.step import TrainingStep, build_accelerator

BATCH, SEQUENCES, LAYERS = 32, 2, 2
# They hand memory out or look at it differently.
NO_TRAFFIC = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "_unsafe_view", "detach"}


class Traffic(TorchDispatchMode):
    """Counts operations, and the bytes of the tensors that they take and return."""

    def __init__(self) -> None:
        super().__init__()
        self.operations = self.bytes = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func.overloadpacket.__name__ not in NO_TRAFFIC:
            tensors = {id(t): t for t in tree_leaves((args, kwargs, result)) if isinstance(t, Tensor)}
            self.operations += 1
            # An expanded tensor is no larger than what it repeats.
            self.bytes += sum(min(t.nbytes, t.untyped_storage().nbytes()) for t in tensors.values())
        return result


def eager(model: str, length: int, layers: int) -> Traffic:
    """The traffic of an eager step."""
    step, batch = build(model, length, layers, compiled=False)
    step(batch)  # the optimiser's state appears
    with Traffic() as traffic:
        step(batch)
    return traffic


def compiled_block(model: str, length: int) -> int:
    """Bytes that the compiled kernels of a block read and write, forward and backward."""
    from torch._inductor import compile_fx, config, metrics

    # Inductor counts for its log alone.
    log = compile_fx.inductor_metrics_log
    log.setLevel(logging.INFO)
    log.propagate = False
    torch.compiler.reset()
    metrics.reset()
    step, batch = build(model, length, layers=1, compiled=True)
    with config.patch(fx_graph_cache=False):
        step(batch)
    return metrics.num_bytes_accessed


def host_ms(model: str, compiled: bool) -> float:
    """Median milliseconds of a step over a few tokens."""
    torch.compiler.reset()
    step, batch = build(model, 8, LAYERS, compiled)
    return median(time_steps(lambda: step(batch), torch.device("cpu")).median for _ in range(11))


def build(model: str, length: int, layers: int, compiled: bool) -> tuple[TrainingStep, Batch]:
    """A step and a batch for it."""
    overrides = {
        "train.batch_size": SEQUENCES,
        "data.max_len": length,
        "model.num_layers": layers,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
        "train.precision": "bf16",
    }
    config = resolve("text", model, "compact", overrides=overrides)
    objective = objective_of(config)
    step = TrainingStep(objective, objective.build_model().train(), build_accelerator(config), compiled)
    return step, objective.random_batch(full=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="softmax,sdpa,rfa,linear,performer,linformer,reformer")
    parser.add_argument("--length", type=int, default=4096)
    arguments = parser.parse_args()
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    for model in arguments.models.split(","):
        one, all_ = (eager(model, arguments.length, layers) for layers in (1, LAYERS))
        outside = one.bytes - (all_.bytes - one.bytes) / (LAYERS - 1)
        compiled = outside + LAYERS * compiled_block(model, arguments.length)
        gigabytes, compiled_gigabytes = (n * BATCH / SEQUENCES / 1e9 for n in (all_.bytes, compiled))
        print(
            f"{model}, a step of {BATCH} x {arguments.length:,}: {gigabytes:.1f} GB eager in {all_.operations}"
            f" operations, {compiled_gigabytes:.1f} GB with compiled blocks; on the host"
            f" {host_ms(model, False):.1f} ms eager, {host_ms(model, True):.1f} ms compiled",
            flush=True,
        )


if __name__ == "__main__":
    main()
