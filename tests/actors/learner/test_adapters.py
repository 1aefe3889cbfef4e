"""Adapters on the policy: what is trained, what is saved, and what they do to the weights, against NumPy."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from headrace.actors.learner.adapters import merged
from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.checkpoint import CheckpointInfo, CheckpointStore
from headrace.actors.learner.export import export_checkpoint
from headrace.actors.learner.kl import K2
from headrace.actors.learner.lora import LoraSettings
from headrace.actors.learner.objectives import CrossEntropy, IsReinforce
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.policy import Policy, WithoutAdapters
from headrace.actors.learner.schedule import AdamSettings
from headrace.actors.learner.trainer import Trainer

pytest.importorskip("peft")
SETTINGS = LoraSettings(rank=4, alpha=6.0)


def adapted(folder: Path, settings: LoraSettings = SETTINGS, *, seed: int = 0, moved: bool = False) -> Policy:
    policy = Policy.load(folder)
    torch.manual_seed(seed)
    adapters = policy.adapt(settings, base=folder)
    if moved:
        for tensor in adapters.tensors().values():
            tensor.copy_(0.3 * torch.randn_like(tensor))
    return policy


def trainer_of(policy: Policy, objective=None) -> Trainer:
    optimizer = Optimizer(policy.model.parameters(), AdamSettings())
    packing = PackingSettings()
    return Trainer(policy, optimizer, objective=objective or CrossEntropy(), aggregation=TokenMean(), packing=packing)


def logprobs(policy, sequences):
    return np.concatenate(trainer_of(policy).logprobs(sequences))


def test_they_change_nothing_at_first_and_are_all_that_is_trained(model_folder, policy, make_sequence):
    sequences = [make_sequence(i) for i in range(4)]
    fresh = adapted(model_folder)
    assert np.array_equal(logprobs(fresh, sequences), logprobs(policy, sequences))
    before = {name: tensor.clone() for name, tensor in fresh.adapters.base_tensors().items()}
    assert before.keys() == dict(policy.model.named_parameters()).keys()
    trainer = trainer_of(fresh)
    for _ in range(3):
        assert trainer.step(sequences, 1e-2).applied
    assert all(torch.equal(before[name], tensor) for name, tensor in fresh.adapters.base_tensors().items())
    assert np.abs(logprobs(fresh, sequences) - logprobs(policy, sequences)).max() > 1e-2
    state = trainer.optimizer.state_dict()["state"]
    assert len(state) == len(fresh.adapters.tensors()) == 2 * 7 * 2, "moments of the factors alone"


def test_the_names_are_those_of_peft_and_vllm(model_folder):
    tensors = adapted(model_folder).adapters.tensors()
    outer = "base_model.model.model.layers.0.mlp.up_proj"
    assert tensors[f"{outer}.lora_A.weight"].shape == (4, 32)
    assert tensors[f"{outer}.lora_B.weight"].shape == (64, 4)
    assert not [name for name in tensors if "lm_head" in name or "embed" in name]


def test_an_export_is_the_plain_model_that_numpy_merges(tmp_path, model_folder, make_sequence):
    """W + (alpha / rank) · B @ A, in float64 beside it; and its log-probs are those of the policy that was trained."""
    policy = adapted(model_folder, moved=True)
    store = CheckpointStore(tmp_path / "c", model_folder=model_folder)
    store.keep_base(None)
    folder = store.save(CheckpointInfo(7, 3, 7), policy.adapters, {})
    assert not (folder / "model.safetensors").exists()
    assert (tmp_path / "c" / "base").resolve() == model_folder.resolve()
    export_checkpoint(tmp_path / "c", tmp_path / "out")
    base, factors = load_file(model_folder / "model.safetensors"), load_file(folder / "adapter_model.safetensors")
    exported = load_file(tmp_path / "out" / "model.safetensors")
    assert exported.keys() == base.keys()
    num_changed = 0
    for name, weight in base.items():
        outer = "base_model.model." + name.removesuffix(".weight")
        expected = weight.astype(np.float64)
        if f"{outer}.lora_A.weight" in factors:
            a, b = (factors[f"{outer}.lora_{x}.weight"].astype(np.float64) for x in "AB")
            expected = expected + 6.0 / 4 * b @ a
            num_changed += 1
        assert np.abs(exported[name] - expected).max() < 1e-6
    assert num_changed == 14
    sequences = [make_sequence(i) for i in range(4)]
    assert np.abs(logprobs(Policy.load(tmp_path / "out"), sequences) - logprobs(policy, sequences)).max() < 1e-5
    assert not list((tmp_path / "out").glob("adapter*"))
    assert (tmp_path / "out" / "tokenizer.json").exists()

    export_checkpoint(tmp_path / "c", tmp_path / "adapters", version=3, merge=False)
    again = Policy(merged(model_folder, tmp_path / "adapters").requires_grad_(True))
    assert np.abs(logprobs(again, sequences) - logprobs(policy, sequences)).max() < 1e-5


def test_an_export_without_its_base_is_refused(tmp_path, model_folder):
    store = CheckpointStore(tmp_path / "c", model_folder=model_folder)
    store.save(CheckpointInfo(1, 1, 1), adapted(model_folder).adapters, {})
    with pytest.raises(ValueError, match="base is missing"):
        export_checkpoint(tmp_path / "c", tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["c"]


def test_five_steps_and_five_resumed_equal_ten(tmp_path, model_folder, make_sequence):
    batches = [[make_sequence(10 * step + i) for i in range(4)] for step in range(10)]
    straight = trainer_of(adapted(model_folder))
    for batch in batches:
        straight.step(batch, 1e-2)

    first = trainer_of(adapted(model_folder))
    for batch in batches[:5]:
        first.step(batch, 1e-2)
    store = CheckpointStore(tmp_path, model_folder=model_folder)
    state = {"optimizer": first.optimizer.state_dict()}
    folder = store.save(CheckpointInfo(5, 3, 5), first.policy.adapters, state)
    second = trainer_of(adapted(model_folder, seed=99))
    second.policy.adapters.load(folder)
    second.optimizer.load_state_dict(store.load_state(folder)[1]["optimizer"])
    for batch in batches[5:]:
        second.step(batch, 1e-2)
    theirs = second.policy.adapters.tensors()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in straight.policy.adapters.tensors().items())


@pytest.mark.parametrize("other", [LoraSettings(rank=8), LoraSettings(rank=4, alpha=6.0, target_modules=["q_proj"])])
def test_an_adapter_of_other_settings_is_not_resumed(tmp_path, model_folder, other):
    store = CheckpointStore(tmp_path, model_folder=model_folder)
    folder = store.save(CheckpointInfo(1, 1, 1), adapted(model_folder).adapters, {})
    with pytest.raises(ValueError, match="resume with the settings of before"):
        adapted(model_folder, other).adapters.load(folder)


def test_a_damaged_adapter_is_named(tmp_path, model_folder):
    store = CheckpointStore(tmp_path, model_folder=model_folder)
    folder = store.save(CheckpointInfo(1, 1, 1), adapted(model_folder).adapters, {})
    path = folder / "adapter_model.safetensors"
    path.write_bytes(path.read_bytes()[:-8])
    with pytest.raises(ValueError, match=r"adapter_model.safetensors is damaged: it has \d+ bytes"):
        adapted(model_folder).adapters.load(folder)


def test_the_reference_is_the_base_and_its_penalty_that_of_a_second_model(model_folder, policy, make_sequence):
    """Log-probs of the base while the adapters have moved, and every gradient as with a frozen copy in memory."""
    sequences = [make_sequence(i) for i in range(4)]
    gradients = []
    for reference_of in (lambda trained: WithoutAdapters(trained, trained.adapters), lambda trained: policy):
        trained = adapted(model_folder, moved=True)
        trainer = trainer_of(trained, IsReinforce())
        trainer.penalise(K2(coefficient=0.5), reference_of(trained))
        loss = trainer.backward(sequences)
        gradients.append((loss, [p.grad.clone() for p in trained.model.parameters() if p.requires_grad]))
    (loss, ours), (expected_loss, expected) = gradients
    assert loss == pytest.approx(expected_loss, rel=1e-6)
    assert len(ours) == len(expected) == 28
    assert all(torch.allclose(a, b, rtol=1e-5, atol=1e-7) for a, b in zip(ours, expected, strict=True))
    assert any(gradient.abs().max() > 1e-4 for gradient in ours)


def test_a_bfloat16_base_keeps_its_positions_and_float32_factors(model_folder, make_sequence):
    policy = adapted(model_folder, LoraSettings(rank=4, alpha=6.0, base_dtype="bfloat16"))
    assert {tensor.dtype for tensor in policy.adapters.base_tensors().values()} == {torch.bfloat16}
    assert {tensor.dtype for tensor in policy.adapters.tensors().values()} == {torch.float32}
    assert {buffer.dtype for buffer in policy.model.buffers()} == {torch.float32}
    trainer = trainer_of(policy)
    sequences = [make_sequence(i) for i in range(4)]
    losses = [trainer.step(sequences, 1e-2).loss for _ in range(8)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("target", ["lm_head", "embed_tokens", "qproj"])
def test_a_target_that_cannot_be_adapted_is_named(model_folder, target):
    with pytest.raises(ValueError, match=f"is called '{target}'; there are down_proj, gate_proj"):
        adapted(model_folder, LoraSettings(target_modules=["q_proj", target]))


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"rank": 0}, "lora.rank must be >= 1, got 0"),
        ({"alpha": 0}, "lora.alpha must be > 0"),
        ({"target_modules": "q_proj"}, r"write \[q_proj\]"),
        ({"target_modules": []}, "must name a module"),
        ({"base_dtype": "float16"}, "lora.base_dtype must be float32 or bfloat16"),
    ],
)
def test_settings_that_cannot_work_are_named(settings, named):
    with pytest.raises(ValueError, match=named):
        LoraSettings(**settings)
