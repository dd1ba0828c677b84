"""Charts inside a page that opens from disk: the drawing scripts inline, specifications as safe JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
from pathlib import Path
from typing import Any

from rlprof.errors import RlprofError
from rlprof.trace.output import atomic_path


def script_json(value: Any) -> str:
    """`value` as JSON that may stand inside a ``<script>``: no text in it can end the script.

    Parameters
    ----------
    value : object
        Anything that JSON can hold.
    """
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for mark in "<>&\u2028\u2029":
        text = text.replace(mark, f"\\u{ord(mark):04x}")
    return text


def script_bundle() -> str:
    """Vega, Vega-Lite and vega-embed as one script (0.9 MB) that sets ``window.vegaEmbed`` and so on.

    vl-convert carries their sources and needs a second to bundle them: the result is kept in the user's
    cache folder, if there is one that can be written.
    """
    from importlib.metadata import version

    kept = cache_folder() / f"vega-bundle-{version('vl-convert-python')}.js"
    with contextlib.suppress(OSError, UnicodeDecodeError):
        text = kept.read_text(encoding="utf-8")
        if text.rstrip().endswith(END):
            return text
    import vl_convert

    # the snippet may be left out, whatever the signature says: then the bundle sets the globals
    text = f"{vl_convert.javascript_bundle()}\n{END}"  # type: ignore[call-arg]
    # both can only stand in strings, where the backslash changes nothing but what the page's parser sees
    text = re.sub(r"(?i)<(?=/script|!--)", r"<\\", text)
    with contextlib.suppress(OSError, RlprofError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        with atomic_path(kept, force=True) as temporary:
            temporary.write_text(text, encoding="utf-8")
    return text


END = "/* end of bundle */"


def cache_folder() -> Path:
    """Folder for what can be made again: ``$XDG_CACHE_HOME/rlprof``, by default ``~/.cache/rlprof``."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "rlprof"


def page(spec: dict[str, Any]) -> str:
    """A page that holds one chart and loads nothing."""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>rlprof chart</title>\n'
        f"<script>{script_bundle()}</script></head>\n"
        '<body><div id="chart"></div>\n'
        f'<script>vegaEmbed("#chart", {script_json(spec)}, {{renderer: "svg", actions: false}});</script>\n'
        "</body></html>\n"
    )
