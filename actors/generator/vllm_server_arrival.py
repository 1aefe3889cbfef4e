"""Waiting for a vLLM server that somebody else starts, and asking it whether it can do what the run needs.

Changes nothing at the server. What is wrong with a configuration is said in vllm_server_checks.py. Called by
vllm_server_engine.py at its start.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from headrace.actors.generator.engine import EngineDied
from headrace.actors.generator.vllm_server_checks import (
    Wanted,
    command_line,
    is_cpu,
    problems,
    reload_problems,
    structure_problems,
)
from headrace.actors.generator.vllm_server_client import (
    ANSWER_S,
    ServerGone,
    ServerRefused,
    ServerWantsKey,
    VllmServerClient,
)
from headrace.transport.weights.collective import COLLECTIVE

_KNOCK_PERIOD_S = 1.0


async def until_up(client: VllmServerClient, wanted: Wanted, timeout_s: float) -> None:
    """Raises EngineDied where nobody comes, ValueError where it is no vLLM server."""
    try:
        async with asyncio.timeout(timeout_s):
            while True:
                if await client.is_up() and await _answers(client):
                    return
                await asyncio.sleep(_KNOCK_PERIOD_S)
    except TimeoutError:
        raise EngineDied(
            f"no vLLM server answered at {client.url} within {timeout_s:g} s; start one, or restart the one whose "
            f"workers hang: {command_line(wanted, cpu=False)}"
        ) from None
    except ServerRefused as error:
        raise ValueError(f"{client.url} is no vLLM server: {error}") from error


async def _answers(client: VllmServerClient) -> bool:
    """Workers that wait in a collective for ranks that are gone hold up everything but the HTTP server itself."""
    try:
        await client.label(ANSWER_S)
    except ServerGone:
        return False
    except ServerRefused:
        pass  # `check` says why
    return True


async def check(client: VllmServerClient, wanted: Wanted, config: Mapping[str, Any]) -> None:
    """Raises ValueError with all that does not fit and the command line of one that does. config: the run's
    config.json."""
    try:
        settings = await client.settings()
    except ServerRefused as error:
        raise ValueError(
            f"the server at {client.url} lets nobody steer it ({error}); start it in development mode: "
            f"{command_line(wanted, cpu=False)}"
        ) from error
    unmendable = reload_problems(settings, config)
    if unmendable:
        raise ValueError(f"the vLLM server at {client.url} cannot serve this run: {'; '.join(unmendable)}")
    found = problems(settings, wanted)
    try:
        if not await client.takes_token_ids():
            found.append("it has no /inference/v1/generate, tokens in and tokens out")
    except ServerWantsKey as error:
        raise ValueError(wrong_key(client, wanted)) from error
    found += structure_problems(await client.model_structure(), config)
    if found:
        raise ValueError(
            f"the vLLM server at {client.url} does not fit this run: {'; '.join(found)}. Start it as: "
            f"{command_line(wanted, cpu=is_cpu(settings) and wanted.transport != COLLECTIVE)}"
        )


def wrong_key(client: VllmServerClient, wanted: Wanted) -> str:
    if wanted.api_key_env is None:
        what = "no key was sent; set generator.engine.api_key_env to the name of an environment variable that has it"
    else:
        what = f"the one in the environment variable {wanted.api_key_env} (generator.engine.api_key_env) is another"
    return f"the vLLM server at {client.url} answers 401: it was started with --api-key, and {what}"
