"""Nobody waits for ever in silence: every wait in actors/ and transport/ has a deadline, or a reason for having none.
And every task is somebody's, so that its exception is heard of (messaging rule 10, faults 16 and 20; cases G107)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

FOLDERS = ("actors", "transport")

WAITING_CALLS = {"wait", "get", "put", "acquire", "wrap_future", "shield", "read", "readexactly", "drain"}
"""Awaited calls of these names may wait for somebody else. What is awaited without a call is a future or a task."""

WAITS_WITHOUT_DEADLINE = {
    # the runtime's own waits: their deadlines stand in `Deadlines`, which ends the future
    "transport/outbound.py Outbound.ask: await future": "the call rings at its deadline; a lost peer fails it",
    "transport/outbound.py Outbound._explain: await call.future": "done already",
    "transport/outbound.py Outbound._arrival: await waiter": "a deadline for each item, set beside it",
    "transport/outbound.py Outbound._or_end: await asyncio.wait((task, future), return_when=asyncio.FIRST_COMPLETED)":
        "the future is a call's: it rings at its deadline",
    "transport/link.py PeerCredit.wait: await waiter": "awaited through Outbound._or_end, beside a call's deadline",
    "transport/cell.py ActorCell.room: await waiter": "awaited through Outbound._or_end, beside a call's deadline",
    "transport/cell.py ActorCell._wait: await self._wake": "an actor without messages is idle",
    "transport/names.py Names._until: await waiter": "woken at its deadline",
    # an actor's own tasks that are idle until a handler of the same actor has something for them
    "actors/environment/actor.py EnvironmentActor._tell_moves: await self._moved.wait()": "idle until a session moves",
    "actors/environment/actor.py EnvironmentActor._run: async with self._free_slots":
        "a slot is held for session_timeout_s and the tries of its handover, at most",
    "actors/grader/actor.py Grader._work: await self._queue.get()": "idle until a session comes",
    "actors/grader/actor.py Grader.grade_session: await self._queue.put(message.trajectory)":
        "each task of the queue is bounded (timeout_s, delivery_patience_s); the asker's deadline cancels it",
    "actors/grader/worker_pool.py WorkerPool.grade: await future":
        "every path of WorkerPool._work ends the request, each within timeout_s and a grace",
    "actors/grader/worker_pool.py WorkerPool._work: await self._requests.get()": "idle until a grading comes",
    "actors/grader/worker_pool.py WardenConnection.close: await asyncio.shield(waiting)":
        "a wait for a child that is killed after a limit",
    "actors/dispatcher/seating.py Seating.pump: await self._changed.wait()": "idle until something changes",
    "actors/dispatcher/commits.py Commits.run: await self._wanted.wait()": "idle until something changes",
    "actors/dispatcher/commits.py Commits.durable: await asyncio.shield(self._done)":
        "the task beside it writes within milliseconds, or its error ends the process",
    "actors/dispatcher/evaluator.py Evaluator.run_until_finished: await self._work.wait()":
        "idle until a version is served or training is over",
    # others
    "actors/environment/daemon_thread.py run_in_daemon_thread: await future":
        "a tool's thread; called inside the phases' deadlines, and cancelled by them",
    "actors/generator/actor.py Generator.generate: await self._ready.wait()":
        "until the parameter server's first commit; the asker's deadline cancels it, and the wait is accounted for",
    "actors/generator/actor.py Generator._update: await asyncio.shield(task)":
        "an engine's update; the parameter server's ask has a deadline",
    "actors/generator/actor.py Generator._alone: async with self._one_update": "as Generator._update",
    "actors/generator/actor.py Generator.until_idle: async with self._one_update": "as Generator._update",
    "actors/learner/ranks/meeting.py meet_ranks.ask: await opened": "a task of a meeting that has a timeout",
    "actors/learner/publisher.py Publisher._send: await probing": "a short forward pass in a thread of its own",
    "actors/learner/publisher.py Publisher._send: async with self._one_seal":
        "while threads compute a probe and checksum a copy of the version before",
    "actors/learner/workbench.py Workbench._written: await self._writing":
        "a thread that writes a checkpoint: as long as the disk takes, as for the one that is written next",
    "actors/generator/actor.py Generator._alone: await work": "as Generator._update",
    "actors/generator/engine_sleep.py EngineSleep.awake: await asyncio.shield(self._waking)": "CHANGE_TIMEOUT_S",
    "actors/generator/engine_sleep.py EngineSleep.sleep: async with self._changing": "CHANGE_TIMEOUT_S at most",
    "actors/generator/engine_sleep.py EngineSleep._wake: async with self._changing": "CHANGE_TIMEOUT_S at most",
    "actors/generator/actor.py Generator.generate: async with self._sleep.awake()": "a wake, CHANGE_TIMEOUT_S at most",
    "actors/generator/actor.py Generator._stage: async with self._sleep.awake()": "a wake, CHANGE_TIMEOUT_S at most",
    "actors/generator/actor.py Generator._commit: async with self._sleep.awake()": "a wake, CHANGE_TIMEOUT_S at most",
    "actors/generator/scripted_engine.py ScriptedEngine._pass: await self._resumed.wait()": "set after pause_s",
    "actors/generator/torch_engine.py TorchEngine.start: await started":
        "the thread answers whatever happens; launch.start_timeout_s bounds it",
    "actors/generator/torch_engine.py TorchEngine.generate: await future":
        "the engine's thread; its death fails the future, the asker's deadline cancels it",
    "actors/generator/vllm_engine.py VllmEngine.start: await asyncio.wrap_future(started)":
        "the thread answers whatever happens; launch.start_timeout_s bounds it",
    "actors/generator/vllm_engine.py VllmEngine.generate: "
    "async for engine.generate(prompt, params, request_id, lora_request=adapter)":
        "vllm-watch ends it where vLLM dies, the asker's deadline cancels it",
    "actors/generator/vllm_engine.py VllmEngine.generate: await self._running.wait()":
        "for the length of an update, which ends or ends the engine; the asker's deadline cancels it",
    "actors/generator/vllm_engine.py VllmEngine.close: await self._watcher": "cancelled one line before",
    "actors/relay/actor.py Relay.local: await asyncio.shield(self._fetch(manifest))":
        "a fetch that does not move ends after patience_s; the asker's deadline cancels it",
    "actors/relay/fetch.py Fetch._bring: await asyncio.shield(placing)": "a thread that copies a bucket",
    "actors/relay/actor.py Relay._bring_in_turn: async with self._one_fetch":
        "held by another fetch, which ends after patience_s without a bucket",
    "actors/generator/vllm_server_client.py VllmServerClient._call: "
    "async with self._session.request(method, self.url + route, json=body, timeout=timeout, headers=self._headers)":
        "the HTTP client's own deadline, for the whole call",
    "actors/generator/vllm_server_engine.py VllmServerEngine._generate: await self._serving.wait()":
        "for the length of an update, which ends or ends the engine; the asker's deadline cancels it",
    "actors/generator/vllm_server_life.py ServerLife.unless_dead: "
    "await asyncio.wait({task, death}, return_when=asyncio.FIRST_COMPLETED)":
        "each HTTP call of the task has a deadline; the engine's death ends it",
    "actors/generator/vllm_server_life.py ServerLife.unless_dead: await task": "done already",
    "actors/generator/vllm_server_life.py ServerLife.end: await self._watcher": "cancelled one line before",
    "actors/generator/vllm_server_nccl.py ServerRanks._until_aborted: await self._work":
        "one HTTP call, which has a deadline",
    "actors/parameter_server/actor.py ParameterServer.sync_evaluators: await self._synced":
        "ends with the asks of its members, each with a deadline; the asker's deadline cancels it",
    "actors/parameter_server/actor.py ParameterServer._tell: "
    "async with self._in_order.setdefault(receiver, asyncio.Lock())": (
        "held for one ask, which is repeated for _NEWS_PATIENCE_S at most"
    ),
}  # fmt: skip

TASKS = {
    "actors/learner/publisher.py Publisher._send": "its result is taken in the same call",
    "actors/learner/ranks/meeting.py meet_ranks": "a TaskGroup's, which ends in whatever they raise",
    "actors/learner/workbench.py Workbench.save_beside": "kept; it logs and counts whatever the writing raises",
    "transport/stream_network.py _Outgoing.__init__": "kept; it catches and logs whatever a connection raises",
    "transport/cell.py ActorCell.start": "kept; its exception fails the actor",
    "transport/cell.py ActorCell.spawn": "kept; its exception fails the actor",
    "transport/cell.py ActorCell._begin": "kept; its exception fails the actor",
    "transport/outbound.py Outbound._or_end": "ended in the same call; its waits raise nothing",
    "transport/runtime.py Runtime._stop_actor": "its exception is logged in the same call",
    "transport/runtime.py Runtime._fail": "kept; its exception is logged",
    "actors/environment/phases.py within": "its result is taken in the same call, or it is kept and looked at",
    "actors/generator/actor.py Generator._update": "kept; its exception reaches the asker and the log",
    "actors/generator/engine_sleep.py EngineSleep.awake": "kept; its exception reaches whoever needs the engine next",
    "actors/generator/vllm_engine.py VllmEngine.start": "kept; its exception ends the engine",
    "actors/generator/vllm_server_life.py ServerLife.unless_dead": "its result is taken in the same call",
    "actors/generator/vllm_server_life.py ServerLife.begin": "kept; its exception ends the engine",
    "actors/generator/vllm_server_nccl.py ServerRanks._until_aborted": "its result is taken in the same call",
    "actors/relay/fetch.py Fetch._bring": "kept; its exception is raised in the same call",
    "actors/grader/worker_pool.py WorkerPool._start_worker": "kept; its exception is logged, its request fails by name",
}


class Finder(ast.NodeVisitor):
    """`waits` and `tasks`: "path function: expression" and "path function"."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._names: list[str] = []
        self._with_deadline = False
        self.waits: list[str] = []
        self.tasks: list[str] = []

    @property
    def where(self) -> str:
        return f"{self._path} {'.'.join(self._names)}"

    def _inside(self, node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer, self._with_deadline = self._with_deadline, False
        self._names.append(node.name)
        self.generic_visit(node)
        self._names.pop()
        self._with_deadline = outer

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._inside(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        self._inside(node)

    def visit_AsyncFunctionDef(self, node: ast.AsyncFunctionDef) -> None:
        self._inside(node)

    def visit_AsyncWith(self, node: ast.AsyncWith) -> None:
        outer = self._with_deadline
        for item in node.items:
            expression = item.context_expr
            if _called(expression) == "timeout":
                self._with_deadline = True
            elif _called(expression) != "aclosing":
                self._note(f"async with {ast.unparse(expression)}")
        self.generic_visit(node)
        self._with_deadline = outer

    def visit_AsyncFor(self, node: ast.AsyncFor) -> None:
        if _called(node.iter) != "stream":  # the runtime's streams have a deadline for each item
            self._note(f"async for {ast.unparse(node.iter)}")
        self.generic_visit(node)

    def visit_Await(self, node: ast.Await) -> None:
        name = _called(node.value)
        if name is None or (name in WAITING_CALLS and not _has_timeout(node.value)):
            self._note(ast.unparse(node))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        if _called(node) in ("create_task", "ensure_future", "run_coroutine_threadsafe"):
            self.tasks.append(self.where)
        self.generic_visit(node)

    def _note(self, expression: str) -> None:
        if not self._with_deadline:
            self.waits.append(f"{self.where}: {expression}")


def _called(node: ast.expr) -> str | None:
    """The last name of what is called; None for what is no call."""
    if not isinstance(node, ast.Call):
        return None
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _has_timeout(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and any(keyword.arg == "timeout" for keyword in node.keywords)


def finders(repository: Path) -> Iterator[Finder]:
    for folder in FOLDERS:
        for path in sorted((repository / folder).rglob("*.py")):
            finder = Finder(str(path.relative_to(repository)))
            finder.visit(ast.parse(path.read_text(encoding="utf-8")))
            yield finder


def test_every_wait_has_a_deadline_or_a_reason(repository: Path) -> None:
    found = {wait for finder in finders(repository) for wait in finder.waits}
    new = "\n".join(sorted(found - WAITS_WITHOUT_DEADLINE.keys()))
    assert not new, f"these may wait for ever; give them a deadline (asyncio.timeout), or a reason above:\n{new}"
    assert not WAITS_WITHOUT_DEADLINE.keys() - found, "reasons for waits that are no longer there"


def test_every_task_is_kept_and_its_exception_heard_of(repository: Path) -> None:
    found = {task for finder in finders(repository) for task in finder.tasks}
    new = "\n".join(sorted(found - TASKS.keys()))
    assert not new, f"use context.spawn, or say above who hears of its exception:\n{new}"
    assert not TASKS.keys() - found, "reasons for tasks that are no longer there"


def test_the_finder_finds() -> None:
    finder = Finder("x.py")
    code = """
async def f(self):
    await self.event.wait()
    await future
    async with lock: pass
    async with asyncio.timeout(1):
        await self.event.wait()
    await asyncio.wait({task}, timeout=1)
    await asyncio.wait({task})
    async for item in things(): pass
    asyncio.create_task(g())
"""
    finder.visit(ast.parse(code))
    assert finder.waits == [
        "x.py f: await self.event.wait()",
        "x.py f: await future",
        "x.py f: async with lock",
        "x.py f: await asyncio.wait({task})",
        "x.py f: async for things()",
    ]
    assert finder.tasks == ["x.py f"]
