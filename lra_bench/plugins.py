"""Attentions and tasks from files outside the checkout."""

from __future__ import annotations

import ast
import hashlib
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from contextlib import suppress
from importlib.machinery import ModuleSpec, PathFinder
from importlib.util import find_spec, module_from_spec, resolve_name, spec_from_file_location
from itertools import accumulate
from pathlib import Path

from .config import ConfigError, RunConfig, reason_of
from .machine import Code, describe_code

OURS = ("lra_bench", "models", "tasks")
STANDARD = Path(sysconfig.get_path("stdlib"))


def load_plugins(paths: Iterable[str]) -> list[str]:
    """Import plugin files, which register attentions or tasks. Raises ConfigError when one is missing or fails.

    Returns which of torch's settings they changed, all of which are set back.
    """
    paths = list(paths)
    if not paths:
        return []
    from .torch_settings import read_settings, restore_settings

    before = read_settings()
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
    return restore_settings(before)


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

    names = models.registry.attention_module(config.attention.name), tasks.registry.task_module(config.task)
    files = _own_files(names)
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


def _own_files(names: Iterable[str]) -> dict[str, Path]:
    """The files of these modules and of those that they import, where they are the user's own, by module name."""
    files: dict[str, Path] = {}
    waiting, seen = [*names], set()
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        spec = _own_module(name)
        if spec and spec.origin and spec.name not in files:
            files[spec.name] = Path(spec.origin).resolve()
            waiting += _imports(files[spec.name], spec.parent or "")
    return files


def _own_module(name: str) -> ModuleSpec | None:
    """Where the user's own module lies that an import names; None where it is no such one.

    name: as an import has it, a.b.c; c may be something in the module a.b.
    """
    found = None
    for part in accumulate(name.split("."), "{}.{}".format):
        spec = None if part in OURS else _spec(part, found)
        if spec is None:
            break
        if _is_installed(spec):
            return None
        found = spec
    return found if found and found.has_location else None


def _spec(name: str, package: ModuleSpec | None) -> ModuleSpec | None:
    """Where Python finds the module, in `package` if it is in one, which is not imported for it; None: nowhere."""
    with suppress(Exception):  # nothing of that name, or a finder that fails
        if package is None or name in sys.modules:
            return find_spec(name)
        if package.submodule_search_locations is not None:
            return PathFinder.find_spec(name, package.submodule_search_locations)
    return None


def _is_installed(spec: ModuleSpec) -> bool:
    """Whether a module is Python's own or from a package index."""
    places = [spec.origin] if spec.has_location else list(spec.submodule_search_locations or [])
    return not any(
        place and not {"site-packages", "dist-packages"} & {*Path(place).parts} and STANDARD not in Path(place).parents
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
    statements: list[ast.AST] = [tree]  # which alone can be imports: there are far more expressions
    for node in statements:
        for field in ("body", "orelse", "finalbody", "handlers", "cases"):
            statements += getattr(node, field, [])
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            with suppress(ImportError):  # relative to nothing
                base = resolve_name("." * node.level + (node.module or ""), package)
                yield from (f"{base}.{alias.name}" for alias in node.names)
