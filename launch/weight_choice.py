"""weights=auto: the transport that fits where learner and engines are, chosen once, before anything starts. Pure.

Called where a configuration is composed (compose.py); what was chosen and why stands in the run's config.yaml as
`weights.transport` and `weights.auto_reason`. It never overrules a transport that was named.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from headrace.launch.checks import ENGINE_ROLES, LOCAL_LAUNCHER, VLLM, value_at
from headrace.launch.topology import ProcessPlan

AUTO = "auto"
IN_PROCESS = "headrace.launch.inprocess.InProcessLauncher"
ONE_HOST_LAUNCHERS = (LOCAL_LAUNCHER, IN_PROCESS)
VLLM_SERVER = "headrace.actors.generator.vllm_server_engine.VllmServerEngine"


@dataclass(frozen=True, slots=True)
class WeightChoice:
    transport: str
    reason: str


def choose_transport(config: Mapping[str, Any], processes: Sequence[ProcessPlan], *, has_cupy: bool) -> WeightChoice:
    """`processes`: as the topology plans them; none where it cannot be planned. `has_cupy`: in the environment that
    every process of the run has."""
    engines = [process for process in processes if process.role in ENGINE_ROLES]
    learner = next((process for process in processes if process.role == "learner"), None)
    kinds = {role: str(value_at(config, f"{role}.engine._target_")) for role in ENGINE_ROLES}
    if learner is None or not engines:
        return WeightChoice("shm", "no learner and engines are placed together")
    if any(kinds[process.role] == VLLM_SERVER for process in engines):
        return WeightChoice(
            "checkpoint", "a vllm serve takes weights from folders wherever it runs (with GPUs, weights=nccl too)"
        )
    far = sorted({process.node for process in engines if process.node != learner.node})
    if far:
        return _across_nodes(config, processes, far)
    why_not_on_gpus = _why_not_on_gpus(config, learner, engines, kinds, has_cupy=has_cupy)
    if why_not_on_gpus:
        return WeightChoice("shm", f"one node; {why_not_on_gpus}")
    if all(process.devices == learner.devices for process in engines):
        return WeightChoice("ipc", f"learner and engines share GPU {learner.devices[0]}")
    owners = [learner, *engines]
    taken = [device for process in owners for device in process.devices]
    if len(set(taken)) == len(taken) and all(len(process.actors) == 1 for process in engines):
        return WeightChoice("nccl", "one node; learner and each engine have GPUs of their own")
    return WeightChoice("shm", "one node; some processes share a GPU and some do not")


def _across_nodes(config: Mapping[str, Any], processes: Sequence[ProcessPlan], far: Sequence[str]) -> WeightChoice:
    relays = {process.node for process in processes if process.role == "relay"}
    one_host = value_at(config, "launch._target_") in ONE_HOST_LAUNCHERS
    if one_host and not relays.intersection(far):
        return WeightChoice("shm", "several nodes that one host plays, without relays")
    return WeightChoice("stream", f"engines on other nodes than the learner: {', '.join(far)}")


def _why_not_on_gpus(
    config: Mapping[str, Any],
    learner: ProcessPlan,
    engines: Sequence[ProcessPlan],
    kinds: Mapping[str, str],
    *,
    has_cupy: bool,
) -> str:
    """Empty where weights can stay on GPUs."""
    if not str(value_at(config, "learner.device")).startswith("cuda"):
        return "the learner is on the CPU"
    if value_at(config, "launch._target_") == IN_PROCESS:
        return "one process is all actors"
    if not learner.devices:
        return "the topology gives the learner no GPU"
    if value_at(config, "learner.lora") is not None:
        return "adapters are small"
    for process in engines:
        if not process.devices:
            return f"{process.name} has no GPU"
        if kinds[process.role] != VLLM:
            return f"the engine of {process.name} is on the CPU"
    return "" if has_cupy else "CuPy (headrace[cuda]) is not installed"
