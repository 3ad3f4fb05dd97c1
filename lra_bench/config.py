"""One frozen RunConfig per run: everything that it depends on."""

from __future__ import annotations

import hashlib
import json
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    model_validator,
)

# torch.compile's mode in which the compiled blocks are replayed as CUDA graphs.
CUDA_GRAPHS: Literal["reduce-overhead"] = "reduce-overhead"
# Compiling a step costs up to a minute and then saves 1 to 4 microseconds a token on two CPU cores.
COMPILE_FROM_TOKENS = 20_000_000
# How a step is compiled: on a card as CUDA graphs, since launching its kernels takes longer than many a step itself.
COMPILED: dict[str, bool | Literal["reduce-overhead"]] = {"cpu": True, "cuda": CUDA_GRAPHS}


class ConfigError(ValueError):
    """Bad input; the message is the one line that the user sees."""


def reason_of(error: BaseException) -> str:
    """What records and messages say of an error: its type and the first line of its text, or two."""
    first, *rest = [line.strip() for line in str(error).strip().splitlines()] or [""]
    more = f" {rest[0]}" if first.endswith(":") and rest else ""
    return f"{type(error).__name__}: {first}{more}"


class Section(BaseModel):
    """Base of all configuration: frozen; unknown keys are refused, and infinity, which a record cannot hold."""

    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class ModelConfig(Section):
    """Sizes of the model, the same for every attention under one protocol.

    pooling, embedding_std, head_layers: of classifiers; cutoffs: of a language model's adaptive softmax, if any.
    """

    dim: PositiveInt
    num_heads: PositiveInt
    num_layers: PositiveInt
    mlp_dim: PositiveInt
    dropout: float = Field(ge=0.0, lt=1.0)
    attention_dropout: float = Field(ge=0.0, lt=1.0)
    attention_bias: bool
    positions: Literal["learned", "sinusoidal"]
    pooling: Literal["mean", "cls"]
    embedding_std: PositiveFloat
    head_layers: Literal[2, 3] = 2
    cutoffs: tuple[PositiveInt, ...] = ()

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> ModelConfig:
        if self.dim % self.num_heads:
            raise ValueError(f"model.dim {self.dim} is not divisible by model.num_heads {self.num_heads}")
        return self


class DataConfig(Section):
    """max_len: tokens kept of a sequence; validation_items, test_items: a seeded sample, or all of the split."""

    max_len: int = Field(gt=0, lt=2**31)
    validation_items: PositiveInt | None = None
    test_items: PositiveInt | None = None


Beta = Annotated[float, Field(ge=0.0, lt=1.0)]


class TrainConfig(Section):
    """Optimiser, schedule and rhythm.

    micro_batch_size: how many examples of a batch are computed at a time, their gradients accumulated: the same step
    in less memory, of several processes in each; null: all. schedule: `linear` or `rsqrt` (see lra_bench/optim.py);
    clip_norm 0: none; group_by_length: fill training batches with sequences of similar length, which pads less but
    changes the batches; label_smoothing: share of a target's probability spread over all tokens, in translation;
    average: test the mean of the weights at the last so many validations, in place of the best one's; precision: auto
    is bf16 on a GPU that has it; compile: torch.compile, or its mode reduce-overhead, which replays the compiled blocks
    as CUDA graphs; auto is one of them where a run is long enough to win the time back (see RunConfig.usual_compile).
    """

    steps: PositiveInt
    batch_size: PositiveInt
    micro_batch_size: PositiveInt | None = None
    lr: PositiveFloat
    schedule: Literal["linear", "rsqrt"]
    warmup: NonNegativeInt
    weight_decay: NonNegativeFloat
    betas: tuple[Beta, Beta]
    eps: PositiveFloat
    clip_norm: NonNegativeFloat
    eval_every: PositiveInt
    checkpoint_every: PositiveInt
    group_by_length: bool = False
    label_smoothing: float = Field(default=0.0, ge=0.0, lt=1.0)
    average: NonNegativeInt = 0
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool | Literal["auto", "reduce-overhead"] = "auto"

    @property
    def ends_warming_up(self) -> bool:
        """Whether the learning rate never comes to its peak, as where a run was shortened and its warm-up was not."""
        return self.steps < self.warmup

    @property
    def examples_at_once(self) -> int:
        """The most examples of which a pass of training is made."""
        return min(self.batch_size, self.micro_batch_size or self.batch_size)


class EvaluationConfig(Section):
    """How test is scored beyond what training decides.

    carry_state: language modelling reads a split as one text per row of a batch and carries the state from segment to
    segment; beam, length_penalty: of the search for translations.
    """

    carry_state: bool = False
    beam: PositiveInt = 4
    length_penalty: NonNegativeFloat = 0.6


SECTIONS: dict[str, type[Section]] = {
    "model": ModelConfig,
    "data": DataConfig,
    "train": TrainConfig,
    "evaluation": EvaluationConfig,
}
# Changing these cannot change a result, so they do not make a protocol another one.
NEUTRAL_SETTINGS = frozenset({"train.checkpoint_every"})


class AttentionConfig(Section):
    """A registered attention and the settings of its own, defaults filled in.

    cross: the same for cross attention, where there is any; changed: what --set changed, in words.
    """

    name: str
    settings: dict[str, Any]
    cross: dict[str, Any] = {}
    changed: str = ""


def as_typed(name: str, value: Any) -> str:
    """A setting as --set takes it: `redraw=false`, not Python's False."""
    text = value if isinstance(value, str) else json.dumps(value, default=str)
    return f"{name}={text.removesuffix('.0')}"


def without_compile(overrides: str) -> str:
    """What --set named, in words, but for train.compile."""
    return " ".join(word for word in overrides.split(" ") if not word.startswith("train.compile="))


class RunConfig(Section):
    """One cell of a benchmark, fully resolved.

    overrides: the protocol settings that --set named, in words; data_source: what --data said; plugins: files.
    """

    task: str
    protocol: str
    family: str
    overrides: str
    model_name: str
    seed: int = Field(ge=0, lt=2**32)
    device: Literal["cpu", "cuda"]
    data_source: str
    plugins: tuple[str, ...]
    attention: AttentionConfig
    model: ModelConfig
    data: DataConfig
    train: TrainConfig
    evaluation: EvaluationConfig = EvaluationConfig()

    @property
    def usual_compile(self) -> bool | Literal["reduce-overhead"]:
        """What train.compile=auto comes to: every model of a long run compiled alike, never some of a table.

        Compiled batches have one shape, the full length. Where they are grouped by length, that padding costs more than
        compiling saves.
        """
        tokens = self.train.steps * self.train.batch_size * self.data.max_len
        pays = tokens >= COMPILE_FROM_TOKENS and not self.train.group_by_length
        return COMPILED[self.device] if pays else False

    @property
    def changed(self) -> str:
        """`overrides` without a train.compile that only says what would be so by itself: it makes no other protocol."""
        return without_compile(self.overrides) if self.train.compile == self.usual_compile else self.overrides

    @property
    def protocol_label(self) -> str:
        """The protocol and what --set changed of it, in words."""
        return f"{self.protocol} with {self.changed}" if self.changed else self.protocol

    @property
    def settings_label(self) -> str:
        """All that --set and --grid changed, in words."""
        return f"{self.changed} {self.attention.changed}".strip()

    @property
    def batch_label(self) -> str:
        """The size of a training step, in words; an example of retrieval and of translation has two sequences."""
        return f"{self.train.batch_size} examples, sequences of {self.data.max_len:,} tokens"

    def per_process(self, count: int) -> RunConfig:
        """The same with one of `count` processes' share of a batch. Raises ConfigError where they cannot be equal."""
        if self.train.batch_size % count:
            raise ConfigError(
                f"train.batch_size = {self.train.batch_size} cannot be shared equally by {count} processes"
            )
        train = self.train.model_copy(update={"batch_size": self.train.batch_size // count})
        return self.model_copy(update={"train": train})

    def digest(self, fingerprint: str, plugin_source: str = "", task_version: int = 1) -> str:
        """Hash of everything that decides the result: this configuration, the data and what `plugin_source` returns.

        Where the data lay is left out: the same bytes from another folder are the same run. task_version: of the task's
        YAML, see TaskSpec.
        """
        content = self.model_dump(mode="json", exclude={"data_source", "plugins", "overrides"})
        for section, _, name in (key.partition(".") for key in NEUTRAL_SETTINGS):
            del content[section][name]
        del content["attention"]["changed"]
        content |= {"fingerprint": fingerprint, "plugin_source": plugin_source}
        if task_version > 1:  # first versions had their digests before this counted
            content["task_version"] = task_version
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
