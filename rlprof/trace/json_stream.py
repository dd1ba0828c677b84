"""Read the events of a Chrome-trace JSON document piece by piece, so that memory does not grow with the file.

A document is ``{..., "traceEvents": [event, event, ...], ...}`` or a bare list of events, plain or gzipped.
The text is cut between events, and each piece is parsed alone. A cut is accepted only if the text before it
is a valid list by itself: JSON is read from left to right without looking ahead, so what follows is then a
separator between two events, whatever braces, quotes or escapes the names of events hold.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from rlprof.errors import DamagedTraceError, NotATraceError, RlprofError, UnreadableError
from rlprof.progress import Progress, silent

#: Size of the pieces of text that are parsed at once. Measured on two traces of 15 and 35 MB: 0.25 MiB is
#: as fast as 1 or 4 MiB (0.2 s) and takes 22 MB instead of 45 or 100.
PIECE_BYTES = 1 << 18
#: Without a list of events in this much text, a document is given up as not a trace.
MAX_HEAD_BYTES = 1 << 26
GZIP_MAGIC = b"\x1f\x8b"

_READ_BYTES = 1 << 16
_SEPARATOR = re.compile(rb"\}\s*,\s*\{")
_EVENTS_KEY = re.compile(rb'"traceEvents"\s*:\s*\[')
# a timestamp in us with decimals and 13 or more digits before them: float64 would lose nanoseconds, so it is
# made a string. The look-behind comes after the literal, which keeps the regex engine's fast literal search.
_LONG_TS = re.compile(rb'"ts"(?<!\\"ts")\s*:\s*(\d{13,}+\.\d++)(?![eE])')
_TOKEN = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|["{}\[\]]', re.DOTALL)
# C++ streams write floats that are no number as nan, -nan, inf; JSON has no word for them
_NOT_A_NUMBER = re.compile(
    rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"|[+-]?\b(?:nan|inf(?:inity)?)\b(?:\(\w*\))?', re.DOTALL | re.IGNORECASE
)
# names written without escaping: `C:\Users`, a tab or a line break
_ESCAPE = re.compile(rb'\\(["\\/bfnrt]|u[0-9a-fA-F]{4})?')
_CONTROL = re.compile(rb"[\x00-\x1f]")
_RECORD_AGAIN = "record the trace again and let the profiler finish writing before the program ends"


def text_of(path: Path, progress: Progress = silent, *, piece_bytes: int = PIECE_BYTES) -> Iterator[bytes]:
    """Decompressed content of a file, in pieces.

    Parameters
    ----------
    path : pathlib.Path
        Plain or gzipped (told by content), any number of gzip members.
    progress : Progress
        Told the share of the file's bytes that has been read.
    piece_bytes : int
        Largest piece.

    Yields
    ------
    bytes
        At most `piece_bytes` at once.

    Raises
    ------
    UnreadableError
        If the file cannot be opened or read.
    DamagedTraceError
        If the gzip stream is cut off or corrupt.
    """
    try:
        total = max(path.stat().st_size, 1)
        with path.open("rb") as file:
            done = 0
            read_bytes = min(_READ_BYTES, max(piece_bytes, len(GZIP_MAGIC)))
            raw = file.read(read_bytes)
            inflate = _Inflate(path, piece_bytes) if raw[:2] == GZIP_MAGIC else None
            while raw:
                done += len(raw)
                progress("reading", min(done / total, 1.0))
                if inflate is None:
                    yield raw
                else:
                    yield from inflate.feed(raw)
                raw = file.read(read_bytes)
            if inflate is not None:
                inflate.finish()
    except OSError as error:
        raise UnreadableError(
            f"cannot be read: {error.strerror or type(error).__name__}",
            where=path,
            hint="check that it exists, is a file and may be read",
        ) from error


class _Inflate:
    """Decompress gzip members one after the other with bounded output pieces."""

    def __init__(self, path: Path, piece_bytes: int) -> None:
        self._path = path
        self._piece_bytes = piece_bytes
        self._stream = zlib.decompressobj(31)

    def feed(self, raw: bytes) -> Iterator[bytes]:
        while raw:
            if self._stream.eof:
                # zero padding after the last member is legal
                raw = raw.lstrip(b"\0")
                if not raw:
                    return
                self._stream = zlib.decompressobj(31)
            try:
                out = self._stream.decompress(raw, self._piece_bytes)
            except zlib.error as error:
                raise DamagedTraceError(
                    "the gzip data is corrupt", where=self._path, hint="copy or record the trace again"
                ) from error
            if out:
                yield out
            raw = self._stream.unconsumed_tail or self._stream.unused_data

    def finish(self) -> None:
        if not self._stream.eof:
            raise DamagedTraceError(
                "the gzip data is cut off before its end", where=self._path, hint=_RECORD_AGAIN
            )


@dataclass
class EventStream:
    """The events of one document, in pieces; iterate once.

    Parameters
    ----------
    path : pathlib.Path
        The file.
    progress : Progress
        As for `text_of`.
    piece_bytes : int
        About how much text is parsed at once.

    Attributes
    ----------
    document : dict
        What stands beside the events (complete after the iteration); empty for a bare list.
    count : int
        Events given so far.
    notes : list of str
        What was repaired.
    """

    path: Path
    progress: Progress = silent
    piece_bytes: int = PIECE_BYTES
    document: dict[str, Any] = field(default_factory=dict)
    count: int = 0
    notes: list[str] = field(default_factory=list)

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        """Give the events in lists; what is not an object is left out.

        Raises
        ------
        UnreadableError
            If the file cannot be read.
        NotATraceError
            If the text is not JSON, or has no list of events.
        DamagedTraceError
            If the text ends within the events, or a piece of it is not valid JSON.
        """
        text = text_of(self.path, self.progress, piece_bytes=self.piece_bytes)
        buffer, bare = self._head(text)
        self._repaired = 0
        want = self.piece_bytes
        parts, size = [buffer], len(buffer)
        at_end = False
        while not at_end:
            piece = next(text, None)
            if piece is None:
                at_end = True
            else:
                parts.append(piece)
                size += len(piece)
                if size < want:
                    continue
            buffer = b"".join(parts)
            events, rest, closed = self._take(buffer, at_end=at_end)
            # one event larger than a piece: wait for twice as much rather than scan it again and again
            want = self.piece_bytes if events or closed else max(want, 2 * size)
            if events:
                self.count += len(events)
                yield [e for e in events if type(e) is dict]
            if closed:
                self._foot(rest, text, bare=bare)
                break
            parts, size = [rest], len(rest)
        else:
            raise DamagedTraceError(
                f"the file ends inside its list of events, after {self.count} whole ones",
                where=self.path,
                hint=_RECORD_AGAIN,
            )
        if self._repaired:
            self.notes.append(
                "text that is not JSON (nan, inf, unescaped or undecodable characters) was repaired"
            )

    def _head(self, text: Iterator[bytes]) -> tuple[bytes, bool]:
        """Text after the opening bracket of the events, and whether the document is a bare list."""
        parts: list[bytes] = []
        size = searched = 0
        start = b""
        more = True
        while more and searched < MAX_HEAD_BYTES:
            piece = next(text, None)
            more = piece is not None
            parts.append(piece or b"")
            size += len(parts[-1])
            if more and size < 2 * searched:
                continue  # look again only when the text has doubled, so that all looks together stay linear
            start = b"".join(parts)
            start = start.removeprefix(b"\xef\xbb\xbf").lstrip() if not searched else start
            parts = [start]
            if start[:1] == b"[":
                return start[1:], True
            if start and start[:1] != b"{":
                raise NotATraceError(
                    "not JSON, so not a PyTorch profiler trace",
                    where=self.path,
                    hint="give the file it wrote",
                )
            for match in _EVENTS_KEY.finditer(start, max(0, searched - 64)):
                head = _parse(start[: match.start()].rstrip().removesuffix(b",") + b"}")
                if isinstance(head, dict):
                    self.document.update(head)
                    return start[match.end() :], False
            size = searched = len(start)
        raise self._no_events(start, whole=not more)

    def _no_events(self, text: bytes, *, whole: bool) -> RlprofError:
        if not text:
            return NotATraceError(
                "the file is empty", where=self.path, hint="check that the profiler wrote it"
            )
        value = _parse(text) if whole else {}
        if not isinstance(value, dict):
            return DamagedTraceError(
                "the file ends before its events begin", where=self.path, hint=_RECORD_AGAIN
            )
        what = "traceEvents is not a list" if "traceEvents" in value else "it has no traceEvents"
        return NotATraceError(
            f"JSON, but not a PyTorch profiler trace: {what}",
            where=self.path,
            hint="give the file that torch.profiler wrote",
        )

    def _take(self, buffer: bytes, *, at_end: bool) -> tuple[list[Any], bytes, bool]:
        """Events from the start of `buffer`, the text after them, and whether the list ended there."""
        if self.count:
            buffer = buffer.lstrip()
            if not buffer:
                return [], buffer, False
            if buffer[:1] == b",":
                buffer = buffer[1:]
            elif buffer[:1] != b"]":
                raise self._not_json()
        if not at_end and (cut := _last_separator(buffer)):
            try:
                return orjson.loads(_list_text(buffer[:cut])), buffer[cut:], False
            except orjson.JSONDecodeError:
                pass  # that separator stands inside an event or after the list: look closely
        end, closed = scan(buffer)
        if end == 0 and not closed:
            # nothing taken: give the separator back
            return [], b"," + buffer if self.count else buffer, False
        events = _parse(_list_text(buffer[:end].rstrip().removesuffix(b",")), self._on_repair)
        if not isinstance(events, list):
            raise self._not_json()
        return events, buffer[end + 1 :] if closed else buffer[end:], closed

    def _not_json(self) -> DamagedTraceError:
        return DamagedTraceError(
            f"not valid JSON within or soon after event {self.count + 1}",
            where=self.path,
            hint="copy or record the trace again",
        )

    def _on_repair(self) -> None:
        self._repaired += 1

    def _foot(self, rest: bytes, text: Iterator[bytes], *, bare: bool) -> None:
        tail = b"".join([rest, *text]).strip()
        if bare and not tail:
            return
        foot = _parse(b"{" + tail.removeprefix(b","))
        if bare or not isinstance(foot, dict):
            if _EVENT_KEY in tail:
                raise DamagedTraceError(
                    f"not valid JSON soon after event {self.count}: more events follow that cannot be read",
                    where=self.path,
                    hint="copy or record the trace again",
                )
            self.notes.append(
                f"the text after the {self.count} events is cut off or not valid and was ignored"
            )
            return
        self.document.update(foot)


#: A key that every event has, and nothing else of a trace.
_EVENT_KEY = b'"ph"'


def scan(text: bytes) -> tuple[int, bool]:
    """Find where the last whole event of a list of events ends.

    Parameters
    ----------
    text : bytes
        The inside of a list, from the start of an event on.

    Returns
    -------
    end : int
        Position after the last whole event (0 if there is none), or that of the bracket that closes the list.
    closed : bool
        Whether the list is closed within `text`.
    """
    depth = end = 0
    for match in _TOKEN.finditer(text):
        token = text[match.start()]
        if token in b"{[":
            depth += 1
        elif token in b"}]":
            if depth == 0:
                return match.start(), True
            depth -= 1
            if depth == 0:
                end = match.end()
        elif match.end() - match.start() == 1:
            break  # a string that is not closed within the text
    return end, False


def _last_separator(text: bytes) -> int:
    """Position after the brace that closes the event before the last candidate separator, or 0."""
    cut = 0
    window = 1 << 12
    while not cut and window < 2 * len(text):
        for match in _SEPARATOR.finditer(text, max(0, len(text) - window)):
            cut = match.start() + 1
        window *= 16
    return cut


def _list_text(inside: bytes) -> bytes:
    # split and join: a substitution costs 1 us a match more
    parts = _LONG_TS.split(inside)
    parts[1::2] = [b'"ts":"%b"' % number for number in parts[1::2]]
    return b"[%b]" % b"".join(parts)


def _parse(text: bytes, on_repair: Callable[[], None] = lambda: None) -> Any:
    """A JSON value, or None; harmless faults (nan, inf, unescaped or undecodable characters) are mended."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        pass
    if b"\0" in text:
        return None  # a block that was never written: mending it would swallow the events that it held
    mended = _NOT_A_NUMBER.sub(_mend, text.decode("utf-8", "replace").encode())
    try:
        value = orjson.loads(mended)
    except orjson.JSONDecodeError:
        return None
    on_repair()
    return value


def _mend(match: re.Match[bytes]) -> bytes:
    token = match[0]
    if token[:1] != b'"':
        return b"null"
    return _CONTROL.sub(b" ", _ESCAPE.sub(lambda m: m[0] if m[1] else rb"\\", token))
