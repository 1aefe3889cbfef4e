"""What the preflight finds: each bad configuration names its key and the fix, all of them at once."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from headrace.launch.preflight import check_config, prepare_model, try_tasks
from headrace.launch.problems import ConfigError
from headrace.launch.run import make_launcher
from headrace.launch.schema import fits

PLUGINS = Path(__file__).parent / "plugins"

GOOD: dict[str, Any] = {
    "topology": {"nodes": {"n": {"actors": {"worker": {"count": 1}}}}},
    "worker": {
        "_target_": "sample_plugins.Worker",
        "path": "x",
        "slots": 2,
        "rate": 1,
        "names": ["a"],
        "weights": {"a": 1.0},
        "tool": {"_target_": "sample_plugins.Tool", "weight": 2},
        "make": {"_target_": "sample_plugins.Tool", "_partial_": True},
        "options": {"_target_": "sample_plugins.Options"},
    },
}


def worker(**values: Any) -> dict[str, Any]:
    return {**GOOD, "worker": {**GOOD["worker"], **values}}


@pytest.mark.usefixtures("plugins")
class TestConfigurations:
    def test_a_good_one_has_no_problem(self) -> None:
        assert check_config(GOOD) == []

    @pytest.mark.parametrize(
        ("config", "key", "says"),
        [
            (worker(slot=3), "worker.slot", "did you mean 'slots'?"),
            (worker(slots="three"), "worker.slots", "an integer"),
            (worker(slots=2.5), "worker.slots", "an integer"),
            (worker(slots=True), "worker.slots", "an integer"),
            (worker(rate="fast"), "worker.rate", "a number"),
            (worker(verbose=1), "worker.verbose", "true or false"),
            (worker(kind="c"), "worker.kind", "'a' or 'b'"),
            (worker(names="abc"), "worker.names", "Sequence"),
            (worker(names=[1]), "worker.names", "Sequence"),
            (worker(weights={"a": "x"}), "worker.weights", "dict"),
            (worker(tool=3), "worker.tool", "_target_"),
            (worker(tool={"weight": 3}), "worker.tool", "worker.tool=null"),
            (worker(tool={"_target_": "sample_plugins.Tool", "wieght": 1}), "worker.tool.wieght", "'weight'"),
            (worker(rate=float("nan")), "worker.rate", "a finite number"),
            (worker(weights={"a": float("inf")}), "worker.weights.a", "a finite number"),
            (worker(slots=10**23), "worker.slots", "64 bits"),
            ({**GOOD, "topology": {"nodes": {"n": {"actors": None}}}}, "topology.nodes.*.actors", "at least one"),
            (worker(slots=0), "worker.slots", "got 0; allowed: >= 1; correct it"),
            (worker(options={"_target_": "sample_plugins.Options", "level": -1}), "worker.options.level",
             "got -1; allowed: >= 0"),
            (worker(_target_="sample_plugins.Woker"), "worker._target_", "did you mean 'Worker'?"),
            (worker(_target_="sample_plugin.Worker"), "worker._target_", "no module 'sample_plugin' is installed"),
            (worker(_target_="headrace.actors.gradr.Grader"), "worker._target_", "did you mean 'grader'?"),
            (worker(_target_="Worker"), "worker._target_", "package.module.Class"),
            ({**GOOD, "worker": {"_target_": "sample_plugins.Worker"}}, "worker.path", "has no default"),
            ({**GOOD, "worker": {"_target_": "sample_plugins.Broken"}}, "worker",
             "ZeroDivisionError: division by zero (" + str(PLUGINS / "sample_plugins.py:")),
            ({**GOOD, "worker": {"_target_": "sample_plugins.NoActor"}}, "worker._target_", "headrace.transport.Actor"),
            ({**GOOD, "topology": {"nodes": {"n": {"actors": {"wroker": {"count": 1}}}}}},
             "topology.nodes.n.actors.wroker", "did you mean 'worker'?"),
            ({**GOOD, "topology": {"nodes": {"n": {"actors": {"worker": {"count": -1}}}}}},
             "topology.nodes.n.actors.worker.count", "from 0"),
        ],
    )  # fmt: skip
    def test_a_bad_one_names_the_key_and_the_fix(self, config: dict[str, Any], key: str, says: str) -> None:
        problems = check_config(config)
        assert [problem.key for problem in problems] == [key], problems
        assert says in str(problems[0])

    def test_all_problems_at_once(self) -> None:
        config = {**worker(slot=1, rate="fast"), "training": {"batch_sessions": 5, "group_size": 2}}
        assert {p.key for p in check_config(config)} == {"worker.slot", "worker.rate", "training.batch_sessions"}

    def test_a_node_that_stands_in_two_places_has_its_problem_once(self) -> None:
        tool = {"_target_": "sample_plugins.Tool", "wieght": 1}
        problems = check_config({**worker(tool=tool), "tool": tool})
        assert [p.key for p in problems] == ["tool.wieght"]

    def test_tasks_that_cannot_be_made(self, tmp_path: Path) -> None:
        source = "headrace.actors.dispatcher.sources.JsonLinesSource"
        path = tmp_path / "tasks.jsonl"
        config = {
            "tasks": {"_target_": source, "path": str(path), "held_out_size": 1},
            "evaluation": {"num_prompts": 1},
        }
        _, problems = try_tasks(config)
        assert [p.key for p in problems] == ["tasks.path"]
        assert str(path) in problems[0].given
        path.write_text('{"prompt": "1+1=", "answer": "2"}\n')
        _, problems = try_tasks(config)
        assert [p.key for p in problems] == ["tasks"]
        assert "leaves none to train on" in problems[0].fix
        path.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n')
        fingerprint, problems = try_tasks(config)
        assert fingerprint
        assert problems == []
        assert try_tasks({}) == (None, [])

    def test_a_grading_that_can_score_none_of_the_tasks(self, tmp_path: Path) -> None:
        """Else every session would end without a reward, and the run would wait for ever."""
        path = tmp_path / "tasks.jsonl"
        path.write_text('{"prompt": "1+1=", "answer": "2"}\n{"prompt": "1+2=", "answer": "3"}\n')
        source = "headrace.actors.dispatcher.sources.JsonLinesSource"
        gym, exact = (
            {"_target_": f"headrace.actors.grader.{name}"}
            for name in ("reasoning_gym_grader.ReasoningGymGrading", "exact_match.ExactMatchGrading")
        )
        config = {"tasks": {"_target_": source, "path": str(path)}, "grader": {"grading": gym}}
        _, problems = try_tasks(config)
        assert [p.key for p in problems] == ["grader.grading"]
        assert "use grader=exact_match or grader=math" in problems[0].fix
        config["grader"] = {"grading": exact}
        assert try_tasks(config)[1] == []
        path.write_text('{"prompt": "1+1=", "answer": null}\n{"prompt": "1+2=", "answer": null}\n')
        assert "no answer" in try_tasks(config)[1][0].fix

    def test_a_missing_model(self, tmp_path: Path) -> None:
        config = {"model": {"_target_": "sample_plugins.Model", "path": str(tmp_path / "none")}}
        problems = prepare_model(config, tmp_path)
        assert [p.key for p in problems] == ["model.path"]
        assert "give one that exists" in problems[0].fix
        config["model"]["path"] = str(tmp_path)
        assert prepare_model(config, tmp_path) == []
        assert (tmp_path / "model").is_dir()


@pytest.mark.parametrize(
    ("value", "annotation", "accepted"),
    [
        (1, float, True),
        (True, float, False),
        (None, int | None, True),
        (None, int, False),
        ([1, 2], tuple[int, int], True),
        ([1], tuple[int, int], False),
        ([1, 2], tuple[int, ...], True),
        ("a/b", Path, True),
        ({"a": [1]}, dict[str, list[int]], True),
        ({"a": ["x"]}, dict[str, list[int]], False),
        ("auto", str | None, True),
        (object(), Any, True),
    ],
)
def test_fits(value: object, annotation: object, accepted: bool) -> None:
    assert fits(value, annotation) is accepted


def test_a_launcher_is_checked_before_it_is_made() -> None:
    config = {"launch": {"_target_": "headrace.launch.local.LocalLauncher", "drain_timeout_s": None, "max_restart": 3}}
    with pytest.raises(ConfigError) as error:
        make_launcher(config)
    assert {problem.key for problem in error.value.problems} == {"launch.drain_timeout_s", "launch.max_restart"}
