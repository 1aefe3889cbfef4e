"""A child that `os.fork` made has its parent's runtime, and none of the threads that move its messages: there the
runtime says so, instead of sending into nothing. Start processes with spawn."""

from __future__ import annotations

import functools
import os
import weakref
from typing import Protocol


class Forkable(Protocol):
    def disown(self) -> None:
        """In a forked child: what it holds is the parent's."""


_owners: weakref.WeakSet[Forkable] = weakref.WeakSet()


def disown_in_forked_children(owner: Forkable) -> None:
    """Call `owner.disown()` in each child forked from now on, while it lives."""
    _register()
    _owners.add(owner)


@functools.cache
def _register() -> None:
    os.register_at_fork(after_in_child=_disown_all)


def _disown_all() -> None:
    for owner in list(_owners):
        owner.disown()
