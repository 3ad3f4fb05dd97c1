"""What every table takes for granted of an attention, tried on one layer.

Its tokens see each other, but none that is ahead, padding or of another example; neither how much is padded nor chance
decides what comes out; and what it learns are parameters.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from models import build_attention
from tasks import task_spec

from .batching import LENGTH_MULTIPLE
from .config import RunConfig, reason_of
from .resolve import NEEDS
from .torch_settings import restore_settings

# As far as the configuration's sequences are as long: three of the chunks that our causal attentions compute in, and
# beyond the chunks or windows of others, at whose edges a token too many may be seen.
LENGTHS = (192, 1024)
# Outputs count as moved by more than this share of what the same change does where it may. One token too many of the
# shorter length does more; the rounding of an attention in which what must not count cancels does far less.
SHARE = 0.001
# Of a token that sees no other one nothing moves; of one that sees others, much more than this.
ROUNDING = 1e-5

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

# Of inputs or, of cross attention, of what it attends to, their mask and how many come before what is padded: outputs
# of those, of cross attention all.
RealOutputs = Callable[[Tensor, Tensor, int], Tensor]


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
    with _own_randomness(device), _unrounded_products(), torch.no_grad():
        torch.manual_seed(config.seed)
        for form, which in NEEDS[kind]:
            sizes, dropout = (model.dim, model.num_heads, max_len), model.attention_dropout
            build = partial(build_attention, attention.name, *sizes, dropout=dropout, **getattr(attention, which))
            faults += [SEEDS] * seeds_itself(build)
            layer = build().to(device).eval()
            _fill_zeros(layer)
            faults += _find_at_lengths(form, layer, (max_len, model.dim), device, carried)
    if AHEAD in faults:
        raise LooksAhead(f"attention {attention.name!r} {AHEAD}")
    return list(dict.fromkeys(faults))


def check_settings(before: dict[str, Any]) -> list[str]:
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


def _own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn at random within it is drawn again after it."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


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
        PADDING: lambda: looks_at_padding(real_outputs, one),
        LENGTH: lambda: depends_on_length(real_outputs, one),
    }
    checks = {
        **({AHEAD: lambda: looks_ahead(layer, one)} if form == "causal" else of_padding),
        EXAMPLES: lambda: mixes_examples(outputs, x),
        ALONE: lambda: sees_itself_alone(outputs, one),
        RANDOM: lambda: differs_between_passes(outputs, one),
        WEIGHTS: lambda: hides_weights(layer, outputs, one),
        SEEDS: lambda: seeds_itself(lambda: outputs(one)),
        NUMBERS: lambda: gives_no_number(outputs, one),
    }
    if form == "causal" and carried:
        checks[STATE] = lambda: loses_state(layer, one)
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


def looks_ahead(layer: Any, x: Tensor) -> bool:
    """Whether the causal form's outputs before a token change with it. x: inputs to try, `[1, seq_len, dim]`."""
    seq_len = x.shape[1]
    positions = torch.arange(seq_len, device=x.device)
    for at in {seq_len // 2, seq_len - 2} & set(range(1, seq_len - 1)):
        moved = _moved(lambda t: layer.causal(t)[0], x, positions == at)[0]
        # Its own output moves by far more, with its query.
        if moved[:at].max() > SHARE * moved[at + 1 :].max():
            return True
    return False


def looks_at_padding(outputs: RealOutputs, x: Tensor) -> bool:
    """Whether outputs of real positions change with what is under the mask. x: as for `looks_ahead`."""
    real = (2 * x.shape[1] + 2) // 3
    return _moved_by_rest(outputs, x, real, masked=True) > SHARE * _moved_by_rest(outputs, x, real, masked=False)


def depends_on_length(outputs: RealOutputs, x: Tensor) -> bool:
    """Whether outputs of real positions are others without the padded ones, or none. x: as for `looks_ahead`."""
    seq_len = x.shape[1]
    # Batches have a multiple of so many tokens, of sentences of the second number.
    real = next((length for length in (LENGTH_MULTIPLE, 8, 1) if length < seq_len), seq_len)
    padded = torch.arange(seq_len, device=x.device)[None] >= real
    with _own_randomness(x.device):
        long = outputs(x, padded, real)
    try:
        with _own_randomness(x.device):
            short = outputs(x[:, :real], padded[:, :real], real)
    except Exception:  # it takes the one length
        return True
    shown = _moved_by_rest(outputs, x, real, masked=False)
    differ = bool((long - short).abs().max() > SHARE * shown + _rounding(long))
    # What is drawn at random for another shape is something else.
    return differ and not differs_between_passes(lambda t: outputs(t, padded, real), x)


def mixes_examples(outputs: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether outputs of the first of two examples change with the second. x: `[2, seq_len, dim]`."""
    first, second = _moved(outputs, x, torch.tensor([[False], [True]], device=x.device))
    return bool(first.max() > SHARE * second.max())


def sees_itself_alone(outputs: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether outputs stay as they are when all tokens but their own are others. x: as for `looks_ahead`."""
    seq_len = x.shape[1]
    positions = torch.arange(seq_len, device=x.device)
    for at in {seq_len // 2, seq_len - 1} - {0}:  # a block may end before the last one
        moved = _moved(outputs, x, positions != at)[0]
        judged = moved.max() > 0  # else nothing comes out yet, or what is no number
        if not judged or moved[at] > ROUNDING * moved.max():
            return False
    return seq_len > 1


def differs_between_passes(outputs: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether outputs of the same inputs differ, by dropout that knows nothing of evaluation, say."""
    first, second = outputs(x), outputs(x)
    return bool((first - second).abs().max() > _rounding(first))


def seeds_itself(draw: Callable[[], object]) -> bool:
    """Whether what is drawn at random after `draw` is the same whatever the seed was before it."""
    after = []
    with _own_randomness(torch.device("cpu")):
        for seed in range(2):
            torch.manual_seed(seed)
            draw()
            after.append(torch.rand(2).tolist())
    return after[0] == after[1]


def loses_state(layer: Any, x: Tensor) -> bool:
    """Whether a token in the middle comes out otherwise one at a time after a state. x: as for `looks_ahead`."""
    half = x.shape[1] // 2
    if x.shape[1] < half + 2:  # there is no token in the middle
        return False

    def last_output(*parts: Tensor) -> Tensor:
        state = None
        with _own_randomness(x.device):
            for part in parts:
                y, state = layer.causal(part, state, keep_state=True)
        return y[:, -1]

    before, one, two = x[:, : half + 2].split([half, 1, 1], dim=1)
    in_one_pass = last_output(torch.cat([before, one, two], dim=1))
    off, forgotten = ((last_output(*parts) - in_one_pass).abs().max() for parts in ([before, one, two], [one, two]))
    return not bool(off <= SHARE * forgotten + _rounding(in_one_pass))  # nor is nan what it should be


def gives_no_number(outputs: Callable[[Tensor, Tensor | None], Tensor], x: Tensor) -> bool:
    """Whether an output is nan or infinite, one at a padded position included, from which the next layer would be."""
    real = (2 * x.shape[1] + 2) // 3
    padded = torch.arange(x.shape[1], device=x.device)[None] >= real
    return not all(bool(outputs(x, mask).isfinite().all()) for mask in (None, padded))


def hides_weights(layer: Any, outputs: Callable[[Tensor], Tensor], x: Tensor) -> bool:
    """Whether gradients reach what is not among the layer's parameters: of modules in a list of Python's, say."""
    known = {id(parameter) for parameter in layer.parameters()}
    with torch.enable_grad():
        waiting, seen = [outputs(x).grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        variable = getattr(node, "variable", None)  # of the nodes at which gradients arrive
        if variable is not None and id(variable) not in known:
            return True
        waiting += [before for before, _ in node.next_functions]
    return False


def _rounding(y: Tensor) -> float:
    """How far outputs may lie apart where matrices of another shape are multiplied in another order."""
    dtype = torch.bfloat16 if torch.is_autocast_enabled(y.device.type) else y.dtype
    return float(10 * torch.finfo(dtype).eps * y.abs().max())


def _moved_by_rest(outputs: RealOutputs, x: Tensor, real: int, masked: bool) -> float:
    """The most by which outputs of the first `real` positions move with the rest, which is masked or not."""
    rest = torch.arange(x.shape[1], device=x.device) >= real
    return float(_moved(lambda t: outputs(t, (rest & masked)[None], real), x, rest).max())


def _moved(call: Callable[[Tensor], Tensor], x: Tensor, where: Tensor) -> Tensor:
    """By how much outputs move, `[batch, seq_len]`, when x is another one at the positions `where`, of one or all."""
    outputs = []
    for t in (x, torch.where(where[..., None], torch.randn_like(x), x)):
        with _own_randomness(x.device):  # what an attention draws at random is the same both times
            outputs.append(call(t))
    return (outputs[0] - outputs[1]).abs().amax(dim=2)
