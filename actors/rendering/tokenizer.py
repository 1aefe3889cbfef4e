"""A model folder's tokenizer, read with the `tokenizers` library alone.

Importing transformers' tokenizers costs about 400 MB and 4 s of a process that otherwise needs 60 MB; environment
processes are many, so they read `tokenizer.json` and the few JSON files beside it instead. Nothing here changes the
tokenizer after it is loaded (no truncation, no padding): that is what makes it safe to share among threads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

NAMED_TOKENS = ("bos_token", "eos_token", "pad_token", "unk_token")


class ModelTokenizer:
    """Text to ids and back, the special tokens by name, and the ids at which generation stops."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        *,
        named_tokens: dict[str, str] | None = None,
        eos_token_ids: Sequence[int] = (),
        chat_template: str | None = None,
    ) -> None:
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer
        self.named_tokens = dict(named_tokens or {})
        self.chat_template = chat_template
        self.special_ids = frozenset(
            i for i, token in tokenizer.get_added_tokens_decoder().items() if getattr(token, "special", False)
        )
        stops = [*eos_token_ids]
        if (eos := self.named_id("eos_token")) is not None:
            stops.append(eos)
        self.eos_token_ids = tuple(dict.fromkeys(int(i) for i in stops))

    @classmethod
    def from_folder(cls, folder: str | Path) -> ModelTokenizer:
        """Read `tokenizer.json`, the configs beside it (tokenizer, generation, model) and the chat template.

        Raises FileNotFoundError where the folder has no `tokenizer.json`.
        """
        folder = Path(folder)
        path = folder / "tokenizer.json"
        if not path.is_file():
            raise FileNotFoundError(
                f"{path} does not exist: the model folder needs a fast tokenizer; write one with "
                "AutoTokenizer.from_pretrained(name).save_pretrained(folder)"
            )
        config = _read_json(folder / "tokenizer_config.json")
        return cls(
            Tokenizer.from_file(str(path)),
            named_tokens=_named_tokens(config),
            eos_token_ids=_eos_token_ids(folder),
            chat_template=_chat_template(folder, config),
        )

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens written in it become their ids, and none is added."""
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Sequence[int], *, special_tokens: bool = False) -> str:
        """Text of the ids; bytes that are no whole character become U+FFFD."""
        text: str = self._tokenizer.decode([int(i) for i in token_ids], skip_special_tokens=not special_tokens)
        return text

    def token_id(self, token: str) -> int | None:
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def named_id(self, name: str) -> int | None:
        """Id of "bos_token", "eos_token", …; None where the model has none."""
        token = self.named_tokens.get(name)
        return None if token is None else self.token_id(token)

    @property
    def adds_bos(self) -> bool:
        """Whether the tokenizer itself puts the BOS token before a text (its post-processor says so)."""
        bos = self.named_id("bos_token")
        return bos is not None and self._tokenizer.encode("a", add_special_tokens=True).ids[:1] == [bos]


def _read_json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return content


def _named_tokens(config: dict[str, Any]) -> dict[str, str]:
    named = {}
    for name in NAMED_TOKENS:
        token = config.get(name)
        if isinstance(token, dict):
            token = token.get("content")
        if isinstance(token, str):
            named[name] = token
    return named


def _eos_token_ids(folder: Path) -> list[int]:
    ids: list[int] = []
    for name in ("generation_config.json", "config.json"):
        value = _read_json(folder / name).get("eos_token_id")
        ids += value if isinstance(value, list) else [] if value is None else [value]
    return ids


def _chat_template(folder: Path, config: dict[str, Any]) -> str | None:
    path = folder / "chat_template.jinja"
    if path.is_file():
        return path.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        template = next((entry["template"] for entry in template if entry.get("name") == "default"), None)
    return template if isinstance(template, str) else None
