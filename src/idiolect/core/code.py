"""Code that is named: `path/to/file.py:name` or `package.module:name`, for whatever a user writes himself."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from .beside import gather_imports
from .errors import IdiolectError, InputError, UnknownNameError
from .expressions import names_code
from .imports import checked_imports
from .installed import is_installed
from .options import did_you_mean
from .trust import allow_code

_MODULE = re.compile(r"[A-Za-z_]\w*(\.\w+)*:[A-Za-z_]\w*")


def may_name_code(name: str) -> bool:
    """Whether a name can be that of code, also of a module outside of packages, which looks like `dirichlet:value`."""
    return names_code(name) or _MODULE.fullmatch(name) is not None


def shorten_code(name: str) -> str:
    """The name of code without the folder of its file, for tables.

    >>> shorten_code("/home/me/my_data.py:load"), shorten_code("package.module:load")
    ('my_data.py:load', 'package.module:load')
    """
    place, colon, attribute = name.rpartition(":")
    return f"{Path(place).name}:{attribute}" if colon and place.endswith(".py") else name


def load_code(name: str, kind: str) -> Any:
    """What `file.py:name` or `package.module:name` names; `kind` says in messages what it should be."""
    place, _, attribute = name.rpartition(":")
    module = _load_file(Path(place), name) if place.endswith(".py") else _load_module(place, name, kind)
    if not hasattr(module, attribute):
        own = [known for known, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
        raise UnknownNameError(f"{place} has no {attribute!r} that is a {kind}.{did_you_mean(attribute, own)}")
    return getattr(module, attribute)


def name_code(thing: Any) -> str:
    """The name by which `load_code` finds a class or function again; "" where it finds none, as of one that was typed
    into a notebook, or that a function made.

    >>> from idiolect.core.errors import InputError
    >>> name_code(InputError), name_code(lambda: 1)
    ('idiolect.core.errors:InputError', '')
    """
    name, module = getattr(thing, "__qualname__", ""), sys.modules.get(getattr(thing, "__module__", ""))
    if module is None or module.__name__ == "__main__" or getattr(module, name, None) is not thing:
        return ""
    path = getattr(module, "__file__", None)
    if path is not None and module.__name__ == _name_module(Path(path)):
        return f"{path}:{name}"
    return f"{module.__name__}:{name}"


def _load_file(path: Path, name: str) -> ModuleType:
    if not path.is_file():
        raise UnknownNameError(
            f"{name!r}: there is no file {str(path)!r} in {Path.cwd()}; write path/to/file.py:Name, with the whole path"
            " if you are elsewhere than before"
        )
    path, content = path.resolve(), path.read_bytes()
    beside = gather_imports(path, content)
    whole = b"\n".join([content, *(text for _, text in beside.values())])
    allow_code(name, content, path)
    for file, text in beside.values():
        allow_code(name, text, file, imported=True)
    if (path, whole) not in _modules:
        with checked_imports(name, beside, [_name_module(path)]):
            _modules[path, whole] = _run_file(path, content)
    return _modules[path, whole]


def _load_module(module: str, name: str, kind: str) -> ModuleType:
    file = _find_module(module)
    if file is None:
        raise UnknownNameError(
            f"there is no {kind} {name!r}: no module {module!r} can be imported here; for a file write"
            " path/to/file.py:Name"
        )
    allow_code(name, file.read_bytes(), file)
    with user_code(f"the module {module} cannot be imported"), checked_imports(name, {}, [module]):
        return importlib.import_module(module)


def _find_module(module: str) -> Path | None:
    """The file of a module, found without importing anything."""
    search: Any = None
    spec = None
    for end in range(1, module.count(".") + 2):
        spec = importlib.machinery.PathFinder.find_spec(".".join(module.split(".")[:end]), search)
        if spec is None:
            return None
        search = spec.submodule_search_locations
    return Path(spec.origin) if spec is not None and spec.origin else None


_modules: dict[tuple[Path, bytes], ModuleType] = {}
"""The files that were run, by place and content, so that their classes are the same ones each time."""


def loaded_modules() -> list[ModuleType]:
    """The modules of all files that were loaded, which no other process can import by their names."""
    return [module for module in _modules.values() if sys.modules.get(module.__name__) is module]


def _name_module(path: Path) -> str:
    return f"{path.stem} in {path.parent}"


def _run_file(path: Path, content: bytes) -> ModuleType:
    """The module in a file. What runs is this content, and nothing that was compiled before."""
    spec = importlib.util.spec_from_file_location(_name_module(path), path)
    assert spec
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    with user_code(f"the code in {path} cannot be run"):
        exec(compile(content, path, "exec", dont_inherit=True), module.__dict__)
    return module


@contextmanager
def user_code(problem: str, kind: type[InputError] = InputError) -> Iterator[None]:
    """What a user's code raises in here becomes one sentence: the problem, the line, and what was raised."""
    try:
        yield
    except IdiolectError:
        raise
    except (Exception, SystemExit) as error:
        raise kind(f"{problem}: {explain(error)}") from error


def explain(error: BaseException) -> str:
    """An exception in one line, with the line of the user's code that it comes from, if there is one."""
    if isinstance(error, SyntaxError) and error.filename:
        return f"{error.filename}, line {error.lineno}: {type(error).__name__}: {error.msg}"
    text = str(error).strip()
    what = f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
    where, trace = "", error.__traceback__
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        if not file.startswith("<") and not is_installed(file):
            where = f"{file}, line {trace.tb_lineno}: "
        trace = trace.tb_next
    return where + what
