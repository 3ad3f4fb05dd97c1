"""Tasks and their data. Knows neither models nor the harness."""

from . import text as _text  # noqa: F401  (registers it)
from .dataset import DataError, Dataset, Split, Task
from .packed import PackedSequences
from .registry import HubSource, TaskLoader, TaskSpec, list_tasks, load_task, register_task, task_spec

__all__ = [
    "DataError",
    "Dataset",
    "HubSource",
    "PackedSequences",
    "Split",
    "Task",
    "TaskLoader",
    "TaskSpec",
    "list_tasks",
    "load_task",
    "register_task",
    "task_spec",
]
