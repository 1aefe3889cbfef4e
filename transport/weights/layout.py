"""From named tensors to one flat buffer and back. Sender and receiver agree through the manifest alone.

Tied tensors are recognised by storage identity and travel once. Buckets are cut at a fixed size that the sender
chooses, whatever memory a receiver has; a tensor may span several. Never touches files or messages.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from headrace.transport.weights.carrier import ALIGNMENT_BYTES, check_bucket_bytes
from headrace.transport.weights.manifest import FLOAT_DTYPES, Bucket, Expected, Manifest, TensorSpec
from headrace.transport.weights.parallel_copy import Pair, copy_each

if TYPE_CHECKING:
    from torch import Tensor, nn

DTYPES: dict[str, torch.dtype] = {
    name: getattr(torch, name)
    for name in (
        *("float64", "float32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2"),
        *("int64", "int32", "int16", "int8", "uint8", "bool"),
    )
}
"""Every dtype that may travel, by its name in a manifest."""
_NAMES = {dtype: name for name, dtype in DTYPES.items()}

_WRAPPER_PARTS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_WRAPPER_PREFIX = "module."


def dtype_name(dtype: torch.dtype) -> str:
    """The manifest's name of a dtype. Raises ValueError for one that may not travel."""
    if dtype not in _NAMES:
        raise ValueError(f"weights of dtype {dtype} cannot be sent; supported are {', '.join(DTYPES)}")
    return _NAMES[dtype]


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint of the model holds: parameters (tied names too) and persistent buffers, under the names of the
    unwrapped model: what torch.compile, DDP, FSDP1 and activation checkpointing add to a name is taken away."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in model.state_dict(keep_vars=True).items():
        plain = _unwrapped(name)
        if plain in tensors:
            raise ValueError(f"two tensors of the model are called {plain!r} once wrapper prefixes are taken away")
        tensors[plain] = tensor.detach()
    return tensors


def expected_of(model: nn.Module) -> dict[str, Expected]:
    """What this model would accept (works on the meta device, where nothing is allocated)."""
    return {
        name: Expected(tuple(tensor.shape), dtype_name(tensor.dtype)) for name, tensor in model_tensors(model).items()
    }


def _unwrapped(name: str) -> str:
    for part in _WRAPPER_PARTS:
        name = name.replace(part, "")
    return name.removeprefix(_WRAPPER_PREFIX)


@dataclass(frozen=True, slots=True)
class Layout:
    """Where each tensor lies in the flat buffer. `bounds`: (offset, nbytes) of each bucket, without gaps."""

    tensors: tuple[TensorSpec, ...]
    bounds: tuple[tuple[int, int], ...]
    tied: dict[str, str]
    nbytes: int

    def manifest(
        self, *, version: int, step: int, transport: str, location: str, checksums: tuple[int, ...]
    ) -> Manifest:
        buckets = tuple(Bucket(o, n, c) for (o, n), c in zip(self.bounds, checksums, strict=True))
        return Manifest(
            version=version,
            step=step,
            transport=transport,
            location=location,
            nbytes=self.nbytes,
            tensors=self.tensors,
            buckets=buckets,
            tied=dict(self.tied),
        )


def build_layout(tensors: Mapping[str, Tensor], *, dtype: str | None = None, bucket_bytes: int = 64 << 20) -> Layout:
    """Lay out tensors in the order given. `dtype` converts tensors of FLOAT_DTYPES only; None keeps each one's own."""
    if dtype is not None and dtype not in FLOAT_DTYPES:
        raise ValueError(f"weights dtype must be one of {sorted(FLOAT_DTYPES)} or None, got {dtype!r}")
    check_bucket_bytes("bucket_bytes", bucket_bytes)
    specs: list[TensorSpec] = []
    tied: dict[str, str] = {}
    owners: dict[tuple[object, ...], str] = {}
    end = 0
    for name, tensor in tensors.items():
        key = _identity(tensor)
        if key is not None and key in owners:
            tied[name] = owners[key]
            continue
        if key is not None:
            owners[key] = name
        sent_dtype = tensor.dtype
        if dtype is not None and dtype_name(tensor.dtype) in FLOAT_DTYPES:
            sent_dtype = DTYPES[dtype]
        offset = -(-end // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
        nbytes = tensor.numel() * sent_dtype.itemsize
        specs.append(TensorSpec(name, dtype_name(sent_dtype), tuple(tensor.shape), offset, nbytes))
        end = offset + nbytes
    bounds = tuple((start, min(bucket_bytes, end - start)) for start in range(0, end, bucket_bytes))
    return Layout(tuple(specs), bounds, tied, end)


def _identity(tensor: Tensor) -> tuple[object, ...] | None:
    """Equal for two names of one tensor. None where there is no storage to compare (empty)."""
    if tensor.numel() == 0:
        return None
    if _is_sharded(tensor):
        tensor = tensor.to_local()  # type: ignore[attr-defined]  # a tensor's part, at one rank, is as much its own
    place = tensor.untyped_storage().data_ptr(), tensor.storage_offset()
    return (*place, tensor.shape, tensor.stride(), tensor.dtype, tensor.device)


def flatten_into(
    buffer: Tensor,
    tensors: Mapping[str, Tensor],
    layout: Layout,
    copy: Callable[[Iterable[Pair]], None] = copy_each,
) -> None:
    """Copy (and convert) every tensor into `buffer` (uint8[>= layout.nbytes]). Strided and device tensors are fine, and
    so are sharded ones, which come together one after the other: a meeting of their ranks each."""
    pairs = ((_view(buffer, spec), whole(tensors[spec.name].detach())) for spec in layout.tensors)
    sharded = any(_is_sharded(tensor) for _, tensor in tensors.items())
    (copy_each if sharded else copy)(pairs)


def whole(tensor: Tensor) -> Tensor:
    """The tensor itself, or what a sharded one is when its parts are put together: a meeting of its ranks."""
    return tensor.full_tensor() if _is_sharded(tensor) else tensor  # type: ignore[attr-defined]


def _is_sharded(tensor: Tensor) -> bool:
    """Whether it is a DTensor, whose module takes long to import where nobody else needs it."""
    return hasattr(tensor, "full_tensor")


def unflatten(manifest: Manifest | Layout, buffer: Tensor, *, include_tied: bool) -> Iterator[tuple[str, Tensor]]:
    """(name, view into `buffer`) in its order; tied names last, as the same views."""
    views: dict[str, Tensor] = {}
    for spec in manifest.tensors:
        views[spec.name] = _view(buffer, spec)
        yield spec.name, views[spec.name]
    if include_tied:
        for name, source in manifest.tied.items():
            yield name, views[source]


def _view(buffer: Tensor, spec: TensorSpec) -> Tensor:
    if spec.nbytes == 0:
        return torch.empty(spec.shape, dtype=DTYPES[spec.dtype])
    return buffer[spec.offset : spec.offset + spec.nbytes].view(DTYPES[spec.dtype]).view(spec.shape)
