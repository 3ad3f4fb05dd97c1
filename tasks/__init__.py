"""Tasks and their data. Knows neither models nor the harness."""

from . import language_modelling as _language_modelling  # noqa: F401  (they register themselves)
from . import listops as _listops  # noqa: F401
from . import retrieval as _retrieval  # noqa: F401
from . import text as _text  # noqa: F401
from . import translation as _translation  # noqa: F401
from .dataset import DataError, Dataset, Kind, Metric, Split, Task
from .packed import PackedSequences
from .registry import (
    HubSource,
    TaskLoader,
    TaskSpec,
    export_dataset,
    list_tasks,
    load_dataset,
    load_task,
    register_task,
    task_spec,
    trivial_baselines,
)

__all__ = [
    "DataError",
    "Dataset",
    "HubSource",
    "Kind",
    "Metric",
    "PackedSequences",
    "Split",
    "Task",
    "TaskLoader",
    "TaskSpec",
    "export_dataset",
    "list_tasks",
    "load_dataset",
    "load_task",
    "register_task",
    "task_spec",
    "trivial_baselines",
]
