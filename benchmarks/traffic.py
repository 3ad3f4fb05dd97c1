"""What the operations of an eager training step read and write: its least time on a device bound by its memory.

`text` under `compact` in bf16, without dropout, which CPU and GPU do in different operations; counted on a CPU with a
few sequences and scaled to the protocol's batch.
"""

from __future__ import annotations

import argparse
from typing import Any

from accelerate import Accelerator
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from lra_bench.objectives import objective_of
from lra_bench.resolve import resolve
from lra_bench.step import TrainingStep

BATCH, SEQUENCES = 32, 2
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default="softmax,sdpa,rfa,linear,performer,linformer,reformer")
    parser.add_argument("--length", type=int, default=4096)
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=True, mixed_precision="bf16")
    overrides = {
        "train.batch_size": SEQUENCES,
        "data.max_len": arguments.length,
        "model.dropout": 0.0,
        "model.attention_dropout": 0.0,
    }
    for model in arguments.models.split(","):
        objective = objective_of(resolve("text", model, "compact", overrides=overrides))
        batch = objective.random_batch()
        step = TrainingStep(objective, objective.build_model().train(), accelerator)
        step(batch)  # the optimiser's state appears
        with Traffic() as traffic:
            step(batch)
        gigabytes = traffic.bytes * BATCH / SEQUENCES / 1e9
        print(f"{model}: {gigabytes:.1f} GB a step of {BATCH} x {arguments.length:,}, {traffic.operations} operations")


if __name__ == "__main__":
    main()
