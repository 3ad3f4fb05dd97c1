"""What each kind of task asks of the harness: a model, a loss, and a score on held-out data."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import gather_object
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map_only

from models import build_classifier, build_decoder, build_translator
from tasks import Split, task_spec
from tasks.language_modelling import score
from tasks.translation import BEGIN, END, bleu, bleu_items, decode

from .batching import LENGTH_MULTIPLE, Batch, DeviceSplit
from .config import RunConfig
from .packing import pack_bits, pack_numbers
from .stats import Z95, wilson_interval
from .zipf import random_words, share


@dataclass(frozen=True)
class Evaluation:
    """A score on a whole split in the units of its metric, and its 95 % interval.

    correct, right: of a classification, how many examples were predicted right and which (see `packing.pack_bits`);
    summands: of other tasks, what every item adds to the score (see `records.Score`).
    """

    value: float
    interval: tuple[float, float] | None
    correct: int | None = None
    right: str = ""
    summands: str = ""


class Objective(ABC):
    """One kind of task under one configuration. tokenizer: the task's, which only translations are scored with."""

    # Batches are padded to a multiple of this.
    length_multiple = LENGTH_MULTIPLE

    def __init__(self, config: RunConfig, tokenizer: str = "") -> None:
        self.config, self.spec, self.tokenizer = config, task_spec(config.task), tokenizer

    @abstractmethod
    def build_model(self) -> nn.Module:
        """The model, newly initialised from torch's seeded generator."""

    @abstractmethod
    def random_batch(self, full: bool = False) -> Batch:
        """A whole batch of random tokens of full length on torch's current default device; full: see Batch."""

    @abstractmethod
    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """What the model says of a batch; the one place where it is called in training."""

    @abstractmethod
    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        """The mean loss of a batch."""

    @abstractmethod
    def loss_terms(self, batch: Batch) -> Tensor | int:
        """Of how many losses `loss` is the mean; a tensor where only the device knows."""

    @abstractmethod
    def evaluate(self, model: nn.Module, data: DeviceSplit, accelerator: Accelerator, final: bool) -> Evaluation:
        """The metric on all of `data`, for a model in evaluation. final: for the record, not only to choose weights."""

    @property
    def band_shares(self) -> Sequence[float]:
        """Of a random batch's words, how many are of each band of an adaptive vocabulary but the first."""
        return ()

    def on_device(self, split: Split, device: torch.device, trim: bool = True) -> DeviceSplit:
        """The split as batches of this task; trim: see DeviceSplit."""
        return DeviceSplit(split, self.config.data.max_len, device, trim=trim, multiple=self.length_multiple)

    def _batches(self, data: DeviceSplit, accelerator: Accelerator) -> Iterator[tuple[NDArray[np.int64], Batch]]:
        """This process's share of `data` for evaluation: which examples, and their batch."""
        order = data.by_length(2 * self.config.train.examples_at_once)
        for indices in order[accelerator.process_index :: accelerator.num_processes]:
            yield indices, data.batch(indices)

    @property
    def _shape(self) -> tuple[int, int]:
        return self.config.train.batch_size, self.config.data.max_len

    def _random(self, extra: int = 0) -> Tensor:
        batch, length = self._shape
        return torch.randint(1, self.spec.vocab_size, (batch, length + extra))

    def _sizes(self, *names: str) -> dict[str, Any]:
        model = self.config.model.model_dump()
        common = ("dim", "num_heads", "num_layers", "mlp_dim", "dropout", "attention_dropout", "attention_bias")
        return {name: model[name] for name in (*common, *names)} | self.config.attention.settings


# In place of whether an example was answered rightly.
_NO_NUMBER = -1


class Classification(Objective):
    """One label per sequence or pair; accuracy in percent."""

    def build_model(self) -> nn.Module:
        return build_classifier(
            self.config.attention.name,
            vocab_size=self.spec.vocab_size,
            num_classes=self.spec.num_classes,
            num_inputs=self.spec.num_inputs,
            max_len=self.config.data.max_len,
            **self._sizes("positions", "pooling", "embedding_std", "head_layers"),
        )

    def random_batch(self, full: bool = False) -> Batch:
        tokens = tuple(self._random() for _ in range(self.spec.num_inputs))
        masks = tuple(torch.zeros(self._shape, dtype=torch.bool) for _ in tokens)
        return Batch(tokens, masks, torch.randint(self.spec.num_classes, self._shape[:1]), full)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        return model(*batch.model_inputs())

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return F.cross_entropy(outputs, batch.labels)

    def loss_terms(self, batch: Batch) -> int:
        return len(batch.labels)

    def evaluate(self, model: nn.Module, data: DeviceSplit, accelerator: Accelerator, final: bool) -> Evaluation:
        right = torch.zeros(len(data), dtype=torch.int32, device=accelerator.device)
        for indices, batch in self._batches(data, accelerator):
            logits = self.outputs(model, batch)
            hits = (logits.argmax(dim=-1) == batch.labels).int()
            # The largest of what is no number is the first class.
            hits = hits.masked_fill(~logits.isfinite().all(dim=-1), _NO_NUMBER)
            right[torch.from_numpy(indices).to(right.device, non_blocking=True)] = hits
        found = accelerator.reduce(right, "sum").cpu().numpy()
        if (found == _NO_NUMBER).any():
            return Evaluation(math.nan, None)
        items = found.astype(bool)
        total = int(items.sum())
        return Evaluation(100 * total / len(data), wilson_interval(total, len(data)), total, pack_bits(items))


class LanguageModelling(Objective):
    """The next token of a text cut into segments; bits per byte or perplexity."""

    @property
    def band_shares(self) -> list[float]:
        size = self.spec.vocab_size
        return [share(low, high, size) for low, high in pairwise([*self.config.model.cutoffs, size])]

    def build_model(self) -> nn.Module:
        return build_decoder(
            self.config.attention.name,
            vocab_size=self.spec.vocab_size,
            max_len=self.config.data.max_len,
            **self._sizes("positions", "cutoffs"),
        )

    def on_device(self, split: Split, device: torch.device, trim: bool = True) -> DeviceSplit:
        # Nearly all segments are full; the last one may be padded.
        return DeviceSplit(split, self.config.data.max_len + 1, device, trim=False)

    def random_batch(self, full: bool = False) -> Batch:
        if self.config.model.cutoffs:  # how many tokens are of which band decides what a step costs
            batch, length = self._shape
            tokens = random_words(self.spec.vocab_size, (batch, length + 1))
        else:
            tokens = self._random(extra=1)
        return Batch((tokens,), (torch.zeros_like(tokens, dtype=torch.bool),), torch.zeros(len(tokens)), full)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        """Losses of all predicted tokens in nats, `[batch, seq_len]`, 0 for padding."""
        return self._losses(model, batch, None, keep_state=False)[0]

    def _losses(self, model: nn.Module, batch: Batch, states: Any, keep_state: bool) -> tuple[Tensor, Any]:
        (tokens,), (mask,) = batch.tokens, batch.padding_masks
        losses, states = model(tokens[:, :-1], states, keep_state=keep_state, targets=tokens[:, 1:])
        return losses.masked_fill(mask[:, 1:], 0.0), states

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        return outputs.sum() / self.loss_terms(batch)

    def loss_terms(self, batch: Batch) -> Tensor:
        return (~batch.padding_masks[0][:, 1:]).sum()

    def evaluate(self, model: nn.Module, data: DeviceSplit, accelerator: Accelerator, final: bool) -> Evaluation:
        carry = self.config.evaluation.carry_state
        passes = (
            self._carried(model, data)
            if carry
            else ((i, self.outputs(model, b), b.padding_masks[0]) for i, b in self._batches(data, accelerator))
        )
        # Per segment: the sum of its losses and how many tokens it predicts.
        sums = torch.zeros(2, len(data), dtype=torch.float64, device=accelerator.device)
        for indices, losses, mask in passes:
            where = torch.from_numpy(indices).to(sums.device)
            sums[0, where], sums[1, where] = losses.double().sum(-1), (~mask[:, 1:]).double().sum(-1)
        if not carry:
            sums = accelerator.reduce(sums, "sum")
        nats, count = sums.cpu().numpy()
        mean, metric = float(nats.sum() / count.sum()), self.spec.metric
        summands = pack_numbers(np.stack([nats, count], axis=1))
        if len(data) < 2:
            return Evaluation(score(mean, metric), None, summands=summands)
        # A ratio's standard error, with segments as the independent units.
        spread = nats - mean * count
        half = Z95 * math.sqrt((spread**2).sum() * len(data) / (len(data) - 1)) / float(count.sum())
        interval = score(mean - half, metric), score(mean + half, metric)
        return Evaluation(score(mean, metric), interval, summands=summands)

    def _carried(self, model: nn.Module, data: DeviceSplit) -> Iterator[tuple[NDArray[np.int64], Tensor, Tensor]]:
        """As many texts in parallel as a batch has rows, each read segment after segment with its state."""
        texts = np.array_split(np.arange(len(data)), min(self.config.train.batch_size, len(data)))
        states: Any = None
        for step in range(len(texts[0])):
            # The first texts are longer by a segment than the last ones.
            indices = np.array([text[step] for text in texts if step < len(text)])
            states = tree_map_only(Tensor, _first(len(indices)), states)
            batch = data.batch(indices)
            losses, states = self._losses(model, batch, states, keep_state=True)
            yield indices, losses, batch.padding_masks[0]


class Translation(Objective):
    """A target sentence for a source sentence; BLEU of greedy search to choose weights, of beam search on test."""

    length_multiple = 8
    RESAMPLES = 1000

    def build_model(self) -> nn.Module:
        return build_translator(
            self.config.attention.name,
            vocab_size=self.spec.vocab_size,
            max_len=self.config.data.max_len + 1,
            cross=self.config.attention.cross,
            **self._sizes(),
        )

    def on_device(self, split: Split, device: torch.device, trim: bool = True) -> DeviceSplit:
        max_len = self.config.data.max_len  # targets begin with a token that is read but not predicted
        return DeviceSplit(split, (max_len, max_len + 1), device, trim=trim, multiple=self.length_multiple)

    def random_batch(self, full: bool = False) -> Batch:
        tokens = self._random(), self._random(extra=1)
        masks = tuple(torch.zeros_like(t, dtype=torch.bool) for t in tokens)
        return Batch(tokens, masks, torch.zeros(len(tokens[0])), full)

    def outputs(self, model: nn.Module, batch: Batch) -> Tensor:
        source, source_mask, target, _ = batch.model_inputs()
        assert target is not None
        return model(source, source_mask, target[:, :-1])

    def loss(self, outputs: Tensor, batch: Batch) -> Tensor:
        targets = batch.tokens[1][:, 1:]
        smoothing = self.config.train.label_smoothing
        return F.cross_entropy(outputs.flatten(0, 1), targets.flatten(), ignore_index=0, label_smoothing=smoothing)

    def loss_terms(self, batch: Batch) -> Tensor:
        return (batch.tokens[1][:, 1:] != 0).sum()

    def evaluate(self, model: nn.Module, data: DeviceSplit, accelerator: Accelerator, final: bool) -> Evaluation:
        """Every process translates its share, and each scores them all: the corpus's score is no mean of its parts."""
        own = [
            (int(index), text)
            for indices, batch in self._batches(data, accelerator)
            for index, text in zip(indices, self._translate(model, batch, final), strict=True)
        ]
        found = [text for _, text in sorted(gather_object(own))]
        references = decode(self.tokenizer, data.split.inputs[1])
        value, low, high = bleu(found, references, self.RESAMPLES if final else 0)
        summands = pack_numbers(bleu_items(found, references)) if final else ""
        return Evaluation(value, (low, high), summands=summands)

    def _translate(self, model: nn.Module, batch: Batch, final: bool) -> list[str]:
        settings, source = self.config.evaluation, batch.tokens[0]
        tokens = model.translate(  # type: ignore[operator]
            source,
            batch.padding_masks[0],
            begin=BEGIN,
            end=END,
            # Of the lengths seen in training; longer ones are the model's going round in circles.
            max_steps=min(2 * source.shape[1] + 10, self.config.data.max_len),
            beam=settings.beam if final else 1,
            length_penalty=settings.length_penalty,
        )
        return decode(self.tokenizer, list(tokens.cpu().numpy()))


def _first(rows: int) -> Callable[[Tensor], Tensor]:
    return lambda tensor: tensor[:rows]


_KINDS: dict[str, type[Objective]] = {
    "classification": Classification,
    "language modelling": LanguageModelling,
    "translation": Translation,
}


def objective_of(config: RunConfig, tokenizer: str = "") -> Objective:
    """The objective of the configuration's task."""
    return _KINDS[task_spec(config.task).kind](config, tokenizer)
