"""What an evaluation says of its rewards: means, greedy and pass@k with their standard errors, of all prompts and of
each task class. Pure.

A figure `name` comes with `name_n` (values it is the mean of) and `name_stderr`. Those of a class stand under
`class/<its name>/`, where there are several classes. A figure without any value is absent, never 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from headrace.actors.dispatcher.statistics import clustered_mean, mean_pass_at_k


@dataclass(frozen=True, slots=True)
class PromptRewards:
    """The rewards of one prompt: `samples` at temperature, `greedy` one at most. `task_class`: its task's source."""

    task_class: str
    samples: list[float] = field(default_factory=list)
    greedy: list[float] = field(default_factory=list)


def figures(prompts: Sequence[PromptRewards], pass_at: Sequence[int], pass_reward: float) -> dict[str, float]:
    """`reward`, `greedy`, `pass_at_<k>` and their companions; `prompts` of each class beside its figures."""
    values = _of(prompts, pass_at, pass_reward)
    classes = _by_class(prompts)
    if len(classes) > 1:
        for name, members in classes.items():
            of_class = _of(members, pass_at, pass_reward) | {"prompts": float(len(members))}
            values |= {f"class/{name}/{figure}": value for figure, value in of_class.items()}
    return values


def _by_class(prompts: Sequence[PromptRewards]) -> Mapping[str, list[PromptRewards]]:
    classes: dict[str, list[PromptRewards]] = {}
    for prompt in prompts:
        classes.setdefault(prompt.task_class, []).append(prompt)
    return dict(sorted(classes.items()))


def _of(prompts: Sequence[PromptRewards], pass_at: Sequence[int], pass_reward: float) -> dict[str, float]:
    samples = [prompt.samples for prompt in prompts]
    estimates = {"reward": clustered_mean(samples), "greedy": clustered_mean([prompt.greedy for prompt in prompts])}
    estimates |= {f"pass_at_{k}": mean_pass_at_k(samples, k, pass_reward) for k in pass_at}
    values: dict[str, float] = {}
    for name, estimate in estimates.items():
        if estimate is not None:
            values |= {name: estimate.mean, f"{name}_n": float(estimate.n), f"{name}_stderr": estimate.stderr}
    return values
