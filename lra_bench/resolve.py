"""Protocol + task + model + --set overrides -> one frozen RunConfig."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Literal

import yaml
from pydantic import BaseModel, ValidationError

from tasks import Kind, TaskSpec

from .config import NEUTRAL_SETTINGS, SECTIONS, AttentionConfig, ConfigError, RunConfig, as_typed
from .machine import has_bf16
from .protocols import ModelEntry, first_finding, names, read_model, read_protocol, setting_names, unknown

# Sections of --set besides those of a protocol: the attention's own settings, and those of cross attention alone.
ATTENTION_SECTIONS = ("attention", "cross")


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
    if section not in ATTENTION_SECTIONS and key not in setting_names():
        raise unknown("setting", key, setting_names())
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
    precision = "bf16" if device == "cuda" and has_bf16() else "fp32"
    usual = protocol.for_task(task, spec)
    if usual["train"].get("precision", "auto") == "auto":
        usual["train"]["precision"] = precision
    named = _by_section(overrides or {}, spec.kind, precision)
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
            **{section: {**usual[section], **named[section]} for section in SECTIONS},  # type: ignore[arg-type]
        )
    except UnknownAttention as error:
        raise ConfigError(str(error)) from None
    except ValidationError as error:
        raise ConfigError(first_finding(error)) from None
    _check_booleans(run, named)
    _check_carried(run)
    _check_cutoffs(run.model.cutoffs, spec)
    _check_attention(run, spec.kind)
    compile_ = run.usual_compile if run.train.compile == "auto" else run.train.compile
    train = run.train.model_copy(update={"compile": compile_})
    return run.model_copy(update={"overrides": _overrides(run, named, usual), "train": train})


def _by_section(overrides: dict[str, Any], kind: Kind, precision: str) -> dict[str, dict[str, Any]]:
    """What --set named, section by section. Raises ConfigError for what a kind of task does not heed."""
    named: dict[str, dict[str, Any]] = {section: {} for section in (*SECTIONS, *ATTENTION_SECTIONS)}
    for key, value in overrides.items():
        if kind not in (kinds := HEEDED_BY.get(key, (kind,))):
            raise ConfigError(f"--set {key} changes nothing in {kind}, only in {' and '.join(kinds)}")
        section, _, name = key.partition(".")
        named[section][name] = precision if (key, value) == ("train.precision", "auto") else value
    return named


def _overrides(run: RunConfig, named: dict[str, dict[str, Any]], usual: dict[str, dict[str, Any]]) -> str:
    """Which of a protocol's settings --set changed, in words."""
    words = (
        f"{section}.{word}"
        for section, schema in SECTIONS.items()
        for word in _changed(named[section], getattr(run, section).model_dump(), usual[section], schema)
    )
    return " ".join(sorted(word for word in words if word.partition("=")[0] not in NEUTRAL_SETTINGS))


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


def _check_booleans(run: RunConfig, named: dict[str, dict[str, Any]]) -> None:
    """Raise ConfigError where --set named true or false for a number: pydantic takes them as 1 and 0."""
    attention = {"attention": run.attention.settings, "cross": run.attention.cross}
    taken = {section: getattr(run, section).model_dump() for section in SECTIONS} | attention
    for section, values in named.items():
        for name, value in values.items():
            if isinstance(value, bool) and not isinstance(taken[section][name], bool):
                raise ConfigError(f"{section}.{as_typed(name, value)}: expected a number, not true or false")


def _check_carried(run: RunConfig) -> None:
    """Raise ConfigError where a state is to be carried that cannot be, or through segments that do not follow."""
    from models import state_grows

    if run.evaluation.carry_state and state_grows(run.attention.name):
        raise ConfigError(
            f"model {run.model_name!r} cannot carry its state: it grows with every token; leave it at false"
        )
    if run.evaluation.carry_state and (run.data.validation_items or run.data.test_items):
        raise ConfigError("evaluation.carry_state reads whole splits; set data.validation_items and test_items to null")


def _check_cutoffs(cutoffs: tuple[int, ...], spec: TaskSpec) -> None:
    """Raise ConfigError unless the bands that they cut a vocabulary into all have words."""
    if any(low >= high for low, high in pairwise([0, *cutoffs, spec.vocab_size])):
        raise ConfigError(f"model.cutoffs = {list(cutoffs)}: expected increasing numbers below {spec.vocab_size:,}")


def _check_attention(run: RunConfig, kind: Kind) -> None:
    """Raise ConfigError for values that one of our own attentions refuses: anybody else's code is left to the cell."""
    from models import build_attention
    from models.registry import attention_module

    name, sizes = run.attention.name, (run.model.dim, run.model.num_heads, run.data.max_len)
    if not attention_module(name).startswith("models."):
        return
    import torch

    try:
        with torch.device("meta"):
            for _, which in NEEDS[kind]:
                build_attention(name, *sizes, **getattr(run.attention, which))
    except Exception as error:  # torch has several for numbers beyond its own
        first_line = str(error).partition("\n")[0]
        raise ConfigError(f"attention {name!r}: {first_line}") from None
