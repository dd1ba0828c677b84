"""Formats of captures, and the bytes by which files show them."""

from __future__ import annotations

from typing import Literal

Format = Literal[
    "nsys-report", "nsys-sqlite", "nsys-parquet", "nsys-arrow", "rlprof", "kineto", "chrome-jsonl"
]

HEAD_BYTES = 64 * 1024
# Keys written after the events of a big trace are not looked for: `traceEvents` comes near the head.
JSON_HEAD_BYTES = 4 * 1024 * 1024

NSYS_REPORT_MAGIC = b"NVIDIA Tegra Profiler Report"
SQLITE_MAGIC = b"SQLite format 3\0"
GZIP_MAGIC = b"\x1f\x8b"
ZIP_MAGIC = b"PK\x03\x04"
ZIP_EMPTY_MAGIC = b"PK\x05\x06"
