"""Protocol + task + model + --set overrides -> one frozen RunConfig. Everything a run depends on is in it."""

from __future__ import annotations

import difflib
import hashlib
import json
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)

from . import ROOT

CONFIGS = ROOT / "configs"

# Changing these cannot change a result, so they do not make a protocol another one.
NEUTRAL_SETTINGS = frozenset({"train.checkpoint_every"})


# Compiling a step costs up to a minute and then saves 1 to 4 microseconds a token on two CPU cores.
COMPILE_FROM_TOKENS = 20_000_000


class ConfigError(ValueError):
    """Bad input; the message is the one line that the user sees."""


class Section(BaseModel):
    """Base of all configuration: frozen, unknown keys refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class ModelConfig(Section):
    """Sizes of the encoder, the same for every attention under one protocol."""

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

    @model_validator(mode="after")
    def _heads_divide_dim(self) -> ModelConfig:
        if self.dim % self.num_heads:
            raise ValueError(f"model.dim {self.dim} is not divisible by model.num_heads {self.num_heads}")
        return self


class DataConfig(Section):
    """max_len: tokens kept of a sequence; validation_items, test_items: a seeded sample, or all of the split."""

    max_len: PositiveInt
    validation_items: PositiveInt | None = None
    test_items: PositiveInt | None = None


class TrainConfig(Section):
    """Optimiser, schedule and rhythm.

    schedule: `linear` or `rsqrt` (see lra_bench/optim.py); clip_norm 0: none; group_by_length: fill training batches
    with sequences of similar length, which pads less but changes the batches; precision: auto is bf16 on a GPU;
    compile: torch.compile, auto where a run is long enough to win the time back (`COMPILE_FROM_TOKENS`).
    """

    steps: PositiveInt
    batch_size: PositiveInt
    lr: PositiveFloat
    schedule: Literal["linear", "rsqrt"]
    warmup: NonNegativeInt
    weight_decay: NonNegativeFloat
    betas: tuple[float, float]
    eps: PositiveFloat
    clip_norm: NonNegativeFloat
    eval_every: PositiveInt
    checkpoint_every: PositiveInt
    group_by_length: bool = False
    precision: Literal["auto", "fp32", "bf16"] = "auto"
    compile: bool | Literal["auto"] = "auto"


class AttentionConfig(Section):
    """A registered attention and the settings of its own, defaults filled in; changed: what --set changed, in words."""

    name: str
    settings: dict[str, Any]
    changed: str = ""


class RunConfig(Section):
    """One cell of a benchmark, fully resolved.

    overrides: the protocol settings that --set changed, in words; data_source: what --data said; plugins: files.
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

    def digest(self, fingerprint: str, plugin_source: str = "") -> str:
        """Hash of everything that decides the result: this configuration, the data and the plugin's text.

        Where the data lay is left out: the same bytes from another folder are the same run.
        """
        content = self.model_dump(mode="json", exclude={"data_source", "plugins", "overrides"})
        del content["train"]["checkpoint_every"]
        del content["attention"]["changed"]
        content |= {"fingerprint": fingerprint, "plugin_source": plugin_source}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


class Protocol(Section):
    """A protocol's YAML: everything but the attention. Sections may be partial; `tasks` completes them per task."""

    description: str
    family: str
    source: str
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    train: dict[str, Any] = {}
    tasks: dict[str, dict[str, dict[str, Any]]]

    def for_task(self, task: str) -> dict[str, dict[str, Any]]:
        """The sections that complete the protocol for `task`: its own, else those of `default`. Raises ConfigError."""
        if task in self.tasks or "default" in self.tasks:
            return self.tasks.get(task, self.tasks.get("default", {}))
        raise ConfigError(f"the protocol has no settings for task {task!r}, only for {', '.join(self.tasks)}; add them")


class ModelEntry(Section):
    """A model's YAML: a registered attention with settings, and other settings per protocol where they differ."""

    description: str
    paper: str
    attention: str
    settings: dict[str, Any] = {}
    protocols: dict[str, dict[str, Any]] = {}


_Yaml = TypeVar("_Yaml", bound=BaseModel)


def names(kind: Literal["protocols", "tasks", "models"]) -> list[str]:
    """Names of the YAML files of one kind."""
    return sorted(path.stem for path in (CONFIGS / kind).glob("*.yaml"))


def unknown(what: str, name: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not among the known ones, with the near ones."""
    known = sorted(known)
    near = difflib.get_close_matches(name, known, n=2) or known
    return ConfigError(f"unknown {what} {name!r}; did you mean {' or '.join(map(repr, near))}?")


def _read(kind: Literal["protocols", "models"], name: str, schema: type[_Yaml]) -> _Yaml:
    if name not in names(kind):
        raise unknown(kind.rstrip("s"), name, names(kind))
    path = CONFIGS / kind / f"{name}.yaml"
    try:
        return schema.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        raise ConfigError(f"{path}: {_first(error)}") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def read_protocol(name: str) -> Protocol:
    """configs/protocols/NAME.yaml. Raises ConfigError."""
    return _read("protocols", name, Protocol)


def read_model(name: str) -> ModelEntry:
    """configs/models/NAME.yaml, or for an attention without one, such as a plugin's, the attention itself."""
    if name in names("models"):
        return _read("models", name, ModelEntry)
    from models import list_attentions

    if name in list_attentions():
        return ModelEntry(description=f"attention {name}", paper="", attention=name)
    raise unknown("model", name, {*names("models"), *list_attentions()})


def parse_overrides(settings: Iterable[str]) -> dict[str, Any]:
    """`["train.steps=200"]` -> `{"train.steps": 200}`; values are read as YAML scalars. Raises ConfigError."""
    parsed = {}
    for text in settings:
        key, equals, value = text.partition("=")
        section, dot, name = key.strip().partition(".")
        if not (equals and dot and name):
            raise ConfigError(f"--set {text!r} is not of the form section.name=value, such as train.steps=200")
        if section != "attention" and key.strip() not in _setting_names():
            raise unknown("setting", key.strip(), _setting_names())
        try:
            parsed[key.strip()] = yaml.safe_load(value)
        except yaml.YAMLError:
            raise ConfigError(f"--set {text!r}: the value cannot be read; quote it") from None
    return parsed


def resolve(
    task: str,
    model_name: str,
    protocol_name: str,
    *,
    seed: int = 0,
    device: Literal["cpu", "cuda"] = "cpu",
    data_source: str = "auto",
    plugins: tuple[str, ...] = (),
    overrides: dict[str, Any] | None = None,
) -> RunConfig:
    """The configuration of one cell. overrides: as from `parse_overrides`.

    Raises ConfigError, in one line and with the near names, for anything wrong in a name, a key or a value.
    """
    from models import UnknownAttention, check_settings
    from tasks import DataError, task_spec

    protocol, entry = read_protocol(protocol_name), read_model(model_name)
    try:
        task_max_len = task_spec(task).max_len
    except DataError as error:
        raise ConfigError(str(error)) from None
    for_task = protocol.for_task(task)
    sections: dict[str, dict[str, Any]] = {
        section: {**getattr(protocol, section), **for_task.get(section, {})} for section in ("model", "data", "train")
    }
    sections["data"].setdefault("max_len", task_max_len)
    if extra := set(for_task) - set(sections):
        raise ConfigError(f"protocol {protocol_name!r}, task {task!r}: unknown section {extra.pop()!r}")
    usual = {**entry.settings, **entry.protocols.get(protocol_name, {})}
    settings = dict(usual)
    changed = []
    for key, value in (overrides or {}).items():
        section, _, name = key.partition(".")
        if section == "attention":
            settings[name] = value
            continue
        if sections[section].get(name) != value and key not in NEUTRAL_SETTINGS:
            changed.append(f"{key}={value}")
        sections[section][name] = value
    if sections["train"].get("precision", "auto") == "auto":
        sections["train"]["precision"] = "bf16" if device == "cuda" else "fp32"
    try:
        checked = check_settings(entry.attention, settings)
        words = [f"{name}={checked[name]}" for name in sorted(settings) if usual.get(name) != checked[name]]
        attention = AttentionConfig(name=entry.attention, settings=checked, changed=" ".join(words))
        run = RunConfig(
            task=task,
            protocol=protocol_name,
            family=protocol.family,
            overrides=" ".join(sorted(changed)),
            model_name=model_name,
            seed=seed,
            device=device,
            data_source=data_source,
            plugins=plugins,
            attention=attention,
            **sections,  # type: ignore[arg-type]
        )
        return _decide_compile(run)
    except UnknownAttention as error:
        raise ConfigError(str(error)) from None
    except ValidationError as error:
        raise ConfigError(_first(error)) from None


def _decide_compile(run: RunConfig) -> RunConfig:
    """`run` with train.compile settled: auto compiles every model of a long run alike, never some of a table."""
    if run.train.compile != "auto":
        return run
    tokens = run.train.steps * run.train.batch_size * run.data.max_len
    settled = run.train.model_copy(update={"compile": tokens >= COMPILE_FROM_TOKENS})
    return run.model_copy(update={"train": settled})


def _setting_names() -> list[str]:
    sections: dict[str, type[Section]] = {"model": ModelConfig, "data": DataConfig, "train": TrainConfig}
    return [f"{section}.{name}" for section, schema in sections.items() for name in schema.model_fields]


def _first(error: ValidationError) -> str:
    """The first of pydantic's findings, in one line."""
    found = error.errors()[0]
    key = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return str(unknown("setting", key, _setting_names()))
    if found["type"] == "missing":
        return f"{key} is missing"
    if found["type"] == "value_error":
        return str(found["ctx"]["error"])
    return f"{key} = {found['input']!r}: {found['msg'][0].lower()}{found['msg'][1:]}"
