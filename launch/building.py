"""Makes the object that a part of the configuration describes, or says by key what its constructor refused."""

from __future__ import annotations

import re
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hydra.errors import InstantiationException
from hydra.utils import instantiate

from headrace.launch.checks import value_at
from headrace.launch.problems import Problem, shorten

_OURS = [Path(__file__).parents[1] / folder for folder in ("actors", "launch", "transport")]


def build(config: Mapping[str, Any], key: str) -> tuple[Any, list[Problem]]:
    """Make the object that `config` describes, or say what its constructor refused."""
    try:
        return instantiate(dict(config), _convert_="all"), []
    except InstantiationException as error:
        return None, [_refusal(config, key, error)]
    except SystemExit as error:
        fix = f"it called sys.exit({error.code!r}); raise an error that says what is wrong"
        return None, [Problem(key, shorten(config["_target_"]), "a constructor that returns", fix)]


def _refusal(config: Mapping[str, Any], key: str, error: InstantiationException) -> Problem:
    """Constructors begin with the name of the argument that they refuse: that is the key. ("learner.lr must be >= 0,
    got -1; 0 trains nothing.")"""
    cause = error.__cause__ or error
    inner = re.search(r"^full_key: (\S+)$", str(error), re.MULTILINE)
    path = [key, *inner[1].split(".")] if inner else [key]
    node = value_at({key: config}, ".".join(path))
    given = target = node["_target_"] if isinstance(node, Mapping) and "_target_" in node else config["_target_"]
    for name in re.split(r"[^\w.]", str(cause), maxsplit=1)[0].split("."):
        if isinstance(node, Mapping) and name in node:
            path, node = [*path, name], node[name]
            given = node
    where, text = ".".join(path), str(cause)
    if given is target:  # it names no argument: no refusal, perhaps a defect
        reason = f"{type(cause).__name__}: {text}{_place_of(cause)}"
        return Problem(where, shorten(given), "a configuration that its constructor takes", reason)
    said = re.fullmatch(r"[\w.]+ must be (.+?), got (?:.*?)(?:[;:] (.+))?", text, re.DOTALL)
    if said is None:
        return Problem(where, shorten(given), "what the reason says", text)
    return Problem(where, shorten(given), said[1], said[2] or "correct it")


def _place_of(error: BaseException) -> str:
    """Where it was raised, unless that is Headrace's own code, whose texts say all."""
    frames = traceback.extract_tb(error.__traceback__)
    if not frames or any(map(Path(frames[-1].filename).is_relative_to, _OURS)):
        return ""
    return f" ({frames[-1].filename}:{frames[-1].lineno})"
