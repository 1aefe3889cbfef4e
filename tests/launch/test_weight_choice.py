"""weights=auto as a table: where learner and engines are, and what carries the weights."""

from __future__ import annotations

from typing import Any

import pytest

from headrace.launch.compose import compose_config
from headrace.launch.topology import plan_topology, roles_of
from headrace.launch.weight_choice import choose_transport

CUDA = ["learner.device=cuda"]
ALL_VLLM = ["generator/engine=vllm", "evaluator/engine=vllm"]
EVALUATOR_TOO = ["+topology.nodes.local.actors.evaluator.devices=1", "topology.nodes.local.devices=[0,1,2]"]
NO_EVALUATOR = ["~topology.nodes.local.actors.evaluator"]
NO_RELAY = ["topology.nodes.rollout.actors.relay.count=0"]


def composed(*overrides: str) -> Any:
    return compose_config(overrides).resolve(dir="runs/x", id="1")


@pytest.mark.parametrize(
    ("overrides", "has_cupy", "transport", "reason"),
    [
        ([], True, "shm", "the learner is on the CPU"),
        (["topology=one_gpu", *ALL_VLLM], True, "shm", "the learner is on the CPU"),
        (["generator/engine=vllm_server"], True, "checkpoint", "from folders"),
        (["topology=two_hosts"], False, "stream", "on other nodes than the learner: rollout"),
        (["topology=two_hosts", *CUDA, *ALL_VLLM], True, "stream", "rollout"),
        (["topology=two_hosts", *NO_RELAY], True, "shm", "one host plays, without relays"),
        (["topology=two_hosts", *NO_RELAY, "launch._target_=x.Slurm"], True, "stream", "rollout"),
        (["topology=two_nodes_one_host"], True, "shm", "without relays"),
        (["topology=one_gpu", *CUDA, *ALL_VLLM], True, "ipc", "share GPU 0"),
        (["topology=one_gpu", *CUDA, *ALL_VLLM], False, "shm", "CuPy (headrace[cuda]) is not installed"),
        (["topology=one_gpu", *CUDA, "generator/engine=vllm"], True, "shm", "engine of evaluator-0 is on the CPU"),
        (["topology=one_gpu", *CUDA, *ALL_VLLM, "learner/lora=default"], True, "shm", "adapters"),
        (["topology=one_gpu", *CUDA, *ALL_VLLM, "launch=inprocess"], True, "shm", "one process"),
        (["topology=one_gpu_each", *CUDA, *ALL_VLLM], True, "shm", "evaluator-0 has no GPU"),
        (["topology=one_gpu_each", *CUDA, *ALL_VLLM, *EVALUATOR_TOO], True, "nccl", "GPUs of their own"),
        (["topology=one_gpu_each", *CUDA, *ALL_VLLM, *EVALUATOR_TOO], False, "shm", "CuPy"),
        (["topology=one_gpu_each", *CUDA, *ALL_VLLM, *NO_EVALUATOR], True, "nccl", "GPUs of their own"),
        (["topology=laptop", *CUDA, *ALL_VLLM], True, "shm", "gives the learner no GPU"),
        (
            ["topology=one_gpu", *CUDA, *ALL_VLLM, "topology.nodes.local.devices=[0,1]",
             "topology.nodes.local.actors.generator.shared=false"],
            True, "shm", "some processes share a GPU and some do not",
        ),
    ],
)  # fmt: skip
def test_what_fits(overrides: list[str], has_cupy: bool, transport: str, reason: str) -> None:
    config = composed("weights=shm", *overrides)  # no GPU is looked for here: only places count
    processes, problems = plan_topology(config["topology"], roles_of(config))
    assert not problems
    choice = choose_transport(config, processes, has_cupy=has_cupy)
    assert choice.transport == transport
    assert reason in choice.reason


def test_a_topology_that_cannot_be_planned_is_not_this_ones_business() -> None:
    assert choose_transport({}, (), has_cupy=True).transport == "shm"


def test_auto_is_the_default_and_leaves_its_word_and_reason_in_the_configuration() -> None:
    config = composed()
    assert config["weights"]["transport"] == config["learner"]["weights_transport"] == "shm"
    assert config["weights"]["auto_reason"] == "one node; the learner is on the CPU"
    assert "auto_reason" not in composed("weights=shm")["weights"]


def test_what_was_chosen_brings_its_own_values_and_the_users_stay() -> None:
    config = composed("topology=two_hosts", "weights.every_steps=2", "weights.num_buffers=3")
    assert config["weights"]["transport"] == "stream"
    assert config["weights"]["bucket_bytes"] == 4194304
    assert config["weights"]["delta"] is False
    assert (config["weights"]["every_steps"], config["weights"]["num_buffers"]) == (2, 3)
    assert composed("topology=two_hosts", "weights.bucket_bytes=1048576")["learner"]["weights_bucket_bytes"] == 1048576


@pytest.mark.parametrize(
    "named", [["weights=shm", "weights.transport=auto"], ["weights=auto"], ["weights.transport=auto"]]
)
def test_auto_in_any_writing(named: list[str]) -> None:
    assert composed("topology=two_hosts", *named)["weights"]["transport"] == "stream"


def test_a_transport_that_was_named_is_never_overruled() -> None:
    assert composed("topology=two_hosts", "weights=shm")["weights"]["transport"] == "shm"
