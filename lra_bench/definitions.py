"""What a record was run with, after an edit of the file of its attention or of its protocol."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from typing import Any

from .config import NEUTRAL_SETTINGS, SECTIONS, as_typed
from .records import AnyRecord, ProfileRecord

# Not the protocol's to say alone, and told by tables in other words: what the machine can do, and how steps ran.
_ELSEWHERE = NEUTRAL_SETTINGS | {"train.precision", "train.compile"}
# Of a profile these are the command's options.
_OPTIONS = {"data.max_len", "train.batch_size"}
_NAMED = re.compile(r"(?:^| )(\w+\.\w+)=")


def of_latest_protocols(records: Iterable[AnyRecord]) -> list[AnyRecord]:
    """The records, those from before an edit of their protocol renamed as if --set had said what was different.

    The newest record under a name tells what the protocol is now: tables are made of records alone.
    """
    ordered = sorted(records, key=lambda r: (r.created, r.run_id))
    latest = {_protocol(r): _settings(r) for r in ordered}
    return [_renamed(r, latest[_protocol(r)]) for r in ordered]


def _renamed(r: AnyRecord, now: dict[str, Any]) -> AnyRecord:
    then = _settings(r)
    leave = _ELSEWHERE | (_OPTIONS if isinstance(r, ProfileRecord) else set())
    edited = {name for name, value in then.items() if value != now[name]} - leave
    if not edited:
        return r
    words = sorted(as_typed(name, then[name]) for name in edited.union(_NAMED.findall(r.config.overrides)))
    return r.model_copy(update={"config": r.config.model_copy(update={"overrides": " ".join(words)})})


def _protocol(r: AnyRecord) -> tuple[str, ...]:
    return r.config.task, r.config.protocol, r.config.changed, r.config.device


def _settings(r: AnyRecord) -> dict[str, Any]:
    sections = {section: getattr(r.config, section).model_dump(mode="json") for section in SECTIONS}
    return {f"{section}.{name}": value for section, values in sections.items() for name, value in values.items()}


def of_latest_definitions(records: Iterable[AnyRecord], key: Callable[[AnyRecord], object]) -> list[AnyRecord]:
    """The records, oldest first, without those of an attention whose plugin or YAML has been edited since.

    key: what the records of one label in one table have in common; of these all count that were defined as the latest.
    """

    def definition(r: AnyRecord) -> tuple[object, ...]:
        return r.code.plugin, r.config.attention

    ordered = sorted(records, key=lambda r: r.created)
    latest = {key(r): definition(r) for r in ordered}
    return [r for r in ordered if definition(r) == latest[key(r)]]
