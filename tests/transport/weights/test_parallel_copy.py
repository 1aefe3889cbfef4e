"""Copies by several threads: the same bytes as torch's own, whatever the tensors are; errors of any of them; widths."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest
import torch

from headrace.transport.weights.parallel_copy import PIECE_ELEMENTS, ParallelCopy, copy_each


@pytest.fixture(autouse=True)
def three_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


def sources() -> list[torch.Tensor]:
    torch.manual_seed(0)
    wide = torch.randn(3, PIECE_ELEMENTS // 2 + 7)
    return [wide, wide.t(), torch.randn(5, 9)[:, ::2], torch.tensor(3.5), torch.zeros(0), *torch.randn(40, 1000)]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_bytes_are_those_of_plain_copies(dtype: torch.dtype) -> None:
    copy = ParallelCopy()
    for _ in range(2):  # the second time with threads that are there
        expected = [torch.empty(source.shape, dtype=dtype) for source in sources()]
        found = [torch.full(source.shape, -7.0, dtype=dtype) for source in sources()]
        copy_each(zip(expected, sources(), strict=True))
        copy(zip(found, sources(), strict=True))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


def test_a_target_that_is_strided_is_copied_whole() -> None:
    source = torch.randn(2, PIECE_ELEMENTS)
    target = torch.zeros(PIECE_ELEMENTS, 2).t()
    ParallelCopy()([(target, source)])
    assert torch.equal(target, source)


def test_what_one_copy_raises_is_raised_and_the_next_copies_are_whole() -> None:
    copy = ParallelCopy()
    big = torch.randn(PIECE_ELEMENTS)
    with pytest.raises(RuntimeError, match="must match"):
        copy([(torch.zeros(PIECE_ELEMENTS), big), (torch.zeros(3), torch.zeros(4))])
    target = torch.zeros_like(big)
    copy([(target, big)])
    assert torch.equal(target, big)


def test_shapes_count_as_they_do_for_torch() -> None:
    copy, big = ParallelCopy(), torch.randn(2, PIECE_ELEMENTS)
    with pytest.raises(RuntimeError, match="must match"):
        copy([(torch.zeros(PIECE_ELEMENTS, 2), big)])
    target = torch.zeros(3, 2, PIECE_ELEMENTS)
    copy([(target, big)])
    assert torch.equal(target, big.expand(3, 2, PIECE_ELEMENTS))


def test_torch_computes_as_wide_as_before_in_threads_that_come_later() -> None:
    ParallelCopy()([(torch.zeros(PIECE_ELEMENTS), torch.randn(PIECE_ELEMENTS))])
    assert torch.get_num_threads() == 3
    widths: list[int] = []
    later = threading.Thread(target=lambda: widths.append(torch.get_num_threads()))
    later.start()
    later.join(60.0)
    assert widths == [3]
