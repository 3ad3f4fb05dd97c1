"""What every table takes for granted of an attention, tried on one layer.

Its tokens see each other, but none that is ahead, padding or of another example; neither how much is padded nor chance
decides what comes out; and what it learns are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models import build_attention
from tasks import task_spec

from . import probes
from .config import RunConfig, reason_of
from .resolve import NEEDS
from .torch_settings import restore_settings

# As far as the configuration's sequences are as long: three of the chunks that our causal attentions compute in, and
# beyond the chunks or windows of others, at whose edges a token too many may be seen.
LENGTHS = (192, 1024)

AHEAD = "looks ahead: its causal form changes with later tokens"
PADDING = "looks at padding: its outputs change with what is under the mask"
LENGTH = "depends on how much is padded: with less of it its outputs are others, or none"
EXAMPLES = "mixes examples: its outputs change with the rest of the batch"
RANDOM = "draws at random in evaluation: its outputs are others at every pass"
SEEDS = "seeds torch's generator itself: runs of different seeds are alike"
STATE = "loses its state: its causal form gives other outputs token by token than in one pass"
CHANGES = "changes settings of torch that others run without"
WEIGHTS = "has weights that are no parameters: nothing trains or counts them"
NUMBERS = "gives what is no number: nan or infinity, with padding if not without"
ALONE = "mixes no tokens: its outputs change with no other token"
UNKNOWN = "not known whether it "  # …, where the layer fails when it is tried
# Padded to their longest sequence, batches would decide what such an attention says of an example.
WANT_FULL_BATCHES = frozenset({PADDING, LENGTH})


class LooksAhead(Exception):
    """A causal attention's outputs change with later tokens."""


def check_conduct(config: RunConfig, device: torch.device) -> list[str]:
    """Try the run's attention with initial weights; what tables should say of it, mostly nothing.

    In float32, or in bfloat16 where it takes nothing else. Raises LooksAhead for a causal attention that sees later
    tokens, and what building the layer raises.
    """
    model, attention, max_len = config.model, config.attention, config.data.max_len
    kind = task_spec(config.task).kind
    carried = kind == "translation" or config.evaluation.carry_state
    faults: list[str] = []
    with probes.own_randomness(device), _unrounded_products(), torch.no_grad():
        torch.manual_seed(config.seed)
        for form, which in NEEDS[kind]:
            sizes, dropout = (model.dim, model.num_heads, max_len), model.attention_dropout
            build = partial(build_attention, attention.name, *sizes, dropout=dropout, **getattr(attention, which))
            faults += [SEEDS] * probes.seeds_itself(build)
            layer = build().to(device).eval()
            _fill_zeros(layer)
            faults += _find_at_lengths(form, layer, (max_len, model.dim), device, carried)
    if AHEAD in faults:
        raise LooksAhead(f"attention {attention.name!r} {AHEAD}")
    return list(dict.fromkeys(faults))


def check_torch_settings(before: dict[str, Any]) -> list[str]:
    """What tables should say where an attention changed what torch does in the whole process; it is set back.

    before: `read_settings` of the process before it built the attention.
    """
    changed = restore_settings(before)
    return [f"{CHANGES}: {', '.join(changed)}"] if changed else []


def _fill_zeros(layer: nn.Module) -> None:
    """Give weights to what begins with none, such as a gate or the last projection: else nothing would come out yet."""
    for parameter in layer.parameters():
        if not parameter.any():
            parameter.copy_(0.1 * torch.randn_like(parameter))


@contextmanager
def _unrounded_products() -> Iterator[None]:
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")  # a run in bf16 has TF32, see step.set_matmul_precision
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


def _find_at_lengths(form: str, layer: Any, shape: tuple[int, int], device: torch.device, carried: bool) -> list[str]:
    """`find_faults` at LENGTHS, and where it can be tried whole at neither, at all of shape, `[seq_len, dim]`."""
    max_len, dim = shape
    faults: list[str] = []
    whole = False
    for seq_len in sorted({min(max_len, length) for length in (*LENGTHS, max_len)}):
        if whole and seq_len > max(LENGTHS):  # where exact attention takes its time
            break
        found = find_faults(form, layer, torch.randn(2, seq_len, dim, device=device), carried)
        whole = whole or not any(fault.startswith(UNKNOWN) for fault in found)
        faults += found
    return [fault for fault in faults if not (whole and fault.startswith(UNKNOWN))]


def find_faults(form: str, layer: Any, x: Tensor, carried: bool = True) -> list[str]:
    """What is wrong with a form of a layer (`encoder`, `causal`, `cross`), and last what could not be tried.

    x: inputs to try, `[2, seq_len, dim]`; carried: whether anything depends on the state of the causal form.
    """

    def outputs(t: Tensor, mask: Tensor | None = None) -> Tensor:
        if form == "cross":
            return layer.cross(t, layer.remember(t, mask))
        return layer.causal(t)[0] if form == "causal" else layer(t, padding_mask=mask)

    one = x[:1]

    def real_outputs(t: Tensor, mask: Tensor, real: int) -> Tensor:
        return layer.cross(one, layer.remember(t, mask)) if form == "cross" else layer(t, padding_mask=mask)[:, :real]

    of_padding = {
        PADDING: lambda: probes.looks_at_padding(real_outputs, one),
        LENGTH: lambda: probes.depends_on_length(real_outputs, one),
    }
    checks = {
        **({AHEAD: lambda: probes.looks_ahead(layer, one)} if form == "causal" else of_padding),
        EXAMPLES: lambda: probes.mixes_examples(outputs, x),
        ALONE: lambda: probes.sees_itself_alone(outputs, one),
        RANDOM: lambda: probes.differs_between_passes(outputs, one),
        WEIGHTS: lambda: probes.hides_weights(layer, outputs, one),
        SEEDS: lambda: probes.seeds_itself(lambda: outputs(one)),
        NUMBERS: lambda: probes.gives_no_number(outputs, one),
    }
    if form == "causal" and carried:
        checks[STATE] = lambda: probes.loses_state(layer, one)
    faults, untried, errors = [], [], []
    for fault, check in checks.items():
        try:
            if _in_either_precision(check, x.device):
                faults.append(fault)
        except Exception as error:
            untried.append(fault.partition(":")[0])
            errors.append(reason_of(error))
    if PADDING in faults and LENGTH in faults:  # which follows
        faults.remove(LENGTH)
    return [*faults, f"{UNKNOWN}{' or '.join(untried)} ({errors[0]})"] if untried else faults


def _in_either_precision(check: Callable[[], bool], device: torch.device) -> bool:
    try:
        return check()
    except Exception as error:
        with suppress(Exception), torch.autocast(device.type, torch.bfloat16):
            return check()
        raise error
