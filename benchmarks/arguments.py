"""What the command lines of the benchmarks share; bad input is one line and exit code 2."""

import argparse
from collections.abc import Iterable

from lra_bench.config import ConfigError
from lra_bench.plugins import load_plugins
from lra_bench.protocols import unknown
from models import UnknownAttention, attention_forms, check_settings, list_attentions


def count_of(text: str) -> int:
    """A positive whole number."""
    if not text.strip().isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a positive whole number")
    return int(text)


def counts_of(text: str) -> list[int]:
    """Positive whole numbers separated by commas."""
    return [count_of(part) for part in text.split(",")]


def add_plugin(parser: argparse.ArgumentParser) -> None:
    """The option --plugin, for `plugged`."""
    parser.add_argument("--plugin", action="append", default=[], help="file with attentions of your own")


def plugged(paths: Iterable[str], form: str) -> list[str]:
    """Names of the attentions that plugins bring and that have the form; see `models.attention_forms`.

    Raises ConfigError where there are some but none has it, and for a setting without a default.
    """
    ours = set(list_attentions())
    load_plugins(paths)
    found = [name for name in list_attentions() if name not in ours]
    try:
        able = [name for name in found if form in attention_forms(name, check_settings(name, {}))]
    except UnknownAttention as error:
        raise ConfigError(str(error)) from None
    if found and not able:
        raise ConfigError(f"none of {', '.join(found)} has the form that this needs, {form}")
    return able


def check_known(what: str, asked: Iterable[str], known: Iterable[str]) -> None:
    """Raise ConfigError for a name that is not among the known ones."""
    known = set(known)
    for name in asked:
        if name not in known:
            raise unknown(what, name, known)
