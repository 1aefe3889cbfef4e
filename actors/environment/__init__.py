"""The environment actor: it runs sessions (turn loop, tokens, tools) and hands finished trajectories to a grader."""

from headrace.actors.environment.actor import EnvironmentActor
from headrace.actors.environment.environment import Environment, EnvironmentFactory, Observation, StepOutcome
from headrace.actors.environment.in_process_tools import InProcessTools, PythonTool
from headrace.actors.environment.single_turn import SingleTurn
from headrace.actors.environment.tools import Calculator, Lookup
from headrace.actors.session import Tool

__all__ = [
    "Calculator",
    "Environment",
    "EnvironmentActor",
    "EnvironmentFactory",
    "InProcessTools",
    "Lookup",
    "Observation",
    "PythonTool",
    "SingleTurn",
    "StepOutcome",
    "Tool",
]
