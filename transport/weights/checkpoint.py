"""Weights as a folder in Hugging Face format, which any engine can load: safetensors beside the model's own config and
tokenizer. The slowest means of one host or one shared file system, and the one that strangers understand.

    FOLDER/version-000007/        complete: it got its name by one rename, after fsync
    FOLDER/.partial-…, .doomed-…  being written, being removed; deleted at the next start

Staging copies into memory; writing is `seal`'s, beside training. A folder is never written again, so that whoever has
opened its files reads the version that he opened, whatever is released meanwhile.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import xxhash

from headrace.transport.durable import sync
from headrace.transport.weights.buffers import BufferPool
from headrace.transport.weights.carrier import SenderSettings, StagedVersion
from headrace.transport.weights.checksum import compare
from headrace.transport.weights.layout import DTYPES, build_layout, flatten_into, unflatten
from headrace.transport.weights.manifest import Manifest, TensorSpec, WeightsMismatch
from headrace.transport.weights.parallel_copy import ParallelCopy
from headrace.transport.weights.staged import MemoryBuffer, StagedCopy

if TYPE_CHECKING:
    from torch import Tensor

MAX_SHARD_BYTES = 5 << 30
_INDEX = "model.safetensors.index.json"
_VERSION, _PARTIAL, _DOOMED = "version-", ".partial-", ".doomed-"
_WEIGHT_SUFFIXES = (".safetensors", ".bin", ".pt", ".pth", ".gguf", ".index.json")


class CheckpointSender:
    """The learner's end. The folders lie in settings.folder; config, tokenizer and whatever else is no weight comes
    from settings.model_folder. A file has at most `max_shard_bytes`, but for a tensor that is larger."""

    def __init__(self, settings: SenderSettings, *, max_shard_bytes: int = MAX_SHARD_BYTES) -> None:
        if settings.folder is None:
            raise ValueError("weights.transport=checkpoint needs a folder to write to, got none")
        self.folder = settings.folder.absolute()  # an engine that somebody else runs stands elsewhere
        self._model_folder = settings.model_folder
        self._bucket_bytes = settings.bucket_bytes
        self._max_shard_bytes = max_shard_bytes
        self._copy = ParallelCopy()
        self._pool = BufferPool(settings.num_buffers, self._make)
        self._started = False

    def stage(
        self, tensors: Mapping[str, Tensor], *, version: int, step: int, dtype: str | None = None
    ) -> StagedVersion | None:
        """See WeightSender."""
        layout = build_layout(tensors, dtype=dtype, bucket_bytes=self._bucket_bytes)
        with self._pool.filling(layout.nbytes, version) as buffer:
            if buffer is None:
                return None
            flatten_into(buffer.bytes, tensors, layout, self._copy)
        views = dict(unflatten(layout, buffer.bytes, include_tied=False))
        location = self.folder / f"{_VERSION}{version:06d}"
        return StagedCopy(
            layout,
            version=version,
            step=step,
            transport="checkpoint",
            location=str(location),
            checksums=lambda: _checksums(layout.tensors, [nbytes for _, nbytes in layout.bounds], views),
            sealed=lambda manifest: self.write(views, location),
        )

    def write(self, tensors: dict[str, Tensor], final: Path) -> None:
        """All of a folder, or nothing under that name. Raises OSError where the disk is full."""
        from safetensors import SafetensorError

        self._delete(_DOOMED)
        partial = self.folder / f"{_PARTIAL}{secrets.token_hex(8)}"
        try:
            partial.mkdir(parents=True)
            _copy_all_but_weights(self._model_folder, partial, tensors)
            _save(tensors, partial, self._max_shard_bytes)
            for path in (*partial.iterdir(), partial):
                sync(path)
            os.replace(partial, final)
            sync(self.folder)
        except (OSError, SafetensorError) as error:
            shutil.rmtree(partial, ignore_errors=True)
            raise OSError(
                f"the weights cannot be written to {final} ({error}); make room there, or set weights=shm where "
                "everything runs on one host"
            ) from error

    def release(self, version: int) -> None:
        """See WeightSender. The name goes at once, the bytes with the next write: the learner's loop does not wait."""
        self._pool.release(version)
        self._doom(self.folder / f"{_VERSION}{version:06d}")

    def close(self) -> None:
        """See WeightSender; but the newest version stays, for whoever wants to load it later."""
        self._pool.close()
        if self._started:
            self._clear()

    def _make(self, nbytes: int) -> MemoryBuffer:
        if not self._started:
            self._clear()
            self._started = True
        return MemoryBuffer(nbytes)

    def _clear(self) -> None:
        """What an earlier life left, or this one, but for the newest version: engines may still begin with it."""
        numbers = {path: path.name.removeprefix(_VERSION) for path in self.folder.glob(f"{_VERSION}*")}
        versions = [path for path, number in numbers.items() if number.isdecimal()]
        for path in sorted(versions, key=lambda path: int(numbers[path]))[:-1]:
            self._doom(path)
        self._delete(_PARTIAL)
        self._delete(_DOOMED)

    def _doom(self, path: Path) -> None:
        """Out of its name first: nobody finds half a folder."""
        with contextlib.suppress(FileNotFoundError):
            os.replace(path, self.folder / f"{_DOOMED}{secrets.token_hex(8)}")

    def _delete(self, prefix: str) -> None:
        for path in self.folder.glob(f"{prefix}*"):
            shutil.rmtree(path, ignore_errors=True)


class CheckpointReceiver:
    """An engine's end: the files, mapped. Several processes may map them at once, and share their memory."""

    def __init__(self, manifest: Manifest) -> None:
        from safetensors import SafetensorError, safe_open

        self._manifest = manifest
        self._views: dict[str, Tensor] | None = {}
        folder = Path(manifest.location)
        try:
            for path in weight_files(folder):
                with safe_open(path, framework="pt") as file:
                    self._views.update({name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
        except (OSError, SafetensorError, ValueError, KeyError) as error:
            raise WeightsMismatch(
                f"version {manifest.version}: {folder} cannot be read ({error}); checkpoint reaches whoever shares the "
                "learner's file system, until the version is released"
            ) from error
        _check_found(manifest, self._views)

    def verify(self) -> None:
        """See WeightReceiver."""
        sizes = [bucket.nbytes for bucket in self._manifest.buckets]
        compare(self._manifest, _checksums(self._manifest.tensors, sizes, self._open()))

    def tensors(self, *, include_tied: bool = False) -> Iterator[tuple[str, Tensor]]:
        """See WeightReceiver. Views into the mapped files, which they keep mapped; nothing may be written there."""
        views = self._open()
        for spec in self._manifest.tensors:
            yield spec.name, views[spec.name]
        if include_tied:
            for name, source in self._manifest.tied.items():
                yield name, views[source]

    def check_unchanged(self) -> None:
        """See WeightReceiver: a file that is mapped stays what it is when its folder goes."""

    def close(self) -> None:
        """See WeightReceiver."""
        self._views = None

    def _open(self) -> dict[str, Tensor]:
        if self._views is None:
            raise ValueError(f"the receiver of version {self._manifest.version} is closed")
        return self._views


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a model folder, by its index where it has one. Raises OSError, ValueError, KeyError."""
    index = folder / _INDEX
    if index.exists():
        return sorted({folder / name for name in json.loads(index.read_text())["weight_map"].values()})
    return [folder / "model.safetensors"]


def _save(tensors: dict[str, Tensor], folder: Path, max_shard_bytes: int) -> None:
    """One file, or several and an index that says which tensor lies in which."""
    from safetensors.torch import save_file

    shards: list[dict[str, Tensor]] = [{}]
    room = max_shard_bytes
    for name, tensor in tensors.items():
        if shards[-1] and tensor.nbytes > room:
            shards.append({})
            room = max_shard_bytes
        shards[-1][name] = tensor
        room -= tensor.nbytes
    names = [f"model-{i:05d}-of-{len(shards):05d}.safetensors" for i in range(1, len(shards) + 1)]
    if len(shards) == 1:
        names = ["model.safetensors"]
    else:
        of = {name: file for file, shard in zip(names, shards, strict=True) for name in shard}
        total = {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
        (folder / _INDEX).write_text(json.dumps({"metadata": total, "weight_map": of}, indent=2))
    for file, shard in zip(names, shards, strict=True):
        save_file(shard, folder / file, metadata={"format": "pt"})


def _checksums(specs: Sequence[TensorSpec], sizes: Sequence[int], views: Mapping[str, Tensor]) -> tuple[int, ...]:
    """Of the buckets of these sizes into which the flat buffer is cut."""
    digests = [xxhash.xxh3_64() for _ in sizes]
    at, room = 0, sizes[0] if sizes else 0
    for piece in _flat(specs, views):
        while piece:
            if not room:
                at, room = at + 1, sizes[at + 1]
            digests[at].update(piece[:room])
            room, piece = max(0, room - len(piece)), piece[room:]
    return tuple(int(digest.intdigest()) for digest in digests)


def _flat(specs: Sequence[TensorSpec], views: Mapping[str, Tensor]) -> Iterator[memoryview]:
    """What the flat buffer would hold: the tensors, with zeros between them."""
    end = 0
    for spec in specs:
        yield memoryview(bytes(spec.offset - end))
        yield _bytes(views[spec.name])
        end = spec.offset + spec.nbytes


def _bytes(tensor: Tensor) -> memoryview:
    return tensor.reshape(-1).view(torch.uint8).numpy().data


def _check_found(manifest: Manifest, views: Mapping[str, Tensor]) -> None:
    problems = [
        f"{spec.name}: {'nothing' if found is None else f'{found.dtype}{list(found.shape)}'} there"
        for spec in manifest.tensors
        if (found := views.get(spec.name)) is None
        or (found.dtype, found.shape) != (DTYPES[spec.dtype], tuple(spec.shape))
    ]
    if problems:
        raise WeightsMismatch(
            f"version {manifest.version}: {manifest.location} is not what its manifest says: {'; '.join(problems[:20])}"
        )


def _copy_all_but_weights(source: Path | None, target: Path, tensors: Mapping[str, Tensor]) -> None:
    if source is None:
        return
    for path in source.iterdir():
        if path.is_file() and not path.name.endswith(_WEIGHT_SUFFIXES):
            shutil.copyfile(path, target / path.name)
    config = target / "config.json"
    if config.exists():
        config.write_text(json.dumps(_with_dtype(json.loads(config.read_text()), tensors), indent=2))


def _with_dtype(config: dict[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Any]:
    """What the weights are kept in is what they travelled in."""
    kept = {tensor.dtype for tensor in tensors.values() if tensor.is_floating_point()}
    if len(kept) != 1:
        return config
    name = next(name for name, dtype in DTYPES.items() if dtype in kept)
    return {**config, **{key: name for key in ("dtype", "torch_dtype") if key in config}}
