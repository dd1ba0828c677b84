"""Which of the JSON formats a file has, from its head."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rlprof.errors import NotATraceError
from rlprof.trace.foreign import READS, describe_bytes, some
from rlprof.trace.formats import HEAD_BYTES, JSON_HEAD_BYTES, NSYS_REPORT_MAGIC, SQLITE_MAGIC, Format

_KINETO_KEYS = frozenset({"traceEvents", "deviceProperties", "displayTimeUnit", "baseTimeNanoseconds"})


def detect_json(path: Path, read_head: Callable[[int], bytes], *, compressed: bool) -> Format:
    """Find the format of a JSON file from its head, which `read_head` gives (decompressed)."""
    head = read_head(HEAD_BYTES)
    around = "gzip of " if compressed else ""
    if compressed and not head:
        raise NotATraceError("not a trace: gzip of nothing", where=path, hint=READS)
    text = _decode(head).lstrip("\ufeff \t\r\n")
    if text.startswith("["):
        first = _first_element(text[1:])
        if isinstance(first, dict) and "ph" in first:
            return "kineto"
        if text[1:].strip() in ("", "]"):
            raise NotATraceError(f"not a trace: {around}an empty JSON list", where=path, hint=READS)
        raise NotATraceError(
            f"not a trace: {around}a JSON list whose elements are no trace events", where=path, hint=READS
        )
    if text.startswith("{"):
        return _detect_json_object(path, text, read_head, around)
    what = describe_bytes(head) if compressed else describe_bytes(head[:4096])
    hint = READS
    if compressed and head[257:262] == b"ustar":
        what, hint = "a tar archive", "unpack it (tar -xzf) and give the capture inside"
    elif head.startswith((NSYS_REPORT_MAGIC, SQLITE_MAGIC)):
        what, hint = "an Nsight Systems capture", "decompress it first (gunzip)"
    raise NotATraceError(f"not a trace: it looks like {around}{what}", where=path, hint=hint)


def _detect_json_object(path: Path, text: str, read_head: Callable[[int], bytes], around: str) -> Format:
    line = text.split("\n", 1)[0].strip()
    if line.endswith("}") and (record := _loads(line)) is not None:
        if "traceEvents" in record:
            return "kineto"
        if "ph" in record:
            return "chrome-jsonl"
        if "\n" in text.strip():  # several lines, each an object of its own
            return _detect_json_lines(path, text, around)
        raise NotATraceError(
            f"not a trace: {around}a JSON object with {_keys(record)} and no traceEvents",
            where=path,
            hint=READS,
        )
    for size in (HEAD_BYTES, JSON_HEAD_BYTES):
        body = text if size == HEAD_BYTES else _decode(read_head(size))
        if any(f'"{key}"' in body for key in _KINETO_KEYS):
            return "kineto"
        if len(body) < size // 2:
            break
    if _loads(body) is None and len(body) < JSON_HEAD_BYTES // 2:
        raise NotATraceError(
            f"not a trace: {around}JSON that is cut short before any trace event", where=path, hint=READS
        )
    raise NotATraceError(f"not a trace: {around}a JSON object without traceEvents", where=path, hint=READS)


def _detect_json_lines(path: Path, text: str, around: str) -> Format:
    records = [r for line in text.split("\n")[:200] if (r := _loads(line)) is not None]
    if any("ph" in record for record in records):
        return "chrome-jsonl"
    if records and "request_id" in records[0]:
        raise NotATraceError(
            f"not a trace: {around}request records (JSON lines), not events",
            where=path,
            hint="give the traces*.jsonl file that is written beside it",
        )
    raise NotATraceError(
        f"not a trace: {around}JSON lines with {_keys(records[0])} and no `ph` (no trace events)",
        where=path,
        hint=READS,
    )


def _first_element(text: str) -> Any:
    """First element of a JSON list whose head is `text`; None if it cannot be read."""
    try:
        return json.JSONDecoder().raw_decode(text.lstrip(" \t\r\n,"))[0]
    except ValueError:
        return {"ph": None} if '"ph"' in text else None


def _loads(text: str) -> dict[str, Any] | None:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return value if isinstance(value, dict) else None


def _keys(record: dict[str, Any]) -> str:
    return f"the keys {some(list(record))}" if record else "no key"


def _decode(raw: bytes) -> str:
    if raw.startswith((b"\xff\xfe", b"\xfe\xff")):
        return raw.decode("utf-16", "replace")
    return raw.decode("utf-8", "replace")
