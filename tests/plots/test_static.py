"""Charts as files, without a browser and without a network."""

from __future__ import annotations

import base64
import json
from html.parser import HTMLParser
from pathlib import Path

import altair as alt
import pytest

from rlprof.errors import OutputError, UsageError
from rlprof.plots import display_static, embed, save
from rlprof.trace.trace import Trace

from .made import hostile_trace

PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def trace() -> Trace:
    return hostile_trace()


@pytest.fixture(autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.mark.parametrize("kind", ["timeline", "activity", "distribution", "windows"])
def test_png_and_svg(trace: Trace, kind: str, tmp_path: Path) -> None:
    chart = getattr(trace.plot, kind)()
    assert save(chart, tmp_path / "a.png", scale=1).read_bytes().startswith(PNG)
    svg = save(chart, tmp_path / "a.svg").read_text()
    assert svg.startswith("<svg")
    assert "<script" not in svg
    assert "<img" not in svg
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.png", "a.svg"]


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.links += [v or "" for k, v in attrs if k in ("src", "href")]


def test_html_is_one_file_in_which_labels_stay_text(trace: Trace, tmp_path: Path) -> None:
    page = save(trace.plot.timeline(), tmp_path / "a.html").read_text(encoding="utf-8")
    parsed = _Scripts()
    parsed.feed(page)
    assert parsed.tags.count("script") == 2
    assert "img" not in parsed.tags
    assert parsed.links == []


def test_json_is_the_specification(trace: Trace, tmp_path: Path) -> None:
    spec = json.loads(save(trace.plot.windows(), tmp_path / "a.json").read_text())
    assert spec["$schema"].startswith("https://vega.github.io/schema/vega-lite/")


def test_an_unknown_suffix_names_the_known_ones(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"\.png, \.svg, \.html, \.json"):
        save(trace.plot.windows(), tmp_path / "a.bmp")
    assert list(tmp_path.iterdir()) == []


def test_a_missing_folder_is_one_clear_error(trace: Trace, tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="does not exist"):
        save(trace.plot.windows(), tmp_path / "absent" / "a.svg")
    (tmp_path / "a.svg").touch()
    with pytest.raises(OutputError, match="exists already"):
        save(trace.plot.windows(), tmp_path / "a.svg", force=False)


def test_notebooks_run_in_batch_get_pictures(trace: Trace) -> None:
    before = alt.renderers.active
    try:
        display_static()
        bundle = trace.plot.windows()._repr_mimebundle_(None, None)
        bundle = bundle[0] if isinstance(bundle, tuple) else bundle
        assert bundle["image/svg+xml"].startswith("<svg")
        assert base64.b64decode(bundle["image/png"]).startswith(PNG)
    finally:
        alt.renderers.enable(before)


def test_the_scripts_are_bundled_once_and_then_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = embed.script_bundle()
    kept = next((tmp_path / "rlprof").iterdir())
    assert "vegaEmbed" in first
    assert "</script" not in first.lower()
    assert embed.script_bundle() == first
    # a file cut short is not used
    kept.write_text(first[:1000])
    assert embed.script_bundle() == first


def test_a_cache_that_cannot_be_written_does_no_harm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert "vegaEmbed" in embed.script_bundle()


def test_json_in_a_script_cannot_end_it() -> None:
    text = embed.script_json({"a": "</script><!-- & \u2028", "b": [1, None, 0.5]})
    assert not set("<>&\u2028") & set(text)
    assert json.loads(text) == {"a": "</script><!-- & \u2028", "b": [1, None, 0.5]}
