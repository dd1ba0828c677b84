"""rlprof: where is the GPU idle during RL training, in which part of the program, and what may run there.

>>> import rlprof
>>> trace = rlprof.read("datasets/vla_h200.rlprof")    # doctest: +SKIP
>>> trace.windows().to_pandas().head()                 # doctest: +SKIP

Importing the package imports nothing heavy: polars, pandas, altair and the readers load on first use.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rlprof.errors import RlprofError
from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from rlprof import capture as capture
    from rlprof.capture.annotate import annotate
    from rlprof.capture.marked_loop import annotate_loop
    from rlprof.trace.read import read
    from rlprof.trace.trace import Trace

__version__ = "0.1.0"
__all__ = [
    "RlprofError",
    "Trace",
    "Unavailable",
    "__version__",
    "annotate",
    "annotate_loop",
    "capture",
    "read",
]

_LAZY = {
    "Trace": "rlprof.trace.trace",
    "annotate": "rlprof.capture.annotate",
    "annotate_loop": "rlprof.capture.marked_loop",
    "capture": "rlprof",
    "read": "rlprof.trace.read",
}


def __getattr__(name: str) -> Any:
    """Import public names on first use (PEP 562), so that `import rlprof` stays under 0.3 s."""
    if name in _LAZY:
        from importlib import import_module

        if name == "capture":
            return import_module("rlprof.capture")  # a package that can be called
        # kept, because `rlprof.annotate` is looked up at every call
        found = globals()[name] = getattr(import_module(_LAZY[name]), name)
        return found
    raise AttributeError(f"module 'rlprof' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
