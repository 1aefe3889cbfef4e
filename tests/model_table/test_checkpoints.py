"""A version that travels as a folder is, for every kind of model, one that transformers loads again, bit for bit."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from model_table_run.models import CONFIGS, make_model
from transformers import AutoModelForCausalLM

from headrace.transport.weights import SenderSettings, make_sender
from headrace.transport.weights.layout import model_tensors


@pytest.mark.parametrize("name", CONFIGS)
def test_transformers_loads_the_folder(name: str, tmp_path: Path) -> None:
    make_model(name, 1).save_pretrained(tmp_path / "model")
    model = make_model(name, 2)
    settings = SenderSettings(run_id="folders", folder=tmp_path / "versions", model_folder=tmp_path / "model")
    sender = make_sender("checkpoint", settings)
    staged = sender.stage(model_tensors(model), version=1, step=1)
    assert staged is not None
    loaded, found = AutoModelForCausalLM.from_pretrained(staged.seal().location, output_loading_info=True)
    assert not any(found[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    theirs = model_tensors(loaded)
    assert theirs.keys() == model_tensors(model).keys()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in model_tensors(model).items())
    sender.close()
