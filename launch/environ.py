"""The one module that reads or makes environment variables. Called by the launcher for itself and for each child
process.

Nothing else in Headrace reads `os.environ`: what a process needs beyond this is in its configuration.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from headrace.launch.topology import ProcessPlan

DEVICE_VARIABLE = "CUDA_VISIBLE_DEVICES"
_THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "NUMEXPR_NUM_THREADS")


def launcher_environment() -> dict[str, str]:
    """A copy of this process's environment."""
    return dict(os.environ)


def child_environment(
    base: Mapping[str, str], process: ProcessPlan, *, offline: bool, private_folder: str | None = None
) -> dict[str, str]:
    """The environment of one child. `offline`: the model is a local folder, so no hub is asked for anything.
    `private_folder`: goes with the run, and with it the sockets of an engine that was killed.

    A child sees its own devices only, whatever the launcher sees, also none: a library that takes device 0 then takes
    the right one (cases H110).
    """
    env = dict(base)
    env[DEVICE_VARIABLE] = ",".join(process.devices)
    env["PYTHONUNBUFFERED"] = "1"  # what a process printed before it died is in its log
    env["PYTHONFAULTHANDLER"] = "1"
    env.update(library_settings(base, offline=offline))
    if private_folder is not None:
        env["VLLM_RPC_BASE_PATH"] = private_folder
    if process.threads is not None:
        env.update(dict.fromkeys(_THREAD_VARIABLES, str(process.threads)))
    env.update(process.environment)
    return env


def library_settings(base: Mapping[str, str], *, offline: bool) -> dict[str, str]:
    """What every process that hosts actors needs set for the libraries it imports."""
    settings = {
        "TOKENIZERS_PARALLELISM": "false",  # its threads and fork warnings buy nothing for single prompts
        "VLLM_NO_USAGE_STATS": "1",
        "DO_NOT_TRACK": "1",
        # engines and the learner share the cores; pinning starves one of them
        "VLLM_CPU_OMP_THREADS_BIND": base.get("VLLM_CPU_OMP_THREADS_BIND", "nobind"),
        # threads that spin at OpenMP's barriers take the cores of the processes beside them: on two shared cores a
        # learner with two spinning threads is ten times slower than with two sleeping ones
        "OMP_WAIT_POLICY": base.get("OMP_WAIT_POLICY", "PASSIVE"),
        "GOMP_SPINCOUNT": base.get("GOMP_SPINCOUNT", "0"),
        "KMP_BLOCKTIME": base.get("KMP_BLOCKTIME", "0"),
        # a fork would inherit live sockets
        "VLLM_WORKER_MULTIPROC_METHOD": base.get("VLLM_WORKER_MULTIPROC_METHOD", "spawn"),
    }
    if offline:
        settings |= {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
    return settings


def set_for_this_process(variables: Mapping[str, str]) -> None:
    """For the in-process launcher, which has no children to give variables to. Call before heavy imports."""
    os.environ.update(variables)


def check_distinct_devices(environments: Sequence[tuple[str, str, Mapping[str, str]]]) -> None:
    """(process, node, environment) of all processes of a topology that do not share. Raises ValueError where two of a
    node see one device."""
    owners: dict[tuple[str, str], str] = {}
    for process, node, environment in environments:
        for device in filter(None, environment.get(DEVICE_VARIABLE, "").split(",")):
            other = owners.setdefault((node, device), process)
            if other != process:
                raise ValueError(f"{other} and {process} both see device {device} of node {node}; list more devices")
