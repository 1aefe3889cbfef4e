"""What a foreign vLLM server does wrong, in each phase: a scripted peer injects it. No token ever claims weights that
this engine did not load, and nothing waits for ever."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("aiohttp")

from aiohttp import web
from scripted_vllm_server import SETTINGS, ScriptedVllmServer

from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.vllm_server_engine import VllmServerEngine
from headrace.actors.messages import Completion, Generate
from headrace.actors.session import Sampling
from headrace.transport.weights import Manifest, SenderSettings, WeightsMismatch, make_sender
from headrace.transport.weights.layout import model_tensors

GENERATE = "/inference/v1/generate"


class Scene:
    def __init__(self, server: ScriptedVllmServer, engine: VllmServerEngine, sender: Any, models: Any) -> None:
        self.server, self.engine, self._sender, self._models = server, engine, sender, models
        self._version = 0

    async def generate(self, max_tokens: int = 3) -> Completion:
        prompt = np.asarray([1, 2], dtype=np.int32)
        return await self.engine.generate(Generate("session", prompt, Sampling(max_tokens=max_tokens), fresh=True))

    async def stage(self) -> Manifest:
        self._version += 1
        staged = self._sender.stage(model_tensors(self._models["second"]), version=self._version, step=self._version)
        manifest: Manifest = staged.seal()
        await self.engine.stage_weights(manifest)
        return manifest

    async def update(self) -> None:
        await self.engine.commit_weights(await self.stage())


@pytest.fixture
def play(models: Any, model_path: str, tmp_path: Any) -> Callable[..., None]:
    def run(script: Callable[[Scene], Awaitable[None]], *, started: bool = True, **settings: Any) -> None:
        async def scene() -> None:
            server = ScriptedVllmServer()
            await server.start()
            options = {"watch_period_s": 60.0, "start_timeout_s": 5.0, "model_path": model_path, **settings}
            engine = VllmServerEngine(url=server.url, dtype="float32", **options)
            sender = make_sender("checkpoint", SenderSettings(run_id="faults", num_buffers=9, folder=tmp_path / "w"))
            try:
                if started:
                    await engine.start()
                await script(Scene(server, engine, sender, models))
            finally:
                await engine.close()
                await server.stop()
                sender.close()

        asyncio.run(asyncio.wait_for(scene(), 60))

    return run


def refuse(status: int, text: str) -> Callable[[Any], None]:
    def answer(body: Any) -> None:
        raise {404: web.HTTPNotFound, 500: web.HTTPInternalServerError, 400: web.HTTPBadRequest}[status](text=text)

    return answer


def test_the_runs_model_comes_first_then_each_version(play: Any, model_path: str) -> None:
    async def script(scene: Scene) -> None:
        assert scene.server.folder == model_path
        assert (await scene.generate()).versions.tolist() == [0, 0, 0]
        manifest = await scene.stage()
        assert (await scene.generate()).versions.tolist() == [0, 0, 0], "staged is not served"
        scene.server.calls.clear()
        await scene.engine.commit_weights(manifest)
        order = ["/pause", "/collective_rpc", "/weight_info", "/update_weight_version", "/resume"]
        assert scene.server.routes == order
        assert scene.server.folder == manifest.location
        assert (await scene.generate()).versions.tolist() == [1, 1, 1]

    play(script)


@pytest.mark.parametrize("route", ["/pause", "/collective_rpc", "/weight_info"])
def test_a_restart_in_the_midst_of_an_update_is_seen(play: Any, route: str) -> None:
    """Before the label is set, another process answers than the one that was asked before."""

    async def script(scene: Scene) -> None:
        def restart(body: Any) -> None:
            scene.server.restart()
            scene.server.paused = True  # the assertion in the peer is of no interest here

        manifest = await scene.stage()
        scene.server.before[route] = restart
        with pytest.raises(EngineDied, match="was restarted, or somebody else steers it too"):
            await scene.engine.commit_weights(manifest)
        assert scene.server.label == "default"
        with pytest.raises(EngineDied):
            await scene.generate()

    play(script)


def test_a_restart_between_two_requests_is_seen_by_the_tokens(play: Any) -> None:
    async def script(scene: Scene) -> None:
        await scene.update()
        scene.server.restart()
        with pytest.raises(EngineDied, match="its tokens are of 'default'"):
            await scene.generate()

    play(script)


def test_a_restart_while_nobody_asks_is_seen_too(play: Any) -> None:
    async def script(scene: Scene) -> None:
        waiting = asyncio.ensure_future(scene.generate())
        await scene.server_asked.wait()  # type: ignore[attr-defined]
        scene.server.restart()
        with pytest.raises(EngineDied, match="was restarted"):
            await waiting

    async def with_a_request_that_hangs(scene: Scene) -> None:
        scene.server_asked = asyncio.Event()  # type: ignore[attr-defined]

        async def hang(body: Any) -> None:
            scene.server_asked.set()  # type: ignore[attr-defined]
            await asyncio.sleep(3600)

        scene.server.before[GENERATE] = hang
        await script(scene)

    play(with_a_request_that_hangs, watch_period_s=0.05)


def test_a_request_that_gets_no_answer_ends_the_engine_at_its_deadline(play: Any) -> None:
    async def script(scene: Scene) -> None:
        async def hang(body: Any) -> None:
            await asyncio.sleep(3600)

        scene.server.before[GENERATE] = hang
        with pytest.raises(EngineDied, match=r"gave no answer within 0\.3 s"):
            await scene.generate()

    play(script, request_timeout_s=0.3)


def test_an_update_that_gets_no_answer_ends_the_engine_at_its_deadline(play: Any) -> None:
    async def script(scene: Scene) -> None:
        manifest = await scene.stage()

        async def hang(body: Any) -> None:
            await asyncio.sleep(3600)

        scene.server.before["/collective_rpc"] = hang
        waiting = asyncio.ensure_future(scene.engine.commit_weights(manifest))
        await asyncio.sleep(0)
        behind = asyncio.ensure_future(scene.generate())
        with pytest.raises(EngineDied, match=r"while version 1 was loaded: .* gave no answer within 1 s"):
            await waiting
        with pytest.raises(EngineDied):
            await behind

    play(script, update_timeout_s=1.0)


def test_no_connection_is_kept_for_the_server_to_close_under_a_request(play: Any) -> None:
    """uvicorn closes idle connections after 5 s; a request on its way just then is reset, as if the server had died."""

    async def script(scene: Scene) -> None:
        await scene.update()
        await scene.generate()
        assert not scene.server.kept_alive

    play(script)


def test_a_load_that_fails_brings_the_old_version_back(play: Any, model_path: str) -> None:
    async def script(scene: Scene) -> None:
        failures = iter([True])

        def fail_once(body: Any) -> None:
            if next(failures, False):
                raise web.HTTPInternalServerError(text="Worker failed with error 'header too large'")

        manifest = await scene.stage()
        scene.server.before["/collective_rpc"] = fail_once
        with pytest.raises(WeightsMismatch, match=r"version 0 serves on: .*header too large"):
            await scene.engine.commit_weights(manifest)
        assert scene.server.folder == model_path
        assert not scene.server.paused
        assert (await scene.generate()).versions.tolist() == [0, 0, 0]
        await scene.update()
        assert (await scene.generate()).versions.tolist() == [2, 2, 2]

    play(script)


def test_where_the_old_version_cannot_come_back_either_the_engine_ends(play: Any) -> None:
    async def script(scene: Scene) -> None:
        manifest = await scene.stage()
        scene.server.before["/collective_rpc"] = refuse(500, "no such folder")
        with pytest.raises(EngineDied, match="failed while version 1 was loaded"):
            await scene.engine.commit_weights(manifest)
        assert scene.server.paused, "nothing is served from a broken model"

    play(script)


def test_a_request_that_it_refuses_is_the_requests_fault_alone(play: Any) -> None:
    async def script(scene: Scene) -> None:
        scene.server.before[GENERATE] = refuse(400, "out of vocabulary")
        with pytest.raises(ValueError, match=r"session session: .* answered 400: out of vocabulary"):
            await scene.generate()
        del scene.server.before[GENERATE]
        await scene.generate()

    play(script)


def test_nobody_there(play: Any, model_path: str) -> None:
    async def script(scene: Scene) -> None:
        await scene.server.stop()
        with pytest.raises(
            EngineDied,
            match=r"no vLLM server answered at http://127.0.0.1:\d+ within 0\.2 s; start one, or restart the one ",
        ):
            await scene.engine.start()

    play(script, started=False, start_timeout_s=0.2)


@pytest.mark.parametrize(
    ("route", "section", "settings", "message"),
    [
        ("/server_info", None, {}, "lets nobody steer it .* start it in development mode: VLLM_SERVER_DEV_MODE=1"),
        (GENERATE, None, {}, "it has no /inference/v1/generate"),
        (None, "model_config", {"logprobs_mode": "raw_logprobs"}, "its --logprobs-mode is raw_logprobs"),
        (None, "model_config", {"quantization": "fp8"}, r"its weights are quantised \(fp8\)"),
        (None, "scheduler_config", {"enable_chunked_prefill": True}, "it splits long prompts"),
    ],
)
def test_a_server_that_cannot_do_it_is_refused_with_the_command_line(
    play: Any, route: str | None, section: str | None, settings: dict[str, Any], message: str
) -> None:
    async def script(scene: Scene) -> None:
        if route is not None:
            scene.server.before[route] = refuse(404, "Not Found")
        if section is not None:
            scene.server.settings = {**SETTINGS, section: {**SETTINGS[section], **settings}}
        with pytest.raises(ValueError, match=message) as caught:
            await scene.engine.start()
        assert "vllm serve" in str(caught.value)
        assert scene.server.folder == "its own"

    play(script, started=False)


def test_a_model_that_it_would_load_in_part_is_refused_with_nothing_loaded(play: Any, tmp_path: Path) -> None:
    from transformers import LlamaConfig

    folder = tmp_path / "tied"
    LlamaConfig(
        vocab_size=128, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, tie_word_embeddings=True
    ).save_pretrained(folder)

    async def script(scene: Scene) -> None:
        with pytest.raises(ValueError, match="cannot serve this run: its output head shares the embedding's weights"):
            await scene.engine.start()
        assert not [route for route, _ in scene.server.calls if route in ("/pause", "/collective_rpc")]

    play(script, started=False, model_path=str(folder))


def test_a_folder_that_it_cannot_read_is_said_at_the_start(play: Any) -> None:
    async def script(scene: Scene) -> None:
        def refuse_to_load(body: Any) -> None:
            if body["method"] == "reload_weights":
                raise web.HTTPInternalServerError(text="Repo id must be in the form")

        scene.server.before["/collective_rpc"] = refuse_to_load
        with pytest.raises(ValueError, match="it must read the run's folder under the same name"):
            await scene.engine.start()

    play(script, started=False)


def test_another_transport_is_refused_before_anything_starts() -> None:
    with pytest.raises(ValueError, match=r"must be checkpoint or nccl, got 'shm'; add weights=checkpoint"):
        VllmServerEngine(url="http://127.0.0.1:1", model_path="m", transport="shm")
    with pytest.raises(ValueError, match=r"generator.engine.url must be http://HOST:PORT"):
        VllmServerEngine(url="127.0.0.1:8000", model_path="m")
    with pytest.raises(ValueError, match=r"takes no adapters, got lora_rank=16 \(from learner.lora\)"):
        VllmServerEngine(url="http://127.0.0.1:1", model_path="m", lora_rank=16)
    with pytest.raises(ValueError, match="must be the name of an environment variable") as caught:
        VllmServerEngine(url="http://127.0.0.1:1", model_path="m", api_key_env="sk-the-key-itself")
    assert "sk-the" not in str(caught.value)


def test_its_key_goes_with_every_call_and_is_said_nowhere(
    play: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def script(scene: Scene) -> None:
        scene.server.api_key = "a-secret"
        await scene.engine.start()
        await scene.update()
        assert (await scene.generate()).versions.tolist() == [1, 1, 1]
        assert set(scene.server.keys) == {"Bearer a-secret"}
        scene.server.api_key = "another"
        with pytest.raises(EngineDied, match=r"has another API key now: .* answered 401: Unauthorized") as died:
            await scene.generate()
        assert "a-secret" not in str(died.value)

    caplog.set_level("DEBUG")
    monkeypatch.setenv("HEADRACE_TEST_KEY", " a-secret\n")
    play(script, started=False, api_key_env="HEADRACE_TEST_KEY")
    assert "a-secret" not in caplog.text


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        (None, "answers 401: it was started with --api-key, and no key was sent; set generator.engine.api_key_env"),
        (
            "HEADRACE_TEST_KEY",
            r"environment variable HEADRACE_TEST_KEY \(generator.engine.api_key_env\) is another",
        ),
        ("HEADRACE_NO_KEY", r"api_key_env names the environment variable HEADRACE_NO_KEY, which is not set here"),
    ],
)
def test_a_wrong_key_is_refused_at_the_start(
    play: Any, monkeypatch: pytest.MonkeyPatch, variable: str | None, message: str
) -> None:
    async def script(scene: Scene) -> None:
        scene.server.api_key = "the-right-one"
        with pytest.raises(ValueError, match=message) as caught:
            await scene.engine.start()
        assert "a-secret" not in str(caught.value)
        assert scene.server.folder == "its own"

    monkeypatch.setenv("HEADRACE_TEST_KEY", "a-secret")
    monkeypatch.delenv("HEADRACE_NO_KEY", raising=False)
    play(script, started=False, api_key_env=variable)
