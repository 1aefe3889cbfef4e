"""What `pretrain` and `sft` make of documents, what they train on, and where their cursor stands."""

from __future__ import annotations

import asyncio
import itertools
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from headrace.actors.learner.aggregation import TokenMean
from headrace.actors.learner.documents import GeneratedDocuments, JsonLines, TextFiles, TokenDocument, cursor_of
from headrace.actors.learner.objectives import CrossEntropy
from headrace.actors.learner.optimizer import Optimizer
from headrace.actors.learner.packing import PackingSettings
from headrace.actors.learner.policy import Policy
from headrace.actors.learner.stages.pretrain import Pretrain, text_encoder
from headrace.actors.learner.stages.sft import Sft, conversation_encoder
from headrace.actors.learner.stages.supervised import Encoded, StagePlace, Supervised, run_supervised
from headrace.actors.learner.trainer import Trainer
from headrace.actors.rendering import load_renderer

CHAT = {"messages": [{"role": "user", "content": "ab?"}, {"role": "assistant", "content": "cd"}]}


def texts() -> GeneratedDocuments:
    return GeneratedDocuments(make=lambda rng: "".join(rng.choice("abc") for _ in range(rng.randint(1, 9))))


@pytest.fixture(scope="session")
def tokenizer(model_folder: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model_folder)


@pytest.fixture
def encode_chat(model_folder: Path) -> Callable[..., Any]:
    def make(**settings: Any) -> Any:
        stage = Sft(source=texts(), steps=1, warmup_steps=0, **settings)
        return conversation_encoder(load_renderer("auto", str(model_folder)), stage, vocab_size=98)

    return make


def train(stage: Supervised, policy: Policy, encode: Any, **options: Any) -> tuple[float, list[dict[str, float]]]:
    reports: list[dict[str, float]] = []
    optimizer = Optimizer(policy.model.parameters(), stage.adam)
    packing = PackingSettings(tokens_per_row=64)
    trainer = Trainer(policy, optimizer, objective=CrossEntropy(), aggregation=TokenMean(), packing=packing)

    async def run(label: str, function: Callable[..., Any], *args: Any) -> Any:
        return function(*args)

    async def main() -> float:
        return await run_supervised(
            stage, trainer, encode, seed=0, run=run,
            report=lambda step, figures: reports.append(figures), **options,
        )  # fmt: skip

    return asyncio.run(main()), reports


def test_texts_end_with_one_eos_and_are_cut(tokenizer: Any) -> None:
    encode = text_encoder(tokenizer, 4)
    eos = tokenizer.eos_token_id
    assert encode("ab").token_ids.tolist() == [*tokenizer.encode("ab"), eos]  # type: ignore[union-attr]
    assert encode("ab" + tokenizer.eos_token).token_ids.tolist() == [*tokenizer.encode("ab"), eos]  # type: ignore[union-attr]
    assert encode("abcde").token_ids.tolist() == tokenizer.encode("abcd")  # type: ignore[union-attr]
    assert encode("") is None
    with pytest.raises(ValueError, match=r"pretrain needs texts, got a record with \['messages'\]"):
        encode(CHAT)


def test_only_what_the_assistant_says_is_trained(encode_chat: Callable[..., Any], tokenizer: Any) -> None:
    sequence = encode_chat()(CHAT)
    assert tokenizer.decode(sequence.token_ids) == "ab?cd<eos>"
    assert sequence.loss_mask.tolist() == [False] * 3 + [True] * 3
    assert encode_chat(max_tokens=4)(CHAT).loss_mask.tolist() == [False] * 3 + [True]
    assert encode_chat(max_tokens=3)(CHAT) is None, "nothing of the answer is left"
    assert encode_chat()({"messages": CHAT["messages"][:1]}) is None
    with pytest.raises(ValueError, match="sft needs conversations, got a text"):
        encode_chat()("ab")


def test_sampled_tokens_stay_as_they_are(encode_chat: Callable[..., Any]) -> None:
    document = TokenDocument(np.array([7, 8, 9, 10], dtype=np.int32), np.array([True, False, True, True]))
    sequence = encode_chat(max_tokens=3)(document)
    assert sequence.token_ids.tolist() == [7, 8, 9]
    assert sequence.loss_mask.tolist() == [False, False, True], "nothing predicts the first"
    assert document.loss_mask.tolist() == [True, False, True, True], "the document is left alone"
    with pytest.raises(ValueError, match="holds token 98, the model has 98"):
        encode_chat()(TokenDocument(np.array([1, 98], dtype=np.int32), np.array([False, True])))


def test_sft_trains_the_answers_and_only_them(policy: Policy, encode_chat: Callable[..., Any], tmp_path: Path) -> None:
    """The answer is a function of the question; the questions' own tokens are random, and stay unpredictable."""
    path = tmp_path / "chats.jsonl"
    with path.open("w") as file:
        for a, b, c in itertools.product("abcdefgh", repeat=3):
            turns = [{"role": "user", "content": f"{a}{b}{c}?"}, {"role": "assistant", "content": f"{a}"}]
            file.write(json.dumps({"messages": turns}) + "\n")
    stage = Sft(
        source=JsonLines(paths=str(path), field=None, held_out_fraction=0.2), steps=60, documents_per_step=32, lr=1e-2,
        num_held_out=64, held_out_every_steps=20,
    )  # fmt: skip
    loss, reports = train(stage, policy, encode_chat())
    held_out = [report["held_out_loss"] for report in reports if "held_out_loss" in report]
    assert len(held_out) == 3
    assert loss == held_out[-1] < 0.1
    assert reports[19]["perplexity"] == math.exp(held_out[0])
    assert all(report["tokens"] == 2 * 32 for report in reports), "one character and EOS of each"
    assert all(report["left_out"] == 0 for report in reports)


def test_nothing_held_out_is_said_and_left_out(
    policy: Policy, tokenizer: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "a.txt").write_text("abc\nbcd\n")
    stage = Pretrain(source=TextFiles(paths=str(tmp_path / "a.txt"), held_out_fraction=0.0), steps=2, warmup_steps=0)
    loss, reports = train(stage, policy, text_encoder(tokenizer, 16))
    assert math.isnan(loss)
    assert all("held_out_loss" not in report for report in reports)
    assert "pretrain: nothing is held out" in caplog.text


def test_a_source_of_its_own_may_be_the_held_out_one(policy: Policy, tokenizer: Any, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("abcabc\n")
    other = GeneratedDocuments(make=lambda rng: "zzzz")
    source = TextFiles(paths=str(tmp_path / "a.txt"), held_out_fraction=0.0)
    stage = Pretrain(source=source, held_out=other, steps=30, num_held_out=4, warmup_steps=0, lr=1e-2)
    loss, reports = train(stage, policy, text_encoder(tokenizer, 16))
    assert reports[-1]["loss"] < 0.5 < loss


def test_the_cursor_stands_behind_what_was_trained(policy: Policy, tokenizer: Any) -> None:
    """What a checkpoint keeps between two steps: the documents of the next step are the next ones."""
    places: list[StagePlace] = []

    async def save(place: StagePlace) -> None:
        places.append(place)

    stage = Pretrain(source=texts(), steps=5, documents_per_step=7, warmup_steps=0, checkpoint_every_steps=2)
    train(stage, policy, text_encoder(tokenizer, 16), save=save)
    assert places == [StagePlace(step, {"given": 7 * step}) for step in (2, 4, 5)]
    cursor = cursor_of(GeneratedDocuments(make=lambda rng: rng.choice(["", "ab"])), 0)
    encoded = Encoded(cursor, text_encoder(tokenizer, 16))
    assert len(list(itertools.islice(encoded, 10))) == 10
    assert 0 < encoded.num_left_out == cursor.state_dict()["given"] - 10, "nothing is read ahead"


@pytest.mark.parametrize("make", [Pretrain, Sft])
@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"steps": 0}, "steps must be >= 1, got 0; to leave the stage out"),
        ({"documents_per_step": 0}, "documents_per_step must be >= 1"),
        ({"max_tokens": 1}, "max_tokens must be >= 2"),
        ({"held_out_every_steps": 0}, "held_out_every_steps must be >= 1"),
    ],
)
def test_settings_are_checked(make: Any, settings: dict[str, Any], problem: str) -> None:
    with pytest.raises(ValueError, match=rf"{make.name}\.{problem}"):
        make(source=texts(), **{"steps": 1, "warmup_steps": 0, **settings})
