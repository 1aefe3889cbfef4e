"""What a foreign vLLM server is told of its groups: vLLM's own classes parse it. The rounds are in
test_vllm_server_rounds.py."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("aiohttp")

from headrace.actors.generator.vllm_server_nccl import init_info, update_info
from headrace.transport.weights import Manifest
from headrace.transport.weights.layout import build_layout

UNIQUE_ID = bytes(range(128))


def manifest_of(tensors: dict[str, torch.Tensor]) -> Manifest:
    layout = build_layout(tensors)
    sums = (0,) * len(layout.bounds)
    return layout.manifest(version=7, step=7, transport="nccl", location="", checksums=sums)


@pytest.mark.vllm
def test_vllm_parses_what_is_sent() -> None:
    nccl = pytest.importorskip("vllm.distributed.weight_transfer.nccl_engine")
    embedding = torch.zeros(4, 2, dtype=torch.bfloat16)
    manifest = manifest_of({"embed": embedding, "norm": torch.zeros(2), "head": embedding})
    engine = object.__new__(nccl.NCCLWeightTransferEngine)
    parsed = engine.parse_init_info(init_info(UNIQUE_ID, world_size=4))
    assert parsed.nccl_unique_id_bytes == UNIQUE_ID
    assert (parsed.rank_offset, parsed.world_size, parsed.packed) == (1, 4, False)
    parsed = engine.parse_update_info(update_info(manifest))
    assert parsed.names == ["embed", "norm"], "what is tied is sent once"
    assert [getattr(torch, name) for name in parsed.dtype_names] == [torch.bfloat16, torch.float32]
    assert parsed.shapes == [[4, 2], [2]]


def test_an_id_of_the_wrong_length() -> None:
    with pytest.raises(ValueError, match="has 128 bytes, got 4"):
        init_info(b"1234", world_size=2)
