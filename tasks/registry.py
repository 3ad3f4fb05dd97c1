"""Tasks by name: one file that registers a loader, one YAML that describes the task."""

from __future__ import annotations

import difflib
import hashlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

import numpy as np
import yaml
from pydantic import BaseModel, ConfigDict, PositiveInt, ValidationError

from .dataset import DataError, Dataset, Kind, Metric, Split, Task, stratified
from .sources import cache_path, cached, file_key, hub_answers

CONFIGS = Path(__file__).resolve().parent.parent / "configs" / "tasks"


class HubSource(BaseModel, extra="forbid", frozen=True):
    """A dataset on the Hugging Face hub, pinned. repo: owner/name; revision: a commit; subset: where it has several."""

    repo: str
    revision: str
    subset: str | None = None


class TaskSpec(BaseModel):
    """A task's YAML.

    kind: what is learned; metric: what test reports; version: raise it when anything changes that moves scores: its
    runs stand apart from earlier ones, and its caches are made anew, as those of a loader outside this package are
    whenever its file changes; num_classes: 1 where there are none; vocab_size: token ids, padding included, at most;
    max_len: tokens of a sequence, for language modelling the context; num_inputs: sequences per example; languages: of
    a translation, from and to; auto: what `--data auto` tries first.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    description: str
    paper: str = ""
    version: PositiveInt
    kind: Kind = "classification"
    metric: Metric = "accuracy"
    num_classes: PositiveInt
    vocab_size: PositiveInt
    max_len: PositiveInt
    validation_size: PositiveInt
    split_seed: int = 0
    num_inputs: Literal[1, 2] = 1
    languages: tuple[str, str] | None = None
    hub: HubSource | None = None
    auto: Literal["hub", "embedded"] = "embedded"


class TaskLoader(ABC):
    """Base of a task's file: how to read, download and generate its data."""

    def __init__(self, spec: TaskSpec) -> None:
        self.spec = spec

    @abstractmethod
    def find(self, folder: Path) -> list[Path]:
        """The files under `folder` (or the file itself) that hold this task's data; DataError when there are none."""

    @abstractmethod
    def read(self, files: list[Path]) -> Dataset:
        """Read what `find` found."""

    @abstractmethod
    def download(self, hub: HubSource) -> Dataset:
        """Fetch the data set from the hub; whatever this raises becomes a DataError."""

    @abstractmethod
    def generate(self) -> Dataset:
        """Make the embedded data set, the same on every machine."""

    def export(self, dataset: Dataset, folder: Path) -> list[Path]:
        """Write `dataset` under `folder` in a layout that `find` and `read` take, and return the files."""
        raise DataError(f"{type(self).__name__} cannot export its data")

    def prepare(self, name: str, split: Split, max_len: int) -> Split:
        """The split `name` as the harness gets it: sequences cut to max_len, or a text to segments of that length."""
        return split.truncate(max_len)

    def baselines(self, train: Split, test: Split, tokenizer: str) -> dict[str, float]:
        """The metric on `test` of guesses that need no model, by name; a classification gets the majority class too."""
        return {}


_Loader = TypeVar("_Loader", bound=type[TaskLoader])
_TASKS: dict[str, type[TaskLoader]] = {}


def register_task(name: str) -> Callable[[_Loader], _Loader]:
    """Class decorator that makes a TaskLoader available as `name`, described by `<name>.yaml`.

    The YAML lies in configs/tasks or beside the loader's own file. Raises ValueError when the name is taken.
    """

    def decorate(cls: _Loader) -> _Loader:
        if name in _TASKS:
            raise ValueError(f"task {name!r} is already registered by {_TASKS[name].__module__}")
        _TASKS[name] = cls
        return cls

    return decorate


def list_tasks() -> list[str]:
    """Names of all registered tasks, sorted."""
    return sorted(_TASKS)


def task_module(name: str) -> str:
    """Name of the module that registered task `name`."""
    return _TASKS[name].__module__


def task_spec(name: str) -> TaskSpec:
    """The description of task `name`. Raises DataError for an unknown name or a faulty YAML."""
    if name not in _TASKS:
        near = difflib.get_close_matches(name, _TASKS) or list_tasks()
        raise DataError(f"unknown task {name!r}; did you mean {' or '.join(map(repr, near))}?")
    beside = _source_file(task_module(name)).parent
    path = next((p for p in (CONFIGS / f"{name}.yaml", beside / f"{name}.yaml") if p.exists()), None)
    if path is None:
        raise DataError(f"task {name!r} has no {name}.yaml, neither in {CONFIGS} nor in {beside}; write one")
    try:
        return TaskSpec.model_validate(yaml.safe_load(path.read_text(encoding="utf-8")))
    except ValidationError as error:
        first = error.errors()[0]
        raise DataError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg'].lower()}") from None
    except yaml.YAMLError as error:
        raise DataError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None


def load_task(name: str, data: str | Path = "auto", max_len: int | None = None) -> Task:
    """The named task with its three splits.

    data: a folder or file, "hub", "embedded", or "auto" (the hub if it answers within a few seconds or was used
    before, else embedded); max_len: tokens kept of each sequence, by default the task's own. Where the source has
    no validation split, a seeded, stratified part of train becomes it; test is never touched.
    Raises DataError for an unknown task or for data that is missing or wrong.

    >>> task = load_task("text", data="embedded", max_len=1024)
    >>> task.train.inputs[0][0], task.train.labels[0]
    """
    spec = task_spec(name)
    dataset, fingerprint, chosen, source = load_dataset(name, data)
    splits = dict(dataset.splits)
    if "validation" not in splits:
        splits["train"], splits["validation"] = _hold_out(splits["train"], spec)
    length, loader = max_len or spec.max_len, _TASKS[name](spec)
    splits = {split_name: loader.prepare(split_name, split, length) for split_name, split in splits.items()}
    return Task(
        name=name,
        version=spec.version,
        kind=spec.kind,
        metric=spec.metric,
        dataset=dataset.name,
        data=chosen,
        source=source,
        fingerprint=fingerprint,
        num_classes=spec.num_classes,
        vocab_size=spec.vocab_size,
        max_len=length,
        train=splits["train"],
        validation=splits["validation"],
        test=splits["test"],
        tokenizer=dataset.tokenizer,
    )


def trivial_baselines(name: str, train: Split, test: Split, tokenizer: str = "") -> dict[str, float]:
    """The metric of task `name` on `test` for guesses that need no model, such as the commonest training label."""
    spec = task_spec(name)
    own = _TASKS[name](spec).baselines(train, test, tokenizer)
    if spec.kind != "classification":
        return own
    labels, counts = np.unique(train.labels, return_counts=True)
    return {"majority class": 100 * float((test.labels == labels[counts.argmax()]).mean()), **own}


def load_dataset(name: str, data: str | Path = "auto") -> tuple[Dataset, str, str, str]:
    """A task's data set, whole and as its source has it.

    Returns it with its fingerprint, what `data` stood for, and the source in plain words. Raises DataError.
    """
    spec = task_spec(name)
    chosen, source = _choose_source(name, spec, str(data))
    dataset, fingerprint = _load(name, _TASKS[name](spec), chosen)
    if not {"train", "test"} <= set(dataset.splits) <= {"train", "validation", "test"}:
        found = ", ".join(map(str, dataset.splits)) or "none"
        raise DataError(f"task {name!r}: splits from {source} are {found}; expected train, test and perhaps validation")
    for split, examples in dataset.splits.items():
        if not len(examples):
            raise DataError(f"task {name!r}: the {split} split from {source} is empty; give one with examples")
        _check(f"task {name!r}, {split}", examples, spec)
    return dataset, fingerprint, chosen, source


def _check(where: str, split: Split, spec: TaskSpec) -> None:
    """Raise DataError for what the harness could only stumble over later, or would misread."""
    if len(split.inputs) != spec.num_inputs:
        raise DataError(f"{where}: {len(split.inputs)} inputs an example; num_inputs of the YAML is {spec.num_inputs}")
    if split.labels.dtype != np.int64:
        raise DataError(f"{where}: labels are {split.labels.dtype}; expected int64")
    if split.labels.min() < 0 or split.labels.max() >= spec.num_classes:
        raise DataError(f"{where}: a label is not in 0..{spec.num_classes - 1}")
    for tokens in (sequences.tokens for sequences in split.inputs):
        if len(tokens) and not 0 < tokens.min() <= tokens.max() < spec.vocab_size:
            raise DataError(f"{where}: a token is not in 1..{spec.vocab_size - 1}; 0 is padding")


def export_dataset(name: str, dataset: Dataset, folder: Path) -> list[Path]:
    """Write a data set of task `name` in the layout of its release; returns the files. Raises DataError."""
    return _TASKS[name](task_spec(name)).export(dataset, folder)


def _choose_source(name: str, spec: TaskSpec, data: str) -> tuple[str, str]:
    """What "auto" stands for now, other values as they are; and the source in plain words."""
    reason = ""
    if data == "auto" and spec.hub and spec.auto == "hub":
        cache = cache_path(name, _cache_key(_TASKS[name](spec), "hub"))
        known = cache.exists() or hub_answers(spec.hub.repo, spec.hub.revision)
        data = "hub" if known else "embedded"
        reason = f" (the hub did not answer for {spec.hub.repo})"
    elif data == "auto":
        data = "embedded"
    if data == "embedded":
        return data, f"embedded generator{reason}"
    if data != "hub":
        return data, f"local {data}"
    if spec.hub is None:
        raise DataError(f"task {name!r} has no copy on the hub; use --data embedded or a folder")
    return data, f"hub {spec.hub.repo} at {spec.hub.revision[:12]}"


def _cache_key(loader: TaskLoader, data: str, files: list[Path] | None = None) -> dict[str, object]:
    spec, module = loader.spec, type(loader).__module__
    key: dict[str, object] = {
        "version": spec.version,
        "hub": spec.hub.model_dump() if spec.hub and data == "hub" else None,
        "files": None if files is None else file_key(files),
    }
    # A loader outside this package is still being written, and another's may have the same name.
    if not module.startswith(f"{__package__}."):
        key["loader"] = hashlib.sha256(_source_file(module).read_bytes()).hexdigest()
    return key


def _source_file(module: str) -> Path:
    return Path(str(sys.modules[module].__file__))


def _load(name: str, loader: TaskLoader, data: str) -> tuple[Dataset, str]:
    """The data set and its fingerprint, from the cache where it is there."""
    if data == "hub" and (hub := loader.spec.hub):
        return cached(name, _cache_key(loader, data), lambda: _download(loader, hub))
    if data == "embedded":
        return cached(name, _cache_key(loader, data), loader.generate)
    folder = Path(data).expanduser()
    if not folder.exists():
        raise DataError(f"data {data!r} is neither auto, hub, embedded nor an existing folder")
    try:
        files = loader.find(folder)
        return cached(name, _cache_key(loader, data, files), lambda: loader.read(files))
    except OSError as error:
        raise DataError(f"cannot read {error.filename or folder}: {error.strerror or error}") from None


def _download(loader: TaskLoader, hub: HubSource) -> Dataset:
    """The hub's data set; a hub that hangs is found out in seconds rather than after all its library's retries."""
    from huggingface_hub.constants import HF_HUB_OFFLINE

    # Told to stay offline, the library may still have the files from before.
    if not HF_HUB_OFFLINE and not hub_answers(hub.repo, hub.revision):
        raise DataError(f"the hub does not answer for {hub.repo}; try again, or --data embedded or a folder")
    try:
        return loader.download(hub)
    except DataError:
        raise
    except Exception as error:  # the hub's libraries raise many kinds
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise DataError(f"the hub gave no {hub.repo}: {reason}; try --data embedded or a folder") from None


def _hold_out(train: Split, spec: TaskSpec) -> tuple[Split, Split]:
    """Train without validation, and validation: `validation_size` examples, at most a fifth of a small train set."""
    size = min(spec.validation_size, len(train) // 5)
    if not size:
        raise DataError(f"{len(train)} training examples are too few to hold some out for validation; give at least 5")
    held = stratified(train.labels, size, spec.split_seed)
    return train.select(np.setdiff1d(np.arange(len(train)), held)), train.select(held)
