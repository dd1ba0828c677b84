"""Measurements that are kept: by program version and hardware, and by the graphs that were measured."""

from __future__ import annotations

import json
from collections.abc import Iterable
from hashlib import sha256
from pathlib import Path
from typing import Any

from rlprof.errors import OutputError


def key_of(*parts: str | Iterable[str]) -> str:
    """Hash of texts and sets of texts; the order of the latter plays no part."""
    found = sha256()
    for part in parts:
        found.update(json.dumps(part if isinstance(part, str) else sorted(part)).encode())
    return found.hexdigest()


class Store:
    """Documents by key, in memory and in a file to which each is appended at once.

    Parameters
    ----------
    path : pathlib.Path, optional
        JSON documents, one a line; lines that were cut off or damaged are passed over.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._found: dict[str, Any] = {}
        if path is None or not path.exists():
            return
        try:
            text = path.read_bytes()
        except OSError as error:
            raise OutputError(f"cannot be read ({error.strerror})", where=path) from error
        for line in text.splitlines():
            try:
                entry = json.loads(line)
                self._found[entry["key"]] = entry["value"]
            except (ValueError, KeyError, TypeError):
                continue
        if text and not text.endswith(b"\n"):
            with path.open("a", encoding="utf-8") as file:
                file.write("\n")

    def __len__(self) -> int:
        return len(self._found)

    def get(self, key: str) -> Any | None:
        """Return a document; None if there is none."""
        return self._found.get(key)

    def put(self, key: str, kind: str, value: Any) -> None:
        """Keep a document.

        Raises
        ------
        OutputError
            If the file cannot be written.
        """
        self._found[key] = value
        if self._path is None:
            return
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"key": key, "kind": kind, "value": value}) + "\n")
        except OSError as error:
            raise OutputError(f"cannot be written ({error.strerror})", where=self._path) from error
