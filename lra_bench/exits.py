"""How a command ends: its exit code and, where the input was bad, one line."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import NoReturn

from . import ROOT


def exit_with(command: Callable[[], int | None]) -> NoReturn:
    """Exit with what the command returns; bad input gives one line on stderr and exit code 2, never a traceback."""
    try:
        if not (ROOT / "configs").is_dir():  # a plain `pip install` leaves them behind
            raise FileNotFoundError(f"no configs in {ROOT}; lra-bench runs from its checkout: pip install -e . there")
        code = command()
    except KeyboardInterrupt:
        code = 130
    except Exception as error:
        message = _bad_input(error)
        if message is None:
            raise
        print(f"error: {message}", file=sys.stderr)
        code = 2
    sys.exit(code or 0)


def _bad_input(error: Exception) -> str | None:
    """The line to print when `error` is the user's to mend; None for a fault of ours."""
    from tasks import DataError

    from .config import ConfigError

    # Usage errors of the command line; typer 0.16 and older take theirs from click, newer ones carry their own.
    if hasattr(error, "format_message"):
        return " ".join(str(error.format_message()).split())
    if isinstance(error, ConfigError | DataError):
        return str(error)
    if isinstance(error, OSError):
        return f"{error.filename or ''}: {error.strerror or error}".lstrip(": ")
    return None
