"""Evaluations: the schedule, results by version, missing rewards, sessions that fail."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from headrace.actors.dispatcher.evaluation import Evaluation, EvaluationSchedule, EvaluationSettings
from headrace.actors.dispatcher.evaluation_figures import PromptRewards, figures
from headrace.actors.dispatcher.evaluator import in_words
from headrace.actors.dispatcher.source import TaskSource
from headrace.actors.session import SessionSpec, Trajectory

Make = Callable[[SessionSpec, list[int], float | None], Trajectory]


def evaluation_of(tasks: TaskSource, *, edition: int = 0, **changes: int) -> Evaluation:
    settings = EvaluationSettings(num_prompts=3, samples=2, max_in_flight=4, **changes)
    return Evaluation(settings, tasks.held_out(3), version=7, step=12, max_tokens=8, seed=0, edition=edition)


def start_all(evaluation: Evaluation) -> list[SessionSpec]:
    started = []
    while (spec := evaluation.next_session()) is not None:
        evaluation.started(spec.session_id, "environment/0")
        started.append(spec)
    return started


def test_due_at_the_first_version_then_every_so_many_steps_and_missed_ones_become_one() -> None:
    schedule = EvaluationSchedule(10)
    assert schedule.served(0)
    schedule.begin(0)
    assert [step for step in range(1, 10) if schedule.served(step)] == []
    assert schedule.served(12)
    for step in (20, 31, 33):  # while the one for 10 waits or runs
        schedule.served(step)
    schedule.begin(33)
    assert not schedule.due
    assert not schedule.served(39)
    assert schedule.served(40)


def test_steps_that_were_lost_are_evaluated_again() -> None:
    schedule = EvaluationSchedule(10)
    for step in (0, 10, 20):
        assert schedule.served(step)
        schedule.begin(step)
    schedule.roll_back(15)
    assert not schedule.served(15)
    assert schedule.served(20)


def test_an_evaluation_that_is_made_again_has_other_sessions_with_the_same_seeds(tasks: TaskSource) -> None:
    """Graders remember attempts that they have seen, and would not grade them again."""
    first, second = evaluation_of(tasks), evaluation_of(tasks, edition=1)
    assert not set(first.open_ids()) & set(second.open_ids())
    seeds = [[spec.sampling.seed for spec in start_all(evaluation)] for evaluation in (first, second)]
    assert seeds[0] == seeds[1]


def test_greedy_and_samples_by_prompt_with_no_more_in_flight_than_allowed(
    tasks: TaskSource, make_trajectory: Make
) -> None:
    evaluation = evaluation_of(tasks)
    seen: list[SessionSpec] = []
    while not evaluation.complete:
        started = start_all(evaluation)
        assert 0 < len(started) <= 4
        seen += started
        for spec in started:
            evaluation.graded(make_trajectory(spec, [7, 7], 1.0 if spec.member == 0 else 0.0))
            evaluation.graded(make_trajectory(spec, [7, 7], 1.0))  # told twice: counted once
    assert [spec.sampling.temperature for spec in seen] == [1.0, 1.0, 0.0] * 3
    assert {spec.generators for spec in seen} == {"evaluator"}
    assert {spec.purpose for spec in seen} == {"eval"}
    seeds = [spec.sampling.seed for spec in seen if spec.sampling.seed is not None]
    assert len(set(seeds)) == 6
    values = evaluation.values()
    assert (values["reward"], values["reward_n"]) == (0.5, 6)
    assert (values["greedy"], values["greedy_n"], values["greedy_stderr"]) == (0.0, 3, 0.0)
    assert (values["pass_at_1"], values["pass_at_2"], values["pass_at_2_n"]) == (0.5, 1.0, 3)
    assert values["step"] == 12


def test_losses_with_the_holder_have_a_bound_of_their_own(tasks: TaskSource) -> None:
    evaluation = evaluation_of(tasks, max_attempts=1, max_losses=3)
    lost, failing = (spec.session_id for spec in start_all(evaluation)[:2])
    for attempt in range(3):
        assert evaluation.attempt_of(lost) == attempt
        evaluation.failed(lost, attempt, lost=True)
    assert evaluation.attempt_of(lost) is None
    evaluation.failed(failing, 0)
    assert evaluation.attempt_of(failing) is None
    assert evaluation.num_missing == 2


def test_a_failure_is_tried_again_then_missing_and_no_reward_is_never_zero(
    tasks: TaskSource, make_trajectory: Make
) -> None:
    evaluation = evaluation_of(tasks, max_attempts=2)
    first = start_all(evaluation)[0]
    evaluation.failed(first.session_id, 0)
    again = evaluation.next_session()
    while again is not None and again.session_id != first.session_id:
        evaluation.started(again.session_id, "environment/0")
        evaluation.graded(make_trajectory(again, [7], None))
        again = evaluation.next_session()
    for spec_id in evaluation.open_ids():
        if spec_id != first.session_id:
            spec = evaluation._attempts[spec_id]
            evaluation.graded(make_trajectory(spec, [7], 1.0))
    again = evaluation.next_session()
    assert again is not None
    assert again.attempt == 1
    evaluation.started(again.session_id, "environment/0")
    evaluation.failed(again.session_id, 0)  # stale
    assert not evaluation.complete
    evaluation.failed(again.session_id, 1)
    assert evaluation.complete
    values = evaluation.values()
    assert values["missing"] >= 1
    assert values["reward"] == 1.0
    assert values["reward_n"] + values["greedy_n"] + values["missing"] == 9


@pytest.mark.parametrize(
    ("rewards", "says"),
    [
        ([1.0] * 9, "reward 1.000 ± 0.000, greedy 1.000 ± 0.000, pass@1 1.000 ± 0.000, pass@2 1.000 ± 0.000"),
        (
            [1.0, None, None] * 3,
            "reward 1.000 ± 0.000, pass@1 1.000 ± 0.000; 6 of 9 sessions are MISSING and not in these figures",
        ),
        ([None] * 9, "NO RESULT: none of its 9 sessions has a reward (see the graders' log)"),
    ],
)
def test_what_is_missing_is_said_in_words(
    rewards: list[float | None], says: str, tasks: TaskSource, make_trajectory: Make
) -> None:
    evaluation = evaluation_of(tasks)
    given = iter(rewards)
    while not evaluation.complete:
        for spec in start_all(evaluation):
            evaluation.graded(make_trajectory(spec, [7], next(given)))
    values = evaluation.values()
    assert (values["sessions"], values["missing"]) == (9, rewards.count(None))
    assert in_words(values) == says


def test_a_token_of_another_version_is_counted(tasks: TaskSource, make_trajectory: Make) -> None:
    evaluation = evaluation_of(tasks)
    spec = start_all(evaluation)[0]
    evaluation.graded(make_trajectory(spec, [7, 8], 1.0))
    assert evaluation.values()["off_version"] == 1


def test_settings_that_cannot_work_are_refused() -> None:
    with pytest.raises(ValueError, match="samples >= 1 or greedy"):
        EvaluationSettings(samples=0, greedy=False)
    with pytest.raises(ValueError, match=r"pass_at must be numbers from 1 to evaluation.samples \(2\), got \[1, 4\]"):
        EvaluationSettings(samples=2, pass_at=[1, 4])
    with pytest.raises(ValueError, match="temperature must be > 0, got 0"):
        EvaluationSettings(temperature=0.0)
    assert EvaluationSettings(samples=8).pass_ks == (1, 2, 4, 8)
    assert EvaluationSettings(samples=7).pass_ks == (1, 2, 4)
    assert EvaluationSettings(samples=8, pass_at=[5, 1, 5]).pass_ks == (1, 5)


def test_samples_have_the_temperature_and_k_that_were_asked_for(tasks: TaskSource, make_trajectory: Make) -> None:
    settings = EvaluationSettings(num_prompts=3, samples=3, temperature=0.6, pass_at=[3], greedy=False)
    evaluation = Evaluation(settings, tasks.held_out(3), version=7, step=0, max_tokens=8, seed=0)
    for spec in start_all(evaluation):
        assert spec.sampling.temperature == 0.6
        evaluation.graded(make_trajectory(spec, [7], float(spec.member == 2)))
    values = evaluation.values()
    assert (values["reward"], values["pass_at_3"], "pass_at_1" in values) == (pytest.approx(1 / 3), 1.0, False)


def test_each_task_class_has_figures_of_its_own_and_one_class_alone_none() -> None:
    """Two classes: of one both samples of a prompt pass, of the other one of four."""
    sums = [PromptRewards("sums", [1.0, 1.0], [1.0]), PromptRewards("sums", [1.0, 1.0], [])]
    primes = [PromptRewards("primes", [1.0, 0.0], [0.0]), PromptRewards("primes", [0.0, 0.0], [0.0])]
    values = figures([*sums, *primes], (1, 2), 1.0)
    assert (values["reward"], values["pass_at_2"], values["pass_at_2_n"]) == (0.625, 0.75, 4)
    assert (values["class/sums/reward"], values["class/sums/reward_stderr"]) == (1.0, 0.0)
    assert (values["class/primes/pass_at_1"], values["class/primes/pass_at_2"]) == (0.25, 0.5)
    assert values["class/primes/pass_at_2_stderr"] == pytest.approx(0.5)  # of 1 and 0: s / sqrt(2)
    assert (values["class/sums/greedy_n"], values["class/sums/prompts"]) == (1, 2)
    assert not [name for name in figures(sums, (1,), 1.0) if name.startswith("class/")]
