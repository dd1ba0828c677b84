"""Files that are no captures: what they are, said so that a person sees the mistake."""

from __future__ import annotations

from collections.abc import Sequence

READS = (
    "give an Nsight Systems report (.nsys-rep, .qdrep) or its SQLite, Parquet or Arrow directory export, "
    "a PyTorch profiler trace (.json, .json.gz), Chrome-trace JSON lines (.jsonl) or an .rlprof file"
)
# Kinds of file that people hand over by mistake: magic bytes, what it is, what to do instead.
OTHERS: tuple[tuple[bytes, str, str], ...] = (
    (b"\x89HDF\r\n\x1a\n", "an HDF5 file", "export the report as SQLite: nsys export --type sqlite REPORT"),
    (b"PAR1", "a single Parquet file", "give the folder that `nsys export --type parquetdir` wrote"),
    (b"ARROW1", "an Arrow file", "give the folder that `nsys export --type arrowdir` wrote"),
    (b"\xff\xff\xff\xff", "an Arrow stream", "give the folder that `nsys export --type arrowdir` wrote"),
    (b"NVR\0", "a Nsight Compute report", "capture with Nsight Systems: nsys profile"),
    (b"\x28\xb5\x2f\xfd", "Zstandard-compressed data", "decompress it first (zstd -d)"),
    (b"\xfd7zXZ\0", "xz-compressed data", "decompress it first (xz -d)"),
    (b"BZh", "bzip2-compressed data", "decompress it first (bzip2 -d)"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"\x80\x04", "a Python pickle", "export the profile as a trace: prof.export_chrome_trace('trace.json')"),
    (b"\x80\x05", "a Python pickle", "export the profile as a trace: prof.export_chrome_trace('trace.json')"),
    (b"\x7fELF", "a program (ELF)", "profile it: nsys profile PROGRAM"),
    (b"\x89PNG", "a picture (PNG)", READS),
    (b"%PDF", "a PDF document", READS),
)


def describe_sqlite(tables: Sequence[str]) -> str:
    """What a SQLite file with these tables is, if not an Nsight Systems export."""
    lower = {t.lower() for t in tables}
    if not tables:
        return "it holds no table"
    if any(t.startswith("dlprof") for t in lower) or {"model_data", "op_instances"} & lower:
        return "it looks like a DLProf database"
    if {"code_items", "code_item_kinds"} <= lower or ("projects" in lower and "config_files" in lower):
        return "it looks like an index of Visual Studio"
    if {"meta", "ranges"} <= lower or {"meta", "kernels"} <= lower:
        return "it looks like an export by rlprof for other tools (--to rlprof makes one to read again)"
    if "profiles" in lower and "moz_places" in lower:
        return "it looks like a browser's database"
    return f"its {len(tables)} table(s) are {some(tables)}"


def describe_bytes(head: bytes) -> str:
    """What a file that starts with `head` looks like."""
    if head[257:262] == b"ustar":
        return "a tar archive"
    if not head.strip(b"\0"):
        return "zero bytes only (a download or copy that did not finish?)"
    try:
        text = head.decode("utf-8")
    except UnicodeDecodeError as error:
        if error.start < len(head) - 4:
            return "binary data of an unknown kind"
        text = head[: error.start].decode("utf-8")
    if any(ord(c) < 32 and c not in "\t\r\n\f\v" for c in text):
        return "binary data of an unknown kind"
    line = text.lstrip().split("\n", 1)[0]
    if text.lstrip().lower().startswith(("<!doctype html", "<html")):
        return "a web page (HTML)"
    if text.startswith("version https://git-lfs"):
        return "a Git LFS pointer (fetch the real file: git lfs pull)"
    if line.count(",") >= 2:
        return "comma-separated text"
    return "text"


def some(names: Sequence[str], limit: int = 4) -> str:
    """The first few of several names, and how many more there are."""
    shown = ", ".join(n if len(n) <= 40 else n[:37] + "..." for n in names[:limit])
    return shown + (f" and {len(names) - limit} more" if len(names) > limit else "")
