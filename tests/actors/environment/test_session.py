"""The turn loop against a scripted engine, on a virtual clock."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from headrace.actors.environment.environment import Observation, StepOutcome
from headrace.actors.environment.in_process_tools import InProcessTools
from headrace.actors.environment.phases import CANCEL_GRACE_S, SessionError, Timeouts
from headrace.actors.environment.tools import Calculator
from headrace.actors.learner.advantages import Rloo
from headrace.actors.learner.intake import take_in
from headrace.actors.rendering import ChatRenderer, before_stop
from headrace.actors.session import ChatMessage, Group, Tool, ToolCall
from headrace.transport import run_virtual

IM_END = 266


class Talk:
    """Answers every turn with "hello" until `turns` turns have come; keeps what it was given."""

    def __init__(self, turns: int = 1) -> None:
        self.left = turns
        self.heard: list[ChatMessage] = []
        self.closed = 0

    async def reset(self, task):
        return Observation(task.prompt, (Tool("now", "the time", {"type": "object"}),))

    async def step(self, turn):
        self.heard.append(turn)
        self.left -= 1
        return StepOutcome() if self.left <= 0 else StepOutcome((ChatMessage("tool", "hello"),), done=False)

    async def close(self):
        self.closed += 1


@pytest.fixture
def play(make_session, make_engine):
    """Run one session of `Talk` to its end: (session, trajectory, environment, engine)."""

    def run(script, *, turns: int = 1, **options):
        async def main():
            engine = make_engine(script)
            environment = options.pop("talk", None) or Talk(turns)
            session = make_session(engine, environment=lambda: environment, **options)
            return session, await session.run(), environment, engine

        return run_virtual(main())

    return run


def test_one_turn(play, make_completion, tokenizer, chat):
    session, trajectory, environment, engine = play([make_completion([259, IM_END])])
    prompt = chat("append_only").prompt_ids([ChatMessage("user", "2+2?")])
    assert trajectory.token_ids.tolist() == [*prompt, 259, IM_END]
    assert trajectory.loss_mask.tolist() == [False] * len(prompt) + [True, True]
    assert trajectory.versions[trajectory.loss_mask].tolist() == [1, 1]
    assert trajectory.ending == "done"
    assert trajectory.problem() is None
    assert trajectory.messages == (ChatMessage("user", "2+2?"), ChatMessage("assistant", "hello"))
    assert set(trajectory.timings_s) == {"reset", "generate", "step", "close", "total"}
    assert engine.requests[0].sampling.stop_token_ids == (IM_END,)
    assert environment.closed == 1
    assert session.phase == "done"


@pytest.mark.parametrize("template_has_bos", [True, False])
def test_engine_and_learner_get_the_same_prompt(play, make_completion, make_tokenizer, chat, template_has_bos):
    """cases C62: huggingface/trl#3853: exactly one BOS, and the ids that the engine was asked with are those that the
    learner trains on, in every turn."""
    template = ("{{ bos_token }}" if template_has_bos else "") + chat("append_only")._tokenizer.chat_template
    renderer = ChatRenderer(make_tokenizer(template, bos_token="<|endoftext|>"), add_bos=True)
    bos = make_tokenizer().token_id("<|endoftext|>")
    _, trajectory, _, engine = play([make_completion([259, IM_END])] * 2, turns=2, renderer=renderer)
    group = Group("g0", (trajectory.graded(1.0, {}), trajectory.graded(0.0, {})))
    for sequence in take_in([group], Rloo()).sequences:
        for request, turn in zip(engine.requests, trajectory.turns, strict=True):
            assert sequence.token_ids[: turn.start].tolist() == request.prompt_token_ids.tolist()
        assert sequence.token_ids[0] == bos
        assert sequence.token_ids.tolist().count(bos) == 1


def test_what_was_sampled_is_never_encoded_again(play, make_completion):
    """cases C55: huggingface/trl#5224: [256, 258] is the text of 259."""
    _, trajectory, _, engine = play([make_completion([256, 258, IM_END]), make_completion([259, IM_END])], turns=2)
    second = engine.requests[1].prompt_token_ids.tolist()
    start = trajectory.turns[0].start
    assert second[start : start + 3] == [256, 258, IM_END]
    assert trajectory.token_ids.tolist()[: len(second)] == second
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == [256, 258, IM_END, 259, IM_END]


def test_the_glue_between_turns_has_mask_0(play, make_completion, chat, tokenizer):
    """cases C56: exactly one newline between im_end and im_start, and it is not trained."""
    _, trajectory, _, _ = play(
        [make_completion([259, IM_END]), make_completion([IM_END])], turns=2, renderer=chat("qwen_like")
    )
    after = trajectory.turns[0].end
    assert tokenizer.decode(trajectory.token_ids[after : after + 2], special_tokens=True) == "\n<|im_start|>"
    assert not trajectory.loss_mask[after : trajectory.turns[1].start].any()


def test_a_sampled_role_marker_is_trained_once(play, make_completion, chat, tokenizer):
    """cases C65: the stop token of GLM-like templates is the next role's marker."""
    marker = tokenizer.token_id("<|observation|>")
    script = [make_completion([259, marker]), make_completion([259, tokenizer.token_id("<|user|>")])]
    _, trajectory, _, _ = play(script, turns=2, renderer=chat("glm_like"))
    where = np.flatnonzero(trajectory.token_ids == marker)
    assert len(where) == 1
    assert trajectory.loss_mask[where[0]]


def test_reasoning_is_kept_as_one_row(play, make_completion, chat, tokenizer):
    """cases C58: three turns with reasoning: one append-only row; each turn's context is what the engine saw."""
    thoughts = [[*tokenizer.encode(f"<think>\n{n}\n</think>\n\n{n}"), IM_END] for n in range(3)]
    script = [make_completion(ids) for ids in thoughts]
    _, trajectory, _, engine = play(script, turns=3, renderer=chat("qwen_like"))
    for request, turn in zip(engine.requests, trajectory.turns, strict=True):
        assert trajectory.token_ids[: turn.start].tolist() == request.prompt_token_ids.tolist()
    assert trajectory.num_trained_tokens == sum(map(len, thoughts))
    assert trajectory.messages[1].content.startswith("<think>")


def test_a_stop_token_midway_shifts_nothing(play, make_completion):
    """cases C61: jingyaogong/minimind#850: the text ends before it, the ids do not."""
    sampled = [259, IM_END, 65, IM_END]
    _, trajectory, environment, engine = play([make_completion(sampled), make_completion([IM_END])], turns=2)
    start, end = trajectory.turns[0].start, trajectory.turns[0].start + len(sampled)
    assert trajectory.token_ids[start:end].tolist() == sampled
    assert engine.requests[1].prompt_token_ids[:end].tolist() == trajectory.token_ids[:end].tolist()
    assert environment.heard[0].content == "hello"


def test_what_is_trained_is_what_is_graded(play, make_completion, tokenizer):
    """cases A10: ZHZisZZ/dllm#118: ids [..., EOS, garbage]: the text before EOS is graded, and the loss mask covers
    its tokens and the EOS that ended it, in every turn."""
    script = [make_completion([259, IM_END, 65, 66, IM_END]), make_completion([264, IM_END, 65])]
    _, trajectory, _, _ = play(script, turns=2)
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == [259, IM_END, 264, IM_END]
    assert [(t.end - t.start, t.finish_reason) for t in trajectory.turns] == [(2, "stop"), (2, "stop")]
    said = [message.content for message in trajectory.messages if message.role == "assistant"]
    assert said == ["hello", "12"]
    trained = [tokenizer.decode(trajectory.token_ids[turn.start : turn.end]) for turn in trajectory.turns]
    assert trained == said
    assert (trajectory.versions >= 0).tolist() == trajectory.loss_mask.tolist()
    assert trajectory.problem() is None


def test_characters_split_over_tokens_stay_whole(play, make_completion, tokenizer):
    """cases C74: vllm-project/vllm#6626: text is made of all the ids of a turn at once, never token by token, and the
    ids stand beside it unchanged; half a character that was cut stays what the tokenizer makes of it."""
    emoji = tokenizer.encode("\N{GRINNING FACE}")
    assert len(emoji) == 4
    script = [make_completion([*emoji, IM_END]), make_completion(emoji[:2], "length")]
    _, trajectory, environment, _ = play(script, turns=3)
    assert environment.heard[0].content == "\N{GRINNING FACE}"
    assert trajectory.messages[-1].content == tokenizer.decode(emoji[:2])
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == [*emoji, IM_END, *emoji[:2]]


def test_tokens_that_change_under_a_turn_are_a_prefix_mismatch(make_session, make_completion):
    """cases C61, invariant 2: never a silent shift."""

    async def main():
        async def meddling(request, timeout_s):
            session._builder.add_context([1])
            return make_completion([259, IM_END])

        session = make_session(meddling, environment=Talk)
        with pytest.raises(SessionError, match="tokens changed") as raised:
            await session.run()
        assert raised.value.counter == "prefix_mismatch"

    run_virtual(main())


def test_harness_messages_are_never_trained(play, make_completion):
    """cases C68: NVIDIA-NeMo/Gym#2254: an assistant message that no engine sampled has mask 0."""

    class Apology(Talk):
        async def step(self, turn):
            self.left -= 1
            sorry = (ChatMessage("assistant", "sorry"), ChatMessage("user", "go on"))
            return StepOutcome() if self.left <= 0 else StepOutcome(sorry, done=False)

    _, trajectory, _, _ = play([make_completion([259, IM_END])] * 2, talk=Apology(2))
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == [259, IM_END] * 2
    assert trajectory.messages[2].content == "sorry"


def test_a_malformed_call_is_an_observation(play, make_completion, tokenizer):
    """cases C70: it is told to the model, counted, never executed, and does not end the session."""
    bad = [*tokenizer.encode("<tool_call>[1,2]</tool_call>"), IM_END]
    script = [make_completion(bad), make_completion([259, IM_END])]
    session, trajectory, environment, _ = play(script, tool_calls="hermes_json")
    assert [turn.content for turn in environment.heard] == ["hello"]
    assert "JSON object" in trajectory.messages[2].content
    assert session.counters.malformed_calls == 1
    assert trajectory.ending == "done"


def test_good_calls_beside_malformed_ones_are_executed(play, make_completion, tokenizer):
    text = '<tool_call>{"name": "now"}</tool_call><tool_call>5</tool_call>'
    script = [make_completion([*tokenizer.encode(text), IM_END]), make_completion([259, IM_END])]
    _, trajectory, environment, _ = play(script, turns=2, tool_calls="hermes_json", spec=None)
    assert environment.heard[0].tool_calls == (ToolCall("now", {}),)
    assert [m.role for m in trajectory.messages] == ["user", "assistant", "tool", "tool", "assistant"]
    assert trajectory.messages[2].content == "hello"


@pytest.mark.parametrize("finish_reason", ["length", "stop", "tool_calls"])
def test_a_turn_that_used_up_its_tokens_executes_nothing(
    play, make_completion, make_spec, tokenizer, finish_reason: str
):
    """cases C71: vllm-project/vllm#58228: an engine may call a cut turn complete."""
    ids = tokenizer.encode('<tool_call>{"name": "now"}</tool_call>')
    spec = make_spec(max_tokens=len(ids))
    session, trajectory, environment, _ = play(
        [make_completion(ids, finish_reason)], tool_calls="hermes_json", spec=spec
    )
    assert environment.heard == []
    assert trajectory.ending == "truncated"
    assert trajectory.turns[0].finish_reason == "length"
    assert trajectory.messages[-1].tool_calls == ()
    assert session.counters.truncated == 1


def test_a_stop_token_in_the_last_place_is_no_cut(play, make_completion, make_spec):
    _, trajectory, _, _ = play([make_completion([259, IM_END])], spec=make_spec(max_tokens=2))
    assert trajectory.ending == "done"


def test_a_full_context_ends_the_session_and_keeps_its_turns(play, make_completion, make_spec):
    """cases C73: PrimeIntellect-ai/prime-rl#1938: prompt + requested <= context, no negative budget, no retry loop."""
    script = [make_completion([259] * 49 + [IM_END])] * 9
    session, trajectory, _, engine = play(script, turns=9, context_tokens=256, spec=make_spec(max_tokens=50))
    assert trajectory.ending == "context_full"
    assert len(trajectory.turns) == len(engine.requests) < 9
    assert all(len(r.prompt_token_ids) + r.sampling.max_tokens <= 256 for r in engine.requests)
    assert len(trajectory.token_ids) <= 256
    assert trajectory.problem() is None
    assert session.counters.context_full == 1


def test_a_prompt_that_never_fits_fails_by_name(play, make_spec):
    """cases C68, C73: no engine turn, no row."""
    with pytest.raises(SessionError, match="context_tokens=256") as raised:
        play([], context_tokens=256, spec=make_spec(prompt="x" * 300))
    assert raised.value.counter == "prompt_too_long"


def test_max_turns_ends_as_truncated(play, make_completion):
    _, trajectory, _, _ = play([make_completion([259, IM_END])] * 3, turns=9, max_turns=3)
    assert (trajectory.ending, trajectory.notes["ended_by"]) == ("truncated", "max_turns")
    assert trajectory.loss_mask[-1]


def test_an_empty_generation_is_a_turn_of_no_tokens(play, make_completion):
    """cases B52: verl-project/verl#6675: nothing divides by zero; the record says that there is nothing to train."""
    session, trajectory, _, _ = play([make_completion([])])
    assert trajectory.turns[0].start == trajectory.turns[0].end
    assert trajectory.problem() == "no_sampled_tokens"
    assert session.counters.values(running=0)["tokens_out"] == 0
    _, trajectory, _, _ = play([make_completion([]), make_completion([259, IM_END])], turns=2)
    assert trajectory.problem() is None


def test_environment_errors_fail_the_session_with_their_traceback(play, make_completion):
    class Broken(Talk):
        async def step(self, turn):
            raise KeyError("the door is closed")

    broken = Broken()
    with pytest.raises(SessionError, match="the door is closed") as raised:
        play([make_completion([259, IM_END])], talk=broken)
    assert raised.value.reason == "failed"
    assert "step after turn 1" in raised.value.detail
    assert broken.closed == 1


def test_a_step_without_messages_and_without_end_is_an_error(play, make_completion):
    class Mute(Talk):
        async def step(self, turn):
            return StepOutcome((), done=False)

    with pytest.raises(SessionError, match="neither messages nor done"):
        play([make_completion([259, IM_END])], talk=Mute())


@pytest.mark.parametrize("phase", ["reset", "step", "close"])
@pytest.mark.parametrize("stubborn", [False, True])
def test_a_hanging_phase_ends_by_its_deadline(make_session, make_engine, make_completion, phase: str, stubborn: bool):
    """cases G109: benchflow-ai/benchflow#949: teardown too, and code that ignores its cancellation too."""

    async def hang(*_):
        for _ in range(2 if stubborn else 1):  # a stubborn one swallows its first cancellation
            try:
                await asyncio.sleep(10_000)
            except asyncio.CancelledError:
                if not stubborn:
                    raise

    async def main():
        loop = asyncio.get_running_loop()
        environment = Talk()
        setattr(environment, phase, hang)
        timeouts = Timeouts(reset_s=100, generate_s=100, step_s=100, close_s=3, session_s=20)
        engine = make_engine([make_completion([259, IM_END])])
        session = make_session(engine, environment=lambda: environment, timeouts=timeouts)
        if phase == "close":
            trajectory = await session.run()
            assert "close took longer than 3.0 s" in trajectory.notes["close"]
            assert session.counters.close_failures == 1
        else:
            with pytest.raises(SessionError, match=f"{phase}.* took longer than 20") as raised:
                await session.run()
            assert raised.value.reason == "timed_out"
            assert environment.closed == 1
        assert loop.time() <= 20 + CANCEL_GRACE_S + 3 + CANCEL_GRACE_S

    run_virtual(main())


def test_a_cancelled_session_closes_its_environment(make_session):
    async def main():
        async def never(request, timeout_s):
            await asyncio.sleep(1000)

        environment = Talk()
        session = make_session(never, environment=lambda: environment)
        task = asyncio.ensure_future(session.run())
        await asyncio.sleep(1)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert environment.closed == 1

    run_virtual(main())


_TURNS = st.lists(st.lists(st.integers(0, 270), max_size=12), min_size=1, max_size=6)


class Echo:
    """Any text as the tool's answer, so many turns."""

    def __init__(self, answers: list[str]) -> None:
        self._answers = iter(answers)

    async def reset(self, task):
        return Observation(task.prompt)

    async def step(self, turn):
        answer = next(self._answers, None)
        return StepOutcome() if answer is None else StepOutcome((ChatMessage("tool", answer),), done=False)

    async def close(self):
        pass


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    turns=_TURNS,
    answers=st.lists(st.text(max_size=10), max_size=6),
    template=st.sampled_from(["qwen_like", "glm_like", "append_only"]),
)
def test_every_turn_saw_exactly_what_stands_before_it(
    make_session, make_engine, make_completion, make_spec, chat, turns, answers, template
):
    """Invariants 1 and 2 of the cases, for random tokens, texts and templates: lengths agree; each prompt is a prefix
    of the record; what was sampled up to its stop token, and nothing else, is trained."""
    renderer = chat(template)

    async def main():
        engine = make_engine([make_completion(ids, version=n + 1) for n, ids in enumerate(turns)])
        session = make_session(
            engine,
            environment=lambda: Echo(answers[: len(turns) - 1]),
            renderer=renderer,
            spec=make_spec(max_tokens=13),
        )
        return engine, await session.run()

    engine, trajectory = run_virtual(main())
    lengths = {len(a) for a in (trajectory.token_ids, trajectory.logprobs, trajectory.loss_mask, trajectory.versions)}
    assert len(lengths) == 1
    trained = []
    for request, turn, ids in zip(engine.requests, trajectory.turns, turns, strict=False):
        assert trajectory.token_ids[: turn.start].tolist() == request.prompt_token_ids.tolist()
        assert trajectory.token_ids[turn.start : turn.start + len(ids)].tolist() == ids
        said = ids[: len(before_stop(ids, renderer.stop_token_ids)) + 1]
        assert turn.end - turn.start == len(said)
        assert trajectory.loss_mask[turn.start : turn.end].all()
        trained += said
    assert len(engine.requests) == len(trajectory.turns)
    assert trajectory.token_ids[trajectory.loss_mask].tolist() == trained


def test_a_tool_session_ends_with_an_answer(make_session, make_engine, make_completion, make_spec, tokenizer):
    async def main():
        call = '<tool_call>{"name": "calculator", "arguments": {"expression": "2+2"}}</tool_call>'
        script = [make_completion([*tokenizer.encode(call), IM_END], version=3), make_completion([259, IM_END])]
        engine = make_engine([*script])
        environment = InProcessTools(tools=[Calculator()])
        session = make_session(
            engine, environment=lambda: environment, tool_calls="hermes_json", spec=make_spec(max_tokens=99)
        )
        return await session.run()

    trajectory = asyncio.run(main())
    assert [(m.role, m.content) for m in trajectory.messages[2:]] == [("tool", "4"), ("assistant", "hello")]
    assert trajectory.messages[1].tool_calls == (ToolCall("calculator", {"expression": "2+2"}),)
