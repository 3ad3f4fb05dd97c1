"""What every table takes for granted of an attention, tried on one layer: it looks neither ahead nor at padding."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from models import build_attention
from tasks import task_spec

from .config import RunConfig
from .resolve import NEEDS

# Three of the chunks that causal attentions compute in, where the configuration's sequences are as long.
LENGTH = 192
# Outputs count as moved by more than this share of what the same change does where it may. One token too many of LENGTH
# does more; the rounding of an attention in which what must not count cancels does far less.
SHARE = 0.01


class LooksAhead(Exception):
    """A causal attention's outputs change with later tokens."""


def check_conduct(config: RunConfig, device: torch.device) -> str:
    """Try the run's attention with initial weights, in float32; what tables should say of it, mostly nothing.

    One that cannot run so is not judged. Raises LooksAhead for a causal attention that sees later tokens.
    """
    model, attention, max_len = config.model, config.attention, config.data.max_len
    faults = set()
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []), torch.no_grad():
        torch.manual_seed(config.seed)
        x = torch.randn(1, min(max_len, LENGTH), model.dim, device=device)
        for form, which in NEEDS[task_spec(config.task).kind]:
            with suppress(Exception):
                settings = getattr(attention, which)
                layer = build_attention(attention.name, model.dim, model.num_heads, max_len, **settings)
                if _FAULTS[form](layer.to(device).eval(), x):
                    faults.add(form)
    if "causal" in faults:
        raise LooksAhead(f"attention {attention.name!r} looks ahead: its causal form changes with later tokens")
    return "looks at padding: its outputs change with what is under the mask" if faults else ""


def looks_ahead(layer: Any, x: Tensor) -> bool:
    """Whether the causal form's outputs before a token change with it. x: inputs to try, `[1, seq_len, dim]`."""
    seq_len = x.shape[1]
    positions = torch.arange(seq_len, device=x.device)
    for at in {seq_len // 2, seq_len - 2} & set(range(1, seq_len - 1)):
        moved = _moved(lambda t: layer.causal(t)[0], x, positions == at)
        # Its own output moves by far more, with its query.
        if moved[:at].max() > SHARE * moved[at + 1 :].max():
            return True
    return False


def looks_at_padding(layer: Any, x: Tensor) -> bool:
    """Whether outputs of real positions change with what is under the mask. x: as for `looks_ahead`."""
    padded = _last_third(x)
    return _sees(lambda t, mask: layer(t, padding_mask=mask)[:, ~padded], x, padded)


def looks_at_padded_memory(layer: Any, x: Tensor) -> bool:
    """The same of cross attention, to the mask of what it attends to."""
    return _sees(lambda t, mask: layer.cross(x, layer.remember(t, mask)), x, _last_third(x))


_FAULTS: dict[str, Callable[[Any, Tensor], bool]] = {
    "encoder": looks_at_padding,
    "causal": looks_ahead,
    "cross": looks_at_padded_memory,
}


def _last_third(x: Tensor) -> Tensor:
    seq_len = x.shape[1]
    return torch.arange(seq_len, device=x.device) >= (2 * seq_len + 2) // 3


def _sees(call: Callable[[Tensor, Tensor], Tensor], x: Tensor, padded: Tensor) -> bool:
    """Whether outputs change with x at the positions `padded` when they are masked, beside when they are not."""
    masked, shown = (
        _moved(lambda t, mask=mask[None]: call(t, mask), x, padded).max()  # type: ignore[misc]
        for mask in (padded, torch.zeros_like(padded))
    )
    return bool(masked > SHARE * shown)


def _moved(call: Callable[[Tensor], Tensor], x: Tensor, where: Tensor) -> Tensor:
    """By how much outputs move, `[seq_len]`, when x is another one at the positions `where`."""
    outputs = []
    for t in (x, torch.where(where[:, None], torch.randn_like(x), x)):
        torch.manual_seed(0)  # what an attention draws at random is the same both times
        outputs.append(call(t))
    return (outputs[0] - outputs[1]).abs().amax(dim=(0, 2))
