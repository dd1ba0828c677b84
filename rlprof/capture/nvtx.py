"""NVTX ranges and marks in rlprof's own domain, through the package nvtx."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from rlprof.capture.range_writer import DOMAIN, FURTHER_NAMES, MAX_NAMES


class Nvtx:
    """Emits to the tool that listens (Nsight Systems, for one).

    Parameters
    ----------
    domain : nvtx.Domain
        Of the package nvtx.
    """

    def __init__(self, domain: Any) -> None:
        self._domain = domain
        self._attributes: dict[str, Any] = {}

    def _of(self, name: str) -> Any:
        found = self._attributes.get(name)
        if found is None:
            # a tool keeps each registered name for good
            if len(self._attributes) >= MAX_NAMES and name != FURTHER_NAMES:
                return self._of(FURTHER_NAMES)
            found = self._attributes[name] = self._domain.get_event_attributes(message=name)
        return found

    def push(self, name: str) -> None:
        """Open a range on the calling thread's stack."""
        self._domain.push_range(self._of(name))

    def pop(self) -> None:
        """Close the innermost range of the calling thread's stack."""
        self._domain.pop_range()

    def start(self, name: str) -> Any:
        """Open a range that may overlap others; give what closes it."""
        return self._domain.start_range(self._of(name))

    def end(self, handle: Any) -> None:
        """Close a range that `start` opened, on any thread."""
        self._domain.end_range(handle)

    def mark(self, text: str) -> None:
        """Leave a text at this instant."""
        self._domain.mark(message=text)


def listening() -> Nvtx | None:
    """The domain ``rlprof``; None if nvtx is not installed or no tool is attached to this process."""
    try:
        nvtx = import_module("nvtx")
    except ImportError:
        return None
    domain = nvtx.get_domain(DOMAIN)
    # without a tool the package gives a domain that does nothing
    return None if type(domain).__name__ == "DummyDomain" or not nvtx.enabled() else Nvtx(domain)
