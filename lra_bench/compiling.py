"""Whether a training step is compiled: where it is asked for and works."""

from __future__ import annotations

import sys
import warnings

import torch
from accelerate import Accelerator

from .config import RunConfig, reason_of
from .memory import is_out_of_memory
from .objectives import objective_of
from .step import TrainingStep


def compiles(config: RunConfig, accelerator: Accelerator, full: bool = False) -> bool:
    """Whether the configuration asks for compilation and its training step compiles here.

    The step is compiled now, on a model that is thrown away, so that no later measurement includes it. Where that
    fails, for want of a compiler or because of the attention, one line on stderr says so. full: of the batches that
    will follow, see Batch.
    """
    if not config.train.compile:
        return False
    reason = _missing_compiler(config.device)
    if reason is None:
        torch.manual_seed(config.seed)
        objective = objective_of(config.per_process(accelerator.num_processes))
        with accelerator.device:
            batch = objective.random_batch(full)
        try:
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")  # of torch about itself
            warnings.filterwarnings("ignore", "TensorFloat32 tensor cores")  # see set_matmul_precision
            step = TrainingStep(objective, objective.build_model().to(accelerator.device).train(), accelerator, True)
            for _ in range(3 if step.mode else 1):  # CUDA graphs: once to warm up, once to capture, once to replay
                step(batch)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            torch.compiler.reset()
            reason = reason_of(error)
        finally:
            accelerator.free_memory()
    if reason:
        print(f"warning: {config.model_name} runs without torch.compile ({reason})", file=sys.stderr)
    return reason is None


def _missing_compiler(device: str) -> str | None:
    if device == "cuda":
        from torch.utils._triton import has_triton

        return None if has_triton() else "no triton for this card"
    from torch._inductor.cpp_builder import get_cpp_compiler
    from torch._inductor.exc import InvalidCxxCompiler

    try:
        get_cpp_compiler()
    except InvalidCxxCompiler:
        return "no C++ compiler found"
    return None
