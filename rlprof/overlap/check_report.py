"""What checked mode finds: declarations that do not say what happens, and what could not be told."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from rlprof.overlap.errors import OverlapError, UndeclaredReadError, UndeclaredWriteError
from rlprof.text import counted
from rlprof.unavailable import Unavailable

Fault = Literal["undeclared write", "undeclared read", "not a refresh", "write between calls"]


@dataclass(frozen=True, slots=True)
class Finding:
    """A declaration that does not say what happens.

    Parameters
    ----------
    fault : {"undeclared write", "undeclared read", "not a refresh", "write between calls"}
        ``not a refresh``: something of the old value lives on. ``write between calls``: the node's own code,
        not a call inside it, writes.
    node, state : str
        Which node, which state object.
    call : str
        The first call in which it was seen.
    detail : str
        What changed, or came out differently.
    """

    fault: Fault
    node: str
    state: str
    call: str
    detail: str

    def __str__(self) -> str:
        return str(self.error())

    def error(self) -> OverlapError:
        """Return it as an error."""
        if self.fault == "undeclared write":
            return UndeclaredWriteError(
                f"node {self.node} writes state {self.state} and does not declare it, first in {self.call}:"
                f" {self.detail}",
                hint=f"declare updates({self.state}) or refreshes({self.state})",
            )
        if self.fault == "write between calls":
            return UndeclaredWriteError(
                f"the code of node {self.node} writes state {self.state} between the calls inside it,"
                f" first in {self.call}: {self.detail}",
                hint="wrap that code as a node: a graph does not run it",
            )
        if self.fault == "undeclared read":
            return UndeclaredReadError(
                f"node {self.node} depends on state {self.state} and does not declare it,"
                f" first in {self.call}: with other numbers there, {self.detail}",
                hint=f"declare reads({self.state})",
            )
        return UndeclaredReadError(
            f"node {self.node} declares to refresh state {self.state} and something of the old value lives"
            f" on, first in {self.call}: with other numbers there before, {self.detail}",
            hint=f"declare updates({self.state}), or make it write all of it",
        )


@dataclass(frozen=True)
class CheckReport:
    """What checked mode found.

    Parameters
    ----------
    findings : tuple of Finding
        One for each node, state object and fault: the first.
    never_written : tuple of (str, str)
        Node and state object: writes that are declared and were not seen. No fault: a write may write what
        was there, or happen in other runs only.
    not_checked : tuple of (str, Unavailable)
        Nodes, state objects or pairs of them (``node, state``) of which something could not be told, and why.
    calls : mapping of str to int
        Calls whose writes were checked, by node.
    run_again : mapping of str to int
        Calls whose reads were checked, by node.
    """

    findings: tuple[Finding, ...]
    never_written: tuple[tuple[str, str], ...]
    not_checked: tuple[tuple[str, Unavailable], ...]
    calls: Mapping[str, int]
    run_again: Mapping[str, int]

    def __str__(self) -> str:
        checked = f"{counted(sum(self.calls.values()), 'call')} of {counted(len(self.calls), 'node')}"
        again = sum(self.run_again.values())
        lines = [f"{counted(len(self.findings), 'fault')}; {checked}, {again:,} run again"]
        lines += [f"  {finding}" for finding in self.findings]
        lines += [f"  note: {node} never wrote {state}, as it declares" for node, state in self.never_written]
        lines += [f"  not checked: {what}: {why.reason}" for what, why in self.not_checked]
        return "\n".join(lines)

    def raise_first(self) -> None:
        """Raise the first finding.

        Raises
        ------
        UndeclaredWriteError, UndeclaredReadError
            If there is one.
        """
        if self.findings:
            raise self.findings[0].error()
