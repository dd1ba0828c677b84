"""Reading the events of a JSON document in pieces."""

from __future__ import annotations

import gzip
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rlprof.errors import DamagedTraceError, NotATraceError, RlprofError, UnreadableError
from rlprof.trace.json_stream import EventStream, scan, text_of

NASTY = st.sampled_from(
    [
        "}, {",
        '"',
        "\\",
        '\\"',
        "]}",
        '"ts": 1712195495519689.047',
        '"traceEvents": [',
        "é\u2028",
        "{[",
        "},{",
        "nan",
    ]
)
TEXT = st.lists(NASTY | st.text(max_size=6), max_size=4).map("".join)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False, width=32)
    | TEXT
)
VALUE = st.recursive(
    SCALAR, lambda v: st.lists(v, max_size=3) | st.dictionaries(TEXT, v, max_size=3), max_leaves=6
)
EVENT = st.dictionaries(TEXT, VALUE, max_size=4)
DOCUMENT = st.dictionaries(TEXT.filter(lambda k: k != "traceEvents"), VALUE, max_size=3)


def read(content: bytes, piece_bytes: int = 1 << 18) -> tuple[list[dict[str, Any]], EventStream]:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        path.write_bytes(content)
        stream = EventStream(path, piece_bytes=piece_bytes)
        return [event for piece in stream for event in piece], stream


@settings(max_examples=80, deadline=None)
@given(
    events=st.lists(EVENT, max_size=12),
    head=DOCUMENT,
    foot=DOCUMENT,
    indent=st.sampled_from([None, 0, 2]),
    piece=st.integers(1, 300),
    zipped=st.booleans(),
    bare=st.booleans(),
)
def test_pieces_together_equal_json_loads(
    events: list[Any],
    head: dict[str, Any],
    foot: dict[str, Any],
    indent: int | None,
    piece: int,
    zipped: bool,
    bare: bool,
) -> None:
    foot = {k: v for k, v in foot.items() if k not in head}
    document = events if bare else {**head, "traceEvents": events, **foot}
    content = json.dumps(document, indent=indent).encode()
    got, stream = read(gzip.compress(content) if zipped else content, piece)
    want = json.loads(content)
    assert got == (want if bare else want["traceEvents"])
    assert stream.document == ({} if bare else {k: v for k, v in want.items() if k != "traceEvents"})
    assert stream.notes == []


@settings(max_examples=60, deadline=None)
@given(events=st.lists(EVENT, min_size=1, max_size=6), share=st.floats(0, 1), piece=st.integers(1, 300))
def test_cut_anywhere_never_loses_events_silently(events: list[Any], share: float, piece: int) -> None:
    content = json.dumps({"schemaVersion": 1, "traceEvents": events, "displayTimeUnit": "ms"}).encode()
    cut = content[: int(share * (len(content) - 1))]
    try:
        got, stream = read(cut, piece)
    except RlprofError:
        return
    assert got == events
    assert any("after the" in note for note in stream.notes)


@settings(deadline=None)
@given(text=TEXT, before=EVENT)
def test_scan_finds_the_end_of_the_last_whole_event(text: str, before: dict[str, Any]) -> None:
    whole = json.dumps(before).encode()
    end, closed = scan(whole + b', {"name": ' + json.dumps(text).encode())
    assert (end, closed) == (len(whole), False)
    assert scan(whole + b"\n]") == (len(whole) + 1, True)


def test_long_timestamps_keep_every_digit_and_names_like_them_are_left_alone() -> None:
    event = b'{"name": "a \\"ts\\": 1712195495519689.047", "ts": 1712195495519689.047, "args": {"ts": 1.5}}'
    (got,), _ = read(b'{"traceEvents": [' + event + b"]}")
    assert got == {"name": 'a "ts": 1712195495519689.047', "ts": "1712195495519689.047", "args": {"ts": 1.5}}


def test_one_event_larger_than_a_piece_is_read() -> None:
    events = [{"name": "x" * 5000}, {"name": "y"}]
    got, _ = read(json.dumps({"traceEvents": events}).encode(), piece_bytes=64)
    assert got == events


def test_nan_and_inf_are_missing_values_not_an_error() -> None:
    text = b'{"traceEvents": [{"name": "nan, inf", "a": nan, "b": -inf, "c": Infinity, "d": [-nan(ind), 1]}]}'
    (got,), stream = read(text)
    assert got == {"name": "nan, inf", "a": None, "b": None, "c": None, "d": [None, 1]}
    assert len(stream.notes) == 1


def test_unescaped_and_undecodable_characters_in_names_are_mended() -> None:
    (got,), stream = read(b'{"traceEvents": [{"name": "C:\\Users\xff a\tb", "ok": "\\u00e9\\n"}]}')
    assert got == {"name": "C:\\Users\ufffd a b", "ok": "é\n"}
    assert len(stream.notes) == 1


def test_braces_in_names_and_nested_lists_do_not_split_events_of_a_long_trace() -> None:
    events = [
        {"name": f"k<{{lambda()#1}}, {{lambda()#{i % 7}}}>(int)", "args": {"x": [{"a": i}, {"b": "}, {"}]}}
        for i in range(3000)
    ]
    for piece_bytes in (1 << 10, 1 << 15, 1 << 18):
        got, _ = read(json.dumps({"traceEvents": events}).encode(), piece_bytes)
        assert got == events


def test_trailing_comma_after_the_last_event_is_accepted() -> None:
    got, _ = read(b'{"traceEvents": [{"a": 1}, {"a": 2},\n]}')
    assert got == [{"a": 1}, {"a": 2}]


def test_several_gzip_members_and_padding_are_one_text() -> None:
    first, second = b'{"traceEvents": [{"a": 1},', b'{"a": 2}]}'
    got, _ = read(gzip.compress(first) + gzip.compress(second) + b"\0" * 20)
    assert got == [{"a": 1}, {"a": 2}]


def test_gzip_cut_off_is_damaged() -> None:
    events = [{"name": f"event {i * 7919 % 1000}", "ts": i} for i in range(2000)]
    content = gzip.compress(json.dumps({"traceEvents": events}).encode())
    with pytest.raises(DamagedTraceError, match="gzip"):
        read(content[: len(content) // 2])


def test_gzip_corrupt_is_damaged() -> None:
    content = bytearray(
        gzip.compress(json.dumps({"traceEvents": [{"n": str(i)} for i in range(999)]}).encode())
    )
    content[len(content) // 2] ^= 0xFF
    with pytest.raises(DamagedTraceError, match=r"corrupt|cut off|not valid"):
        read(bytes(content))


@pytest.mark.parametrize(
    ("content", "error", "says"),
    [
        (b"", NotATraceError, "empty"),
        (b"  \n", NotATraceError, "empty"),
        (b"hello", NotATraceError, "not JSON"),
        (b'{"a": 1}', NotATraceError, "no traceEvents"),
        (b'{"traceEvents": null}', NotATraceError, "not a list"),
        (b'{"schemaVersion": 1, "deviceProp', DamagedTraceError, "before its events begin"),
        (b'{"traceEvents": [{"a": 1}, {"a":', DamagedTraceError, "after 1 whole"),
        (b'{"traceEvents": [', DamagedTraceError, "after 0 whole"),
        (b'{"traceEvents": [{"a": 1} {"b": 2}, {"c": 3}]}', DamagedTraceError, "not valid JSON"),
        (b'{"traceEvents": [{"a": 1},, {"b": 2}]}', DamagedTraceError, "not valid JSON"),
        (b'{"traceEvents": [, {"b": 2}]}', DamagedTraceError, "not valid JSON"),
    ],
)
@pytest.mark.parametrize("piece_bytes", [1, 9, 1 << 18])
def test_what_is_no_whole_document_is_told_in_one_line(
    content: bytes, error: type[RlprofError], says: str, piece_bytes: int
) -> None:
    with pytest.raises(error, match=says) as caught:
        read(content, piece_bytes)
    assert "\n" not in str(caught.value)
    assert caught.value.hint


def test_missing_file_and_directory_are_unreadable(tmp_path: Path) -> None:
    for path in (tmp_path / "absent.json", tmp_path):
        with pytest.raises(UnreadableError):
            list(text_of(path))


def test_progress_reaches_the_end(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(b"x" * 300_000)
    seen: list[float] = []
    list(text_of(path, lambda stage, fraction: seen.append(fraction)))
    assert seen == sorted(seen)
    assert seen[-1] == 1.0
