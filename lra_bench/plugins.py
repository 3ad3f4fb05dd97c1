"""Attentions and tasks from files outside the checkout."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec, resolve_name, spec_from_file_location
from itertools import accumulate
from pathlib import Path

from .config import ConfigError, RunConfig, reason_of
from .machine import Code, describe_code

OURS = ("lra_bench", "models", "tasks")


def load_plugins(paths: Iterable[str]) -> None:
    """Import plugin files, which register attentions or tasks. Raises ConfigError when one is missing or fails."""
    for path in map(Path, paths):
        # Files of the same name from two folders are two plugins.
        name = f"plugin_{path.stem}_{hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]}"
        if not path.is_file() or path.suffix != ".py":
            raise ConfigError(f"plugin {str(path)!r} is not an existing .py file")
        if name in sys.modules:
            continue
        spec = spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = module = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except (Exception, SystemExit) as error:
            del sys.modules[name]
            raise ConfigError(f"plugin {path} failed to load: {reason_of(error)}{_hint(error)}") from None


def _hint(error: BaseException) -> str:
    if not isinstance(error, ModuleNotFoundError):
        return ""
    if (error.name or "").partition(".")[0] in OURS:
        return f"; {', '.join(OURS)} are packages of this program here, whatever else has these names"
    return "; install what it imports, or put its folder into PYTHONPATH"


def plugin_source(config: RunConfig) -> str:
    """Text of the module outside this checkout that defines this run's attention or task, and of what it imports.

    Empty when none does. Of imports, direct or not, the user's own count, not what is installed: its versions do not
    decide whether a run is another one.
    """
    import models.registry
    import tasks.registry

    files: dict[str, Path] = {}
    for name in (models.registry.attention_module(config.attention.name), tasks.registry.task_module(config.task)):
        _add_module(name, files)
    # The same text wherever the files lie.
    return "".join(sorted(file.read_text(encoding="utf-8", errors="backslashreplace") for file in files.values()))


def code_now(config: RunConfig, planned: Code) -> Code:
    """What a cell runs whose plugins are loaded: the checkout may have moved on since the cell was planned.

    planned: which also stands for a copy without a repository, as on a cluster's node. Raises RuntimeError where the
    plugin is another one by now.
    """
    now = describe_code(plugin_source(config))
    if now.plugin != planned.plugin:
        raise RuntimeError("the plugin, or what it imports, is not what the run was planned with; start it again")
    return planned if now.commit == "unknown" else now


def _add_module(name: str, files: dict[str, Path]) -> None:
    """Add the file of a module of the user's own, and of those that it imports, to `files` by module name.

    name: as an import has it, a.b.c; c may be something in the module a.b.
    """
    found = None
    for part in accumulate(name.split("."), "{}.{}".format):
        spec = None if part in OURS else _spec(part)
        if spec is None:
            break
        if _is_installed(spec):
            return
        found = spec
    if found is None or found.name in files or not (found.has_location and found.origin):
        return
    files[found.name] = Path(found.origin).resolve()
    for imported in _imports(files[found.name], found.parent or ""):
        _add_module(imported, files)


def _spec(name: str) -> ModuleSpec | None:
    """Where Python finds the module; None where it does not."""
    try:
        return find_spec(name)
    except Exception:  # nothing of that name in the package, or a package that cannot be imported
        return None


def _is_installed(spec: ModuleSpec) -> bool:
    """Whether a module is Python's own or from a package index."""
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or [])
    standard = Path(sysconfig.get_path("stdlib"))
    return not any(
        place and not {"site-packages", "dist-packages"} & {*Path(place).parts} and standard not in Path(place).parents
        for place in places
    )


def _imports(file: Path, package: str) -> Iterator[str]:
    """Names that a file imports, anywhere in it, and that may be modules.

    package: what its relative imports start from.
    """
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError):  # an extension, compiled, or what cannot be imported
        return
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # relative to nothing
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield from (f"{base}.{alias.name}" for alias in node.names)
