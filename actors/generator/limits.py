"""The check that every engine makes before it takes a request."""

from __future__ import annotations

from headrace.actors.messages import Generate


def check_request(request: Generate, context_tokens: int) -> None:
    """Raise ValueError where the prompt is empty or prompt + max_tokens exceed the context."""
    prompt_tokens = len(request.prompt_token_ids)
    if prompt_tokens == 0:
        raise ValueError(f"session {request.session_id}: the prompt is empty; a prompt has at least one token")
    if prompt_tokens + request.sampling.max_tokens > context_tokens:
        raise ValueError(
            f"session {request.session_id}: prompt ({prompt_tokens}) + max_tokens ({request.sampling.max_tokens}) "
            f"exceed the context of {context_tokens} tokens; lower max_tokens or raise the engine's max_model_len"
        )
