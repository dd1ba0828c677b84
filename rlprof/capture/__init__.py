"""Capturing a run: annotations, SM-activity samplers, sessions.

The package itself is a function: ``with rlprof.capture("run.rlprof"):`` captures a block, as
`rlprof.capture.session.capture` says.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from contextlib import AbstractContextManager
    from pathlib import Path


class _CallableModule(ModuleType):
    """A module that is called like the one function it is mostly used for."""

    def __call__(self, path: str | Path, **options: Any) -> AbstractContextManager[Any]:
        from rlprof.capture.session import capture

        session: AbstractContextManager[Any] = capture(path, **options)
        return session


sys.modules[__name__].__class__ = _CallableModule
