"""Names of folders, and writing files so that no reader ever sees half of one."""

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def folder_name(file: Path) -> str:
    """What the folder of `file` is called, wherever links lead: a cache's files may be links into one of hashes."""
    return Path(os.path.abspath(file)).parent.name


@contextmanager
def atomic_path(path: Path) -> Iterator[Path]:
    """A temporary path beside `path` to write to; on leaving it is synced and takes the place of `path`.

    If the body fails the temporary file is removed and `path` stays as it was.

    >>> with atomic_path(Path("record.json")) as temporary:
    ...     temporary.write_text("{}")
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    os.close(descriptor)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        # mkstemp makes files private; give the result the permissions a plain open would.
        umask = os.umask(0)
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        temporary.replace(path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and error.filename is None:
            error.filename = str(path)  # a full disk does not say what it has no room for
        raise
