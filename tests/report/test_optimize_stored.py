"""Results of optimisations as they are stored: what is none is refused, what was not stored is None."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from rlprof.errors import RlprofError, UnreadableError
from rlprof.report.optimize import optimization_html
from rlprof.report.optimize_sections import headline, sections, title_of
from rlprof.report.optimize_stored import read_result, whole
from tests.conftest import ROOT

RESULTS = ROOT / "benchmarks" / "results"
LEAST = {
    "format": "rlprof optimisation", "version": 1, "steps": [], "ended": "interrupted", "total": None,
    "rounds": [], "overhead": {},
}  # fmt: skip


def test_a_result_of_an_earlier_version_has_no_course() -> None:
    found = read_result(RESULTS / "optimize" / "cpu.json")
    assert found["over_time"] is None
    assert found["timelines"] is None
    assert found["quota"] is None
    assert found["decisions"]
    assert (
        found["facts"]["date"]
        == json.loads((RESULTS / "optimize" / "cpu.json").read_text())["machine"]["date"]
    )


def test_a_benchmarks_result_has_the_courses_of_its_counted_iterations() -> None:
    path = RESULTS / "gpu" / "optimize_libero.json"
    found, stored = read_result(path), json.loads(path.read_text())
    for order, variant in (("before", "native"), ("after", "optimised")):
        counted = [i for i in stored["iterations"] if i["variant"] == variant and not i["warm_up"]]
        assert found["counted"][order] == [i["wall_s"] for i in counted]
        course = found["over_time"][order]
        assert course["time_s"] in found["counted"][order]
        (one,) = [i for i in counted if i["wall_s"] == course["time_s"]]
        assert course["course"] == one["over_time"]["course"]
    # timelines are stored beside it, and name it
    assert found["timelines"]["before"]
    assert "before: natively" in found["timelines_are"]


def test_a_benchmarks_search_for_quotas_goes_along() -> None:
    stored = json.loads((RESULTS / "gpu" / "optimize_libero.json").read_text())
    quotas = {"quotas": {}, "reason": "no pair of branches overlaps"}
    assert whole(stored | {"quotas": quotas})["quota"] == quotas


def test_withdrawn_variants_have_no_course() -> None:
    stored = json.loads((RESULTS / "gpu" / "optimize_libero.json").read_text())
    found = whole(stored | {"withdrawn": {"optimised": "two runs at once"}})
    assert "reason" in found["over_time"]["after"]
    assert list(found["counted"]) == ["before"]


def test_to_make_it_whole_twice_changes_nothing() -> None:
    once = whole(LEAST)
    assert whole(once) == once
    assert once["levers"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[1]", "is no result of an optimisation"),
        ('{"what": "else"}', "is no result of an optimisation"),
        ('{"optimisation": null}', "is no result of an optimisation"),
        (json.dumps({k: v for k, v in LEAST.items() if k != "rounds"}), "it has no rounds"),
        (json.dumps(LEAST | {"version": 99}), "is of version 99"),
    ],
)
def test_what_is_no_result_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(text)
    with pytest.raises(UnreadableError, match=said) as raised:
        read_result(path)
    assert raised.value.where == str(path)
    assert raised.value.hint


@pytest.mark.parametrize(("field", "value"), [("facts", 3), ("machine", "x"), ("iterations", True)])
def test_a_field_of_another_form_is_told_when_it_is_read(field: str, value: object, tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(LEAST | {field: value}))
    with pytest.raises(UnreadableError, match="holds what no result of this version does") as raised:
        read_result(path)
    assert raised.value.where == str(path)


@pytest.mark.parametrize("shows", [headline, sections, title_of, optimization_html])
def test_a_field_of_another_form_is_told_where_it_is_shown(
    shows: Callable[[Mapping[str, Any]], object], tmp_path: Path
) -> None:
    path = tmp_path / "result.json"
    damaged = LEAST | {"steps": 3, "total": {"a": 1}, "sm_activity": {"after": "x"}}
    path.write_text(json.dumps(damaged))
    result = read_result(path) | {"facts": {"config": 3}}
    with pytest.raises(UnreadableError, match="holds what no result of this version does") as raised:
        shows(result)
    assert raised.value.where == str(path)
    with pytest.raises((TypeError, AttributeError)):  # nobody could mend what is in no file
        shows({k: v for k, v in result.items() if k != "where"})


def test_a_folder_and_its_file_are_the_same(tmp_path: Path) -> None:
    (tmp_path / "result.json").write_text(json.dumps(LEAST))
    assert read_result(tmp_path) == read_result(tmp_path / "result.json")


def test_the_searches_that_are_kept_are_small_and_can_be_read() -> None:
    kept = sorted((RESULTS / "searches").glob("*.json"))
    assert {p.stem for p in kept} >= {"optimize_libero", "optimize_mujoco_warp_search"}
    for path in kept:
        assert path.stat().st_size < 100_000
        found = read_result(path)
        assert found["decisions"][0]["what"] == "started"
        assert "ended" in {entry["what"] for entry in found["decisions"]}
        assert found["timelines"]["before"]


def test_a_benchmark_without_a_search_is_refused() -> None:
    with pytest.raises(RlprofError, match="no graph was searched or given"):
        read_result(RESULTS / "gpu" / "optimize_mujoco_warp_mps.json")


def test_a_benchmark_of_a_given_graph_tells_what_it_measured() -> None:
    result = read_result(RESULTS / "gpu" / "optimize_libero_again.json")
    (value, what), (share, _), *more = headline(result)
    times = {name: sorted(of) for name, of in result["counted"].items()}
    assert value == f"{times['before'][2] / times['after'][2]:.3f} ×"
    assert "5 and 5 counted iterations; not compared in pairs" in what
    assert share.endswith("%")
    assert not more  # of a search nothing is told: neither a cost nor that nothing was gained
    page = optimization_html(result)
    assert "Not known: the graph was given, so nothing was searched" in page
    assert "never: nothing was gained" not in page


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RlprofError, match="cannot be read"):
        read_result(tmp_path / "result.json")


def test_numbers_that_are_none_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(LEAST | {"overhead": {"net_s": float("nan")}}))
    assert read_result(path)["overhead"]["net_s"] is None
