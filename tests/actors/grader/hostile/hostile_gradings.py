"""Gradings that misbehave on command: the last assistant message says how."""

from __future__ import annotations

import os
import subprocess
import sys
import time

from headrace.actors.grader.grading import Grade, answer_text
from headrace.actors.session import Trajectory

SLEEPER = "import os,time\nif {escape}: os.setsid()\ntime.sleep(600)"


class Obedient:
    """Does what the answer says. Grades everything else 1.0."""

    isolation = "process"
    killed_reward: float | None = 0.0

    def grade(self, trajectory: Trajectory) -> Grade:
        command, _, argument = answer_text(trajectory).partition(" ")
        if command == "spin":
            end = time.monotonic() + float(argument)
            while time.monotonic() < end:
                pass
        elif command == "spin_until":  # a file exists
            while not os.path.exists(argument):
                pass
        elif command == "spawn":  # a grandchild that outlives the grading; "escape" also leaves the process group
            code = SLEEPER.format(escape=argument == "escape")
            child = subprocess.Popen([sys.executable, "-c", code, "left-behind-by-a-grading"])
            return Grade(1.0, notes={"pid": str(child.pid)})
        elif command == "spawn_then_spin":
            subprocess.Popen([sys.executable, "-c", SLEEPER.format(escape=True), "left-behind-by-a-grading"])
            while True:
                pass
        elif command == "crash":
            os._exit(3)
        elif command == "raise":
            raise RuntimeError(f"told to raise {argument}")
        elif command == "eat":
            return Grade(float(len(bytearray(int(argument)))))
        elif command == "nan":
            return Grade(float("nan"))
        return Grade(1.0, {"fine": 1.0}, {"pid": str(os.getpid())})


class Forgiving(Obedient):
    """A killed grading is an infrastructure failure here."""

    killed_reward = None


class Unloadable:
    isolation = "process"

    def grade(self, trajectory: Trajectory) -> Grade:
        return Grade(1.0)

    def warm_up(self, in_child: bool) -> None:
        if in_child:
            raise ImportError("the library is not installed")
