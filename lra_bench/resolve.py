"""Protocol + task + model + --set overrides -> one frozen RunConfig."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from tasks import Kind

from . import ROOT
from .config import NEUTRAL_SETTINGS, SECTIONS, AttentionConfig, ConfigError, RunConfig, as_typed
from .machine import has_bf16

CONFIGS = ROOT / "configs"

# Sections of --set besides those of a protocol: the attention's own settings, and those of cross attention alone.
ATTENTION_SECTIONS = ("attention", "cross")


class Protocol(BaseModel, extra="forbid", frozen=True):
    """A protocol's YAML: everything but the attention. Sections may be partial; `tasks` completes them per task."""

    description: str
    family: str
    source: str
    model: dict[str, Any] = {}
    data: dict[str, Any] = {}
    train: dict[str, Any] = {}
    evaluation: dict[str, Any] = {}
    tasks: dict[str, dict[str, dict[str, Any]]]

    def for_task(self, task: str) -> dict[str, dict[str, Any]]:
        """The sections that complete the protocol for `task`: its own, else those of `default`. Raises ConfigError."""
        if task in self.tasks or "default" in self.tasks:
            return self.tasks.get(task, self.tasks.get("default", {}))
        raise ConfigError(f"the protocol has no settings for task {task!r}, only for {', '.join(self.tasks)}; add them")


class ModelEntry(BaseModel, extra="forbid", frozen=True):
    """A model's YAML: a registered attention with settings, and others per protocol or in cross attention."""

    description: str
    paper: str
    attention: str
    settings: dict[str, Any] = {}
    cross: dict[str, Any] = {}
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
    except UnicodeDecodeError:
        raise ConfigError(f"{path} is not UTF-8 text") from None
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
    return dict(_parse_setting("--set", text) for text in settings)


def parse_grid(settings: Iterable[str]) -> dict[str, list[Any]]:
    """`["train.lr=0.1,0.2"]` -> `{"train.lr": [0.1, 0.2]}`; the values of a YAML list. Raises ConfigError."""
    grid: dict[str, list[Any]] = {}
    for text in settings:
        key, values = _parse_setting("--grid", text, several=True)
        if key in grid:
            raise ConfigError(f"--grid {key} is given twice; give all its values at once: {key}=a,b")
        if not values:
            raise ConfigError(f"--grid {text!r}: no value given; expected {key}=a,b")
        grid[key] = values
    return grid


def _parse_setting(option: str, text: str, several: bool = False) -> tuple[str, Any]:
    """The key and the value, or the list of several, of an option's `section.name=value`."""
    key, equals, value = text.partition("=")
    key = key.strip()
    section, dot, name = key.partition(".")
    if not (equals and dot and name):
        raise ConfigError(f"{option} {text!r} is not of the form section.name=value, such as train.steps=200")
    if section not in ATTENTION_SECTIONS and key not in _setting_names():
        raise unknown("setting", key, _setting_names())
    try:
        return key, yaml.safe_load(f"[{value}]" if several else value)
    except yaml.YAMLError:
        raise ConfigError(f"{option} {text!r}: the value cannot be read; quote it") from None


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
    from models import UnknownAttention
    from tasks import DataError, task_spec

    protocol, entry = read_protocol(protocol_name), read_model(model_name)
    try:
        spec = task_spec(task)
    except DataError as error:
        raise ConfigError(str(error)) from None
    for_task = protocol.for_task(task)
    sections: dict[str, dict[str, Any]] = {
        section: {**getattr(protocol, section), **for_task.get(section, {})} for section in SECTIONS
    }
    max_len = sections["data"].setdefault("max_len", spec.max_len)
    if isinstance(max_len, int):  # what is no number is refused below
        sections["data"]["max_len"] = min(max_len, spec.max_len)  # a protocol may shorten a task, not lengthen it
    if extra := set(for_task) - set(sections):
        raise ConfigError(f"protocol {protocol_name!r}, task {task!r}: unknown section {extra.pop()!r}")
    precision = "bf16" if device == "cuda" and has_bf16() else "fp32"
    if sections["train"].get("precision", "auto") == "auto":
        sections["train"]["precision"] = precision
    named: dict[str, dict[str, Any]] = {section: {} for section in (*SECTIONS, *ATTENTION_SECTIONS)}
    for key, value in (overrides or {}).items():
        if spec.kind not in (kinds := HEEDED_BY.get(key, (spec.kind,))):
            raise ConfigError(f"--set {key} changes nothing in {spec.kind}, only in {' and '.join(kinds)}")
        section, _, name = key.partition(".")
        named[section][name] = precision if (key, value) == ("train.precision", "auto") else value
    try:
        attention = _attention(entry, protocol_name, spec.kind, named["attention"], named["cross"])
        if form := _missing_form(attention, spec.kind):
            able = ", ".join(name for name in names("models") if spec.kind in fitting_kinds(name))
            raise ConfigError(f"model {model_name!r} has no {form} form, which {spec.kind} needs; {able} can")
        run = RunConfig(
            task=task,
            protocol=protocol_name,
            family=protocol.family,
            overrides="",
            model_name=model_name,
            seed=seed,
            device=device,
            data_source=data_source,
            plugins=plugins,
            attention=attention,
            **{section: {**usual, **named[section]} for section, usual in sections.items()},  # type: ignore[arg-type]
        )
        words = [
            f"{section}.{word}"
            for section, usual in sections.items()
            for word in _changed(named[section], getattr(run, section).model_dump(), usual, SECTIONS[section])
            if f"{section}.{word.partition('=')[0]}" not in NEUTRAL_SETTINGS
        ]
        run = run.model_copy(update={"overrides": " ".join(sorted(words))})
        _check_carried(run)
        if run.train.compile != "auto":
            return run
        return run.model_copy(update={"train": run.train.model_copy(update={"compile": run.usual_compile})})
    except UnknownAttention as error:
        raise ConfigError(str(error)) from None
    except ValidationError as error:
        raise ConfigError(_first(error)) from None


# The kinds of task that heed a setting which not all of them do.
HEEDED_BY: dict[str, tuple[Kind, ...]] = {
    "model.positions": ("classification", "language modelling"),
    **dict.fromkeys(("model.pooling", "model.embedding_std", "model.head_layers"), ("classification",)),
    **dict.fromkeys(("model.cutoffs", "evaluation.carry_state"), ("language modelling",)),
    **dict.fromkeys(("train.label_smoothing", "evaluation.beam", "evaluation.length_penalty"), ("translation",)),
}

# Which forms of attention a kind of task needs: of a model's settings, or of those of its cross attention.
NEEDS: dict[Kind, tuple[tuple[str, Literal["settings", "cross"]], ...]] = {
    "classification": (("encoder", "settings"),),
    "language modelling": (("causal", "settings"),),
    "translation": (("causal", "settings"), ("cross", "cross")),
}


def _attention(
    entry: ModelEntry, protocol: str, kind: Kind, named: dict[str, Any], across: dict[str, Any]
) -> AttentionConfig:
    """The model's attention; named, across: what --set says of its settings and of those of cross attention alone."""
    from models import check_settings
    from models.registry import attention_settings

    if across and kind != "translation":
        raise ConfigError(f"--set cross.{next(iter(across))}: {kind} has no cross attention, translation alone has")
    schema, usual = attention_settings(entry.attention), {**entry.settings, **entry.protocols.get(protocol, {})}
    settings = check_settings(entry.attention, {**usual, **named})
    words, cross = _changed(named, settings, usual, schema), {}
    if kind == "translation":
        usual = {**usual, **named, **entry.cross}
        cross = check_settings(entry.attention, {**usual, **across})
        words += [f"cross.{word}" for word in _changed(across, cross, usual, schema)]
    return AttentionConfig(name=entry.attention, settings=settings, cross=cross, changed=" ".join(words))


def _changed(
    names: Iterable[str], settings: dict[str, Any], usual: dict[str, Any], schema: type[BaseModel]
) -> list[str]:
    """What --set named, as it takes it, but for what is as it usually is; schema: for defaults."""
    defaults = {name: field.get_default(call_default_factory=True) for name, field in schema.model_fields.items()}
    before = {**defaults, **usual}
    typed = ((as_typed(name, settings[name]), as_typed(name, before[name])) for name in sorted(names))
    return [now for now, then in typed if now != then]


def _missing_form(attention: AttentionConfig, kind: Kind) -> str | None:
    from models import attention_forms

    missing = (
        form for form, which in NEEDS[kind] if form not in attention_forms(attention.name, getattr(attention, which))
    )
    return next(missing, None)


def fitting_kinds(model_name: str) -> list[Kind]:
    """The kinds of task that a model can do. Raises ConfigError for an unknown one."""
    entry = read_model(model_name)
    attention = AttentionConfig(name=entry.attention, settings=entry.settings, cross={**entry.settings, **entry.cross})
    return [kind for kind in NEEDS if _missing_form(attention, kind) is None]


def _check_carried(run: RunConfig) -> None:
    """Raise ConfigError where a state is to be carried that cannot be, or through segments that do not follow."""
    from models import state_grows

    if run.evaluation.carry_state and state_grows(run.attention.name):
        raise ConfigError(
            f"model {run.model_name!r} cannot carry its state: it grows with every token; leave it at false"
        )
    if run.evaluation.carry_state and (run.data.validation_items or run.data.test_items):
        raise ConfigError("evaluation.carry_state reads whole splits; set data.validation_items and test_items to null")


def _setting_names() -> list[str]:
    return [f"{section}.{name}" for section, schema in SECTIONS.items() for name in schema.model_fields]


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
