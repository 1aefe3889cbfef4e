"""A model that exists already: a folder on disk, or a name on the Hugging Face hub (downloaded once)."""

from __future__ import annotations

import re
from pathlib import Path

from headrace.launch.models.linking import link_folder
from headrace.launch.models.soundness import check_model_folder

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_FILES = ["*.json", "*.safetensors", "*.model", "*.txt", "*.jinja"]


class ExistingModel:
    """path: a folder with config.json, weights and tokenizer, or a hub name such as "owner/model"."""

    def __init__(self, *, path: str, revision: str | None = None) -> None:
        if not path:
            raise ValueError("model.path must not be empty; give a model folder or a hub name such as owner/model")
        self._path = path
        self._revision = revision

    def prepare(self, target_dir: Path, seed: int) -> Path:
        """See ModelSource."""
        folder = Path(self._path).expanduser()
        if not folder.exists():
            if not _HUB_NAME.fullmatch(self._path):
                raise ValueError(
                    f"model.path {self._path!r} does not exist; give a model folder or a hub name (owner/model)"
                )
            folder = self._from_hub()
        missing = [
            what
            for what, patterns in {
                "config.json": ["config.json"],
                "weights (*.safetensors)": ["*.safetensors"],
                "a tokenizer (tokenizer.json or tokenizer.model)": ["tokenizer.json", "tokenizer.model", "vocab.json"],
            }.items()
            if not any(any(folder.glob(pattern)) for pattern in patterns)
        ]
        if missing:
            raise ValueError(
                f"model.path {self._path!r} lacks {' and '.join(missing)}; it must be a folder that transformers' "
                "save_pretrained wrote, with its tokenizer"
            )
        check_model_folder(folder)
        return link_folder(folder, target_dir)

    def _from_hub(self) -> Path:
        from huggingface_hub import snapshot_download
        from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError

        try:
            return Path(snapshot_download(self._path, revision=self._revision, allow_patterns=_FILES))
        except (HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
            raise ValueError(
                f"model.path {self._path!r} is neither a folder nor a model that the hub gave ({type(error).__name__}: "
                f"{error}); check the spelling and the network, or give a model folder"
            ) from error
