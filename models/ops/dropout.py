"""Dropout that draws little: random numbers, not arithmetic, are what it costs on a CPU."""

import torch
from torch import Tensor
from torch.nn import functional as F

# An element is dropped by 16 random bits: four of them to a draw of 64.
LEVELS = 1 << 16


def drop(x: Tensor, p: float) -> Tensor:
    """Each element of x set to zero with probability p, the others divided by 1 - p (Srivastava et al. 2014).

    On a CPU p is rounded to a multiple of 2^-16 and the numbers are those of torch's generator, eager and compiled
    alike: torch makes a draw of its own for every element, and compiled one after the other. Elsewhere it is torch's.
    x: any shape and floating type. Returns the same. Raises ValueError for p outside 0 to 1.
    """
    if p == 0.0:
        return x
    dropped = round(p * LEVELS)
    if x.device.type != "cpu" or not 0 <= dropped < LEVELS:
        return F.dropout(x, p)
    draws = torch.empty(-(-x.numel() // 4), dtype=torch.int64, device=x.device).random_(-(1 << 63), None)
    kept = draws.view(torch.int16)[: x.numel()].view(x.shape) >= dropped - LEVELS // 2  # 16 bits with their sign
    return (x * kept).mul_(LEVELS / (LEVELS - dropped))
