"""Protocols and models as configs/ has them, read and checked."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ValidationError, field_validator

from tasks import Kind, TaskSpec

from . import ROOT
from .config import SECTIONS, ConfigError

CONFIGS = ROOT / "configs"

# Whose settings a task has that a protocol does not name, such as a plugin's, by its kind.
STAND_INS: dict[Kind, str] = {"classification": "default", "language modelling": "lm", "translation": "mt"}


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

    @field_validator("tasks")
    @classmethod
    def _known_sections(cls, tasks: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
        for task, sections in tasks.items():
            if extra := set(sections) - set(SECTIONS):
                raise ValueError(f"task {task!r}: unknown section {min(extra)!r}; expected {', '.join(SECTIONS)}")
        return tasks

    def for_task(self, task: str, spec: TaskSpec) -> dict[str, dict[str, Any]]:
        """The protocol's sections for `task`, completed by its own, else by those of STAND_INS. Raises ConfigError."""
        own = next((self.tasks[name] for name in (task, STAND_INS[spec.kind]) if name in self.tasks), None)
        if own is None:
            known = ", ".join(self.tasks)
            raise ConfigError(f"the protocol has no settings for task {task!r}, only for {known}; add them")
        sections = {section: {**getattr(self, section), **own.get(section, {})} for section in SECTIONS}
        max_len = sections["data"].setdefault("max_len", spec.max_len)
        if isinstance(max_len, int):  # what is no number is refused with the rest
            sections["data"]["max_len"] = min(max_len, spec.max_len)  # a protocol may shorten a task, not lengthen it
        return sections


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
        raise ConfigError(f"{path}: {first_finding(error)}") from None
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


def setting_names() -> list[str]:
    """What --set and a protocol may name, but for an attention's own: `train.steps` and so on."""
    return [f"{section}.{name}" for section, schema in SECTIONS.items() for name in schema.model_fields]


def first_finding(error: ValidationError) -> str:
    """The first of pydantic's findings, in one line."""
    found = error.errors()[0]
    key = ".".join(map(str, found["loc"]))
    if found["type"] == "extra_forbidden":
        return str(unknown("setting", key, setting_names()))
    if found["type"] == "missing":
        return f"{key} is missing"
    if found["type"] == "value_error":
        return str(found["ctx"]["error"])
    return f"{key} = {found['input']!r}: {found['msg'][0].lower()}{found['msg'][1:]}"
