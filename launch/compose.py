"""From overrides on the command line to one plain dictionary. The only module that knows Hydra's composition.

Containers are plain dicts and lists from here on (cases I118). Raises ConfigError with every key that does not exist.
"""

from __future__ import annotations

import importlib.util
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_module
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from headrace.launch.problems import ConfigError, Problem, did_you_mean, listing, shorten
from headrace.launch.topology import plan_topology, roles_of
from headrace.launch.weight_choice import AUTO, WeightChoice, choose_transport

CONFIG_MODULE = "headrace.configs"
CONFIG_NAME = "launch"


@dataclass(frozen=True, slots=True)
class Composed:
    """A composed configuration whose run folder is not known yet. `overrides`, and the folders and the root that they
    are of, are what made it."""

    config: DictConfig
    overrides: tuple[str, ...]
    config_dirs: tuple[Path, ...] = ()
    config_name: str = CONFIG_NAME

    def as_yaml(self, *, resolve: bool) -> str:
        """What only a run has stands in it as <run.dir> and <run.id>."""
        config = self.resolve(dir="<run.dir>", id="<run.id>") if resolve else self.config
        return str(OmegaConf.to_yaml(config))

    def resolve(self, **run: str) -> dict[str, Any]:
        """Plain containers, each interpolation replaced. `run` fills the root key `run` (dir, id, …)."""
        config = self.config.copy()
        OmegaConf.set_struct(config, False)
        config.run = OmegaConf.merge(config.get("run") or {}, run)
        try:
            missing = sorted(OmegaConf.missing_keys(config))
            if missing:
                raise ConfigError([Problem(key, "nothing", "a value", f"set it: {key}=…") for key in missing])
            plain = OmegaConf.to_container(config, resolve=True, throw_on_missing=True)
        except OmegaConfBaseException as error:
            raise ConfigError([_omegaconf_problem(error)]) from error
        assert isinstance(plain, dict)
        return {str(key): value for key, value in plain.items()}

    def origins(self, keys: Sequence[str]) -> list[str]:
        """The keys that a user sets for what stands at these."""
        raw = OmegaConf.to_container(self.config, resolve=False)
        return [_origin(raw, key) for key in keys]

    def at_origins(self, problems: Sequence[Problem]) -> list[Problem]:
        """The same problems by the keys that a user sets: `learner.weights_dtype` is an interpolation of
        `weights.dtype`, and so on. What is one problem then is there once."""
        origins = self.origins([problem.key for problem in problems])
        moved = (replace(problem, key=key) for problem, key in zip(problems, origins, strict=True))
        return list(dict.fromkeys(moved))


def _origin(raw: object, key: str) -> str:
    node = raw
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not isinstance(node, dict) or part not in node:
            return key
        node = node[part]
        source = re.fullmatch(r"\$\{(oc\.select:)?([\w.]+)(?(1),.*)\}", node) if isinstance(node, str) else None
        if source and (not source[1] or _has(raw, source[2])):
            return _origin(raw, ".".join([source[2], *parts[depth + 1 :]]))
    return key


def _has(node: object, key: str) -> bool:
    for part in key.split("."):
        if not isinstance(node, dict) or part not in node:
            return False
        node = node[part]
    return True


def compose_config(
    overrides: Sequence[str], *, config_dirs: Sequence[Path] = (), config_name: str = CONFIG_NAME
) -> Composed:
    """Compose `configs/launch.yaml` with these overrides. `config_dirs` are searched after it (a user's own groups).
    weights=auto is resolved here."""
    _check_folders(config_dirs)
    search = (
        [f"hydra.searchpath=[{','.join('file://' + str(d.absolute()) for d in config_dirs)}]"] if config_dirs else []
    )
    parsed = [_parse(text) for text in overrides]
    made_of = (tuple(overrides), tuple(path.absolute() for path in config_dirs), config_name)
    with initialize_config_module(CONFIG_MODULE, version_base="1.3"):
        wrong = _wrong_choices(parsed)
        if wrong:
            raise ConfigError(wrong)
        try:
            composed = Composed(compose(config_name, [*search, *overrides]), *made_of)
            choice = _choose_weights(composed)
            if choice is None:
                return composed
            kept = [o.input_line or "" for o in parsed if o.key_or_group not in ("weights", "weights.transport")]
            config = compose(config_name, [*search, *kept, f"weights={choice.transport}"])
            OmegaConf.update(config, "weights.auto_reason", choice.reason, force_add=True)
            return Composed(config, *made_of)
        except (HydraException, OmegaConfBaseException) as error:
            if isinstance(error, MissingConfigException) and error.missing_cfg_file == config_name:
                fix = "the root of a configuration of your own lies in a --config-dir"
                raise ConfigError([Problem("--config-name", repr(config_name), CONFIG_NAME, fix)]) from error
            problems = _unknown_keys(parsed, search, config_name)
            raise ConfigError(problems or [_hydra_problem(error)]) from error


def _choose_weights(composed: Composed) -> WeightChoice | None:
    """None where a transport was named, or where values are missing: whoever resolves the configuration says so."""
    if OmegaConf.select(composed.config, "weights.transport") != AUTO:
        return None
    try:
        config = composed.resolve(dir="?", id="?")
    except ConfigError:
        return None
    processes, _ = plan_topology(config.get("topology") or {}, roles_of(config))
    return choose_transport(config, processes, has_cupy=importlib.util.find_spec("cupy") is not None)


def sweep(overrides: Sequence[str]) -> list[tuple[str, ...]]:
    """The jobs of `--multirun`: the product of all comma-separated values, in order."""
    jobs: list[tuple[str, ...]] = [()]
    for text in overrides:
        override = _parse(text)
        if override.is_sweep_override():
            key = override.get_key_element()
            choices = [f"{key}={value}" for value in override.sweep_string_iterator()]
        else:
            choices = [text]
        jobs = [(*job, choice) for job in jobs for choice in choices]
    return jobs


def _check_folders(config_dirs: Sequence[Path]) -> None:
    missing = [d for d in config_dirs if not d.is_dir()]
    if missing:
        raise ConfigError(
            [Problem("--config-dir", str(d), "a folder that exists", "correct the path") for d in missing]
        )


def key_of(text: str) -> str:
    """The key or group that an override sets."""
    return str(_parse(text).get_key_element()).lstrip("+~")


def _parse(text: str) -> Override:
    try:
        return OverridesParser.create().parse_override(text)
    except HydraException as error:
        fix = "write it as key=value; quote a value with special characters: 'key=\"a,b\"'"
        raise ConfigError([Problem(text, repr(text), "key=value, +key=value or ~key", fix)]) from error


def _unknown_keys(parsed: Sequence[Override], search: list[str], config_name: str) -> list[Problem]:
    """Compare each override with what composes without any of them but the choices of groups."""
    groups = [
        o for o in parsed if "/" in o.key_or_group or "@" in (o.input_line or "").partition("=")[0] or o.is_delete()
    ]
    try:
        base = compose(config_name, search)
    except (HydraException, OmegaConfBaseException):
        return []
    problems: list[Problem] = []
    kept: list[str] = []
    for override in parsed:
        line = override.input_line or ""
        if override in groups or not _is_value(base, override):
            try:
                base = compose(config_name, [*search, *kept, line])
                kept.append(line)
            except (HydraException, OmegaConfBaseException) as error:
                known = override.key_or_group in _groups(override.key_or_group)
                problems.append(_hydra_problem(error, override.key_or_group) if known else _no_such(base, override))
    for override in parsed:
        line = override.input_line or ""
        if line in kept or override in groups or override.is_add() or override.is_force_add():
            continue
        problem = _unknown_key(base, override.key_or_group)
        if problem is not None and all(problem.key != other.key for other in problems):
            problems.append(problem)
    return problems


def _groups(key: str) -> list[str]:
    """The groups beside `key`: those of the root for "learner", the learner's for "learner/objective"."""
    parent = key.rpartition("/")[0]
    names = GlobalHydra.instance().config_loader().list_groups(parent)
    return [f"{parent}/{name}" if parent else name for name in names]


def _wrong_choices(parsed: Sequence[Override]) -> list[Problem]:
    """Groups that were given something else than the name of a choice: Hydra's own error has no key."""
    problems = []
    for override in parsed:
        key = override.key_or_group
        if override.is_delete() or override.is_sweep_override() or isinstance(override.value(), str | list):
            continue
        if key in _groups(key):
            choices = GlobalHydra.instance().config_loader().get_group_options(key)
            fix = f"name one, as in {key}={choices[0]}; single values are set with {key.replace('/', '.')}.NAME=…"
            problems.append(Problem(key, shorten(override.value()), f"the choices {listing(choices)}", fix))
    return problems


def _no_such(base: DictConfig, override: Override) -> Problem:
    """The override names neither a group nor a key of the configuration."""
    key = override.key_or_group
    keys = [] if "/" in key else [str(k) for k in base]
    known = {*_groups(key), *keys} - {"hydra"}
    elsewhere = sorted(_paths_to(base, key), key=lambda path: (path.count("."), path))
    if elsewhere:
        fix = f"did you mean {' or '.join(f'{path}=…' for path in elsewhere[:3])}?"
    else:
        fix = did_you_mean(key, known, "values stand below a group, as in learner.lr=…; --cfg job prints all of them")
    return Problem(key, f"the unknown key {key!r}", f"the groups and keys {listing(known, at_most=40)}", fix)


def _paths_to(node: DictConfig, name: str, prefix: str = "") -> Iterator[str]:
    """The keys of the configuration that end in `name`."""
    for key in node:
        path = f"{prefix}{key}"
        if key == name:
            yield path
        child = node._get_node(key)
        if isinstance(child, DictConfig) and not child._is_none() and not child._is_interpolation():
            yield from _paths_to(child, name, f"{path}.")


def _is_value(base: DictConfig, override: Override) -> bool:
    """False for the choice of a group at the root (experiment=…): its key is no value of the configuration."""
    key = override.key_or_group
    if "." in key or override.is_add() or override.is_force_add():
        return True
    return key in base and not isinstance(base[key], DictConfig)


def _unknown_key(base: DictConfig, key: str) -> Problem | None:
    node: Any = base
    parts = key.split(".")
    for depth, part in enumerate(parts):
        known = [str(k) for k in node] if isinstance(node, DictConfig) else []
        if part not in known:
            where = ".".join(parts[:depth]) or "the configuration"
            otherwise = f"a new key is added with +{key}=… (its class must take it)"
            fix = did_you_mean(part, known, otherwise)
            return Problem(key, f"the unknown key {part!r}", f"the keys of {where}: {listing(known)}", fix)
        node = node._get_node(part) if not OmegaConf.is_missing(node, part) else None
        if OmegaConf.is_interpolation(node):
            return None
    return None


def _hydra_problem(error: Exception, key: str = "") -> Problem:
    """Hydra's own message, in our form: its first line says what is wrong, the rest what there is."""
    first, _, rest = str(error).strip().partition("\n")
    merging = re.match(r"Error merging override \+*([^=]+)=(.*)", first)
    if merging:
        cause = (str(error.__cause__ or "").strip() or first).splitlines()[0]
        return Problem(merging[1], merging[2], "a value of the kind that stands there", cause)
    known = [line.strip() for line in rest.splitlines() if line.strip() and "/" not in line and ":" not in line]
    name = (first.split("'")[-2:-1] or [""])[0]  # the last quoted word: "In 'launch': Could not find 'experiment/x'"
    group, _, wanted = name.rpartition("/")
    if group:
        key, first = key or group, repr(wanted)
    known = [one for one in known if not one.startswith("_")]  # what the choices of a group have in common
    advice = " ".join(rest.partition("Config search path")[0].split())
    if known or not advice:
        advice = "choose one of these; docs/configuration.md says what each is for"
    fix = did_you_mean(wanted, known, advice)
    return Problem(key or name or "the configuration", first, listing(known) if known else "what configs/ holds", fix)


def _omegaconf_problem(error: OmegaConfBaseException) -> Problem:
    no_mapping = re.search(r"node `([^`]+)` is not a container", str(error))
    if no_mapping:
        key = no_mapping[1]
        return Problem(key, "a single value", "a mapping, whose keys others refer to", f"set its keys: {key}.NAME=…")
    key = getattr(error, "full_key", None) or "the configuration"
    first = str(error).splitlines()[0]
    return Problem(str(key), first, "a value, or an interpolation that can be resolved", f"set it: {key}=…")
