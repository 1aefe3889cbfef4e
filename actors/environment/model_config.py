"""The one number of a model's config.json that environments need."""

from __future__ import annotations

import json
from pathlib import Path


def context_tokens_of(folder: Path) -> int:
    """`max_position_embeddings`. Raises ValueError where the folder does not say."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    value = config.get("max_position_embeddings") or config.get("text_config", {}).get("max_position_embeddings")
    if not isinstance(value, int):
        raise ValueError(f"{path} has no max_position_embeddings; set the environment's context_tokens")
    return value
