"""Attentions and tasks from files outside the checkout."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable
from pathlib import Path

from .config import ConfigError, RunConfig


def load_plugins(paths: Iterable[str]) -> None:
    """Import plugin files, which register attentions or tasks. Raises ConfigError when one is missing or fails."""
    for path in map(Path, paths):
        # Files of the same name from two folders are two plugins.
        name = f"plugin_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
        if not path.is_file() or path.suffix != ".py":
            raise ConfigError(f"plugin {str(path)!r} is not an existing .py file")
        if name in sys.modules:
            continue
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            reason = (str(error).splitlines() or [""])[0]
            raise ConfigError(f"plugin {path} failed to load: {type(error).__name__}: {reason}") from None


def plugin_source(config: RunConfig) -> str:
    """Text of the plugin that defines this run's attention or task, empty when none does."""
    import models.registry
    import tasks.registry

    modules = {models.registry.attention_module(config.attention.name), tasks.registry.task_module(config.task)}
    files = {Path(str(sys.modules[m].__file__)).resolve() for m in modules if m.startswith("plugin_")}
    return "".join(file.read_text(encoding="utf-8") for file in sorted(files))
