"""Questions to one layer of an attention, each answered by what its outputs do: see `lra_bench.conduct`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor

from .batching import LENGTH_MULTIPLE

# Outputs count as moved by more than this share of what the same change does where it may. One token too many of the
# shorter length does more; the rounding of an attention in which what must not count cancels does far less.
SHARE = 0.001
# Of a token that sees no other one nothing moves; of one that sees others, much more than this.
ROUNDING = 1e-5

# Of inputs or, of cross attention, of what it attends to, their mask and how many come before what is padded: outputs
# of those, of cross attention all.
RealOutputs = Callable[[Tensor, Tensor, int], Tensor]


def own_randomness(device: torch.device) -> AbstractContextManager[None]:
    """What is drawn at random within it is drawn again after it."""
    return torch.random.fork_rng(devices=[device] if device.type == "cuda" else [])


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
    with own_randomness(x.device):
        long = outputs(x, padded, real)
    try:
        with own_randomness(x.device):
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
    with own_randomness(torch.device("cpu")):
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
        with own_randomness(x.device):
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
        with own_randomness(x.device):  # what an attention draws at random is the same both times
            outputs.append(call(t))
    return (outputs[0] - outputs[1]).abs().amax(dim=2)
