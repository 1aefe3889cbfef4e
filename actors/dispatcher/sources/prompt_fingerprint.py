"""What makes two prompts the same: their roles and texts. Used to keep held-out prompts out of training."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

from headrace.actors.session import ChatMessage


def prompt_fingerprint(messages: Sequence[ChatMessage]) -> str:
    """A hash of roles and texts."""
    digest = hashlib.blake2b(digest_size=16)
    for message in messages:
        for part in (message.role, message.content):
            encoded = part.encode()
            digest.update(len(encoded).to_bytes(8, "little") + encoded)
    return digest.hexdigest()
