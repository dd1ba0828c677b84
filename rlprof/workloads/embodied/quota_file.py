"""Shares of the SMs as a file: `quotas.json` of an optimisation, and the configuration that has them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from rlprof.errors import UnreadableError
from rlprof.overlap.optimize.graph_file import read_json, with_hash, write_json
from rlprof.workloads.embodied.config import Config
from rlprof.workloads.embodied.value_types import shown

FORMAT, VERSION = "rlprof quotas", 1
#: Values of `Config` by component.
_FIELDS = {"simulator": "simulator_sm_percent", "rollout": "rollout_sm_percent"}


@dataclass(frozen=True)
class QuotaFile:
    """Shares that were selected.

    Parameters
    ----------
    quotas : mapping of str to int
        Shares of ``simulator`` and ``rollout`` in percent; who is not named has all SMs.
    reason : str
        Why there are none, or how they were found.
    facts : mapping of str to value
        What else is known of them.
    """

    quotas: Mapping[str, int]
    reason: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the file, whole or not at all; errors as of `write_json`."""
        document = {
            "format": FORMAT,
            "version": VERSION,
            "quotas": dict(self.quotas),
            "reason": self.reason,
            "facts": dict(self.facts),
        }
        write_json(path, with_hash(document))

    @classmethod
    def read(cls, path: Path) -> QuotaFile:
        """Read a file.

        Raises
        ------
        UnreadableError
            If it is missing, damaged, of another version, or names what has no share.
        """
        document = read_json(path, FORMAT, VERSION)
        quotas, reason, facts = (document.get(name) for name in ("quotas", "reason", "facts"))
        if not (isinstance(quotas, dict) and isinstance(reason, str) and isinstance(facts, dict)):
            raise UnreadableError("is no file of quotas", where=path, hint="optimise again")
        for name, percent in quotas.items():
            if name not in _FIELDS:
                raise UnreadableError(
                    f"has a share for {shown(name)}", where=path, hint=f"known are {', '.join(_FIELDS)}"
                )
            if type(percent) is not int or not 1 <= percent <= 100:
                raise UnreadableError(
                    f"has a share of {shown(percent)} % for {name}",
                    where=path,
                    hint="a share is a whole number from 1 to 100: optimise again",
                )
        return cls(quotas, reason, facts)

    def apply(self, config: Config) -> Config:
        """Return the configuration with these shares.

        Raises
        ------
        ConfigurationError
            If it cannot have them.
        """
        changes: dict[str, Any] = {_FIELDS[name]: percent for name, percent in self.quotas.items()}
        return replace(config, **changes)
