"""Parquet files with the columns a task needs."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .dataset import DataError
from .files import atomic_path

if TYPE_CHECKING:
    import pyarrow as pa


def read_columns(file: Path, columns: list[str]) -> pa.Table:
    """The named columns of a file. Raises DataError when it is no parquet file, a damaged one or lacks a column."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(file)
        table.validate(full=True)  # texts are UTF-8, for one
    except (pa.ArrowException, OSError) as error:
        if getattr(error, "errno", None):  # the system's, such as a missing permission
            raise
        raise DataError(f"{file} is not a whole parquet file ({str(error).splitlines()[0]}); fetch it again") from None
    if missing := [column for column in columns if column not in table.column_names]:
        raise DataError(f"{file} has no column {missing[0]!r}; expected {', '.join(columns)}")
    return table.select(columns)


def text_column(texts: list[bytes]) -> pa.Array:
    """Texts as a column of strings; of bytes where one is not UTF-8, as a text cut within a letter is not."""
    import pyarrow as pa

    try:
        return pa.array([text.decode() for text in texts], pa.large_string())
    except UnicodeDecodeError:
        return pa.array(texts, pa.large_binary())


def write_parquet(file: Path, columns: Mapping[str, Any]) -> Path:
    """Write columns atomically and return the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with atomic_path(file) as temporary:
        pq.write_table(pa.table(dict(columns)), temporary, compression="zstd")
    return file
