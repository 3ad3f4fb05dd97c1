"""torch.compile, block by block: one compilation serves every layer, and evaluation stays eager."""

from __future__ import annotations

import sys
import warnings

import torch
from accelerate import Accelerator

from models import Classifier

from .build import build_model, random_batch
from .config import RunConfig
from .memory import is_out_of_memory


def compile_blocks(model: Classifier) -> None:
    """Compile the encoder's blocks for fixed shapes, in place; parameters keep their names."""
    for block in model.encoder.blocks:
        block.compile(dynamic=False)


def compiles(config: RunConfig, accelerator: Accelerator) -> bool:
    """Whether the configuration asks for compilation and its training step compiles here.

    The step is compiled now, on a model that is thrown away, so that no later measurement includes it. Where that
    fails, for want of a compiler or because of the attention, one line on stderr says so.
    """
    from .trainer import TrainingStep

    if not config.train.compile:
        return False
    reason = _missing_compiler(config.device)
    if reason is None:
        torch.manual_seed(config.seed)
        with accelerator.device:
            batch = random_batch(config)
        try:
            warnings.filterwarnings("ignore", category=FutureWarning, module=r"torch\.")  # of torch about itself
            TrainingStep(build_model(config).to(accelerator.device).train(), config, accelerator, compiled=True)(batch)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            torch.compiler.reset()
            reason = f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0]}"
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
