"""Results of optimisations as they are stored: what is none is refused, what was not stored is None."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rlprof.errors import RlprofError, UnreadableError
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.overlap.optimize.steps import Step
from rlprof.report.optimize import optimization_html
from rlprof.report.optimize_sections import headline, section, sections, title_of
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


NATIVE_GRAPH = "f" * 64
HAND_STEPS = [
    Step("split_temporal", "iteration/epoch", (("groups", 2),)),
    Step("interleave", "iteration/epoch"),
]


def turn(order: str, wall_s: float, active: float | None, **more: Any) -> dict[str, Any]:
    return {
        "variant": order, "wall_s": wall_s, "sm_activity": active, "warm_up": False, "short": False,
        "semantic_differences": [], "gpu": {"sm_clock_mhz": 1980.0}, **more,
    }  # fmt: skip


def by_hand(**more: Any) -> dict[str, Any]:
    """A document of `benchmarks.gpu.optimize` that searched nothing, small."""
    equal = {"iterations": 3, "equality": "semantic record", "holds": True, "weights_rel": 1.5e-05}
    return {
        "command": "optimize", "config": {"policy": "pi0", "simulator": "libero", "device": "cuda:0"},
        "argv": {"name": "_small"}, "machine": {"date": "2026-11-30", "gpu": "NVIDIA H200", "cores": 16},
        "steps": {"build_and_record": {"native": NATIVE_GRAPH}},
        "iterations": [
            turn("by hand", 9.9, 0.1, warm_up=True), turn("native", 8.0, 0.3), turn("hybrid", 7.5, 0.3),
            turn("by hand", 5.0, 0.5), turn("by hand, cores shared", 5.5, None), turn("native", 7.0, 0.3),
            turn("by hand", 6.0, 0.4), turn("native", 6.0, 0.3), turn("by hand", 4.0, 0.6),
        ],
        "bound": {"any graph": {"least_s": 3.5, "binding": "cores"}},
        "summary": {
            "native": {}, "by hand": {"against_native": equal, "share_of_bound": {"any graph": 0.7}},
            "by hand, cores shared": {"against_native": equal | {"holds": False}},
        },
        **more,
    }  # fmt: skip


def stored(folder: Path, document: Mapping[str, Any]) -> Path:
    path = folder / "optimize_libero_small.json"
    path.write_text(json.dumps(document))
    return path


def test_a_benchmark_of_a_graph_by_hand_tells_what_it_measured(tmp_path: Path) -> None:
    result = read_result(stored(tmp_path, by_hand()))
    (gain, what), (share, _), *more = headline(result)
    assert gain == "1.400 ×"  # medians: 7 and 5 s
    assert "over native, the best baseline: by medians of 3 and 3 counted iterations" in what
    assert "1.167 to 1.750 by its slowest and fastest; not compared in pairs" in what
    assert (share, more) == ("50 %", [])
    text = repr(section(result, "gain").items[1])
    assert re.search(r"^native, the best baseline +3 +7 s +6 s to 8 s +30\.0 % +–", text, re.MULTILINE)
    assert re.search(r"^hybrid +1 +7\.5 s .* 0\.933 × \(once\) +0 differences of the sem", text, re.MULTILINE)
    assert re.search(
        r"^by hand +3 +5 s +4 s to 6 s +50\.0 % +1\.400 × \(1\.167 to 1\.750\)", text, re.MULTILINE
    )
    assert "  equal to native training by semantic record (3 iterations, weights differ by 1.5e-05" in text
    assert re.search(
        r"^by hand, cores shared +1 .* – +1\.273 × \(once\) +NOT equal to native", text, re.MULTILINE
    )
    bounds = repr(section(result, "gain").items[2])
    assert re.search(r"^any graph +3\.5 s +– +cores +by hand 70 %$", bounds, re.MULTILINE)


def test_its_page_says_what_it_has_not(tmp_path: Path) -> None:
    page = optimization_html(read_result(stored(tmp_path, by_hand())))
    why = "he graph was made by hand, so nothing was searched"
    for name in ("Levers", "Windows", "What was tried", "Quotas", "Estimates"):
        assert re.search(f'<h2>{name}</h2>\n<p class="none">T{why}', page), name
    assert f"Not known: t{why}" in page
    assert "The calls of the iterations are not stored in this result" in page
    assert "the native order is kept" not in page
    assert "NVIDIA H200" in page
    assert "iterations, by hand, cores shared" in page  # clocks of each order


def test_steps_by_hand_are_told_if_they_lie_beside_and_are_of_that_program(tmp_path: Path) -> None:
    path = stored(tmp_path, by_hand())
    assert "no graph by hand that is of this result" in repr(section(read_result(path), "graph").items[0])
    graph = GraphFile("iteration", tuple(HAND_STEPS), "another program", "graph")
    graph.write(tmp_path / "by_hand_small.json")
    assert read_result(path)["steps"] == []
    replace(graph, native_hash=NATIVE_GRAPH).write(tmp_path / "by_hand_small.json")
    assert read_result(path)["steps"] == [str(step) for step in HAND_STEPS]
    (tmp_path / "by_hand_small.json").write_text("{")
    assert read_result(path)["steps"] == []


@pytest.mark.parametrize(
    ("document", "said"),
    [
        (by_hand(iterations=[turn("native", 8.0, 0.3), turn("hybrid", 7.0, 0.3)]),
         "none by hand ran; it has complete iterations of native, hybrid alone"),
        (by_hand(command="run", iterations=[turn("colocated", 8.0, 0.3)]), "iterations of colocated"),
        (by_hand(iterations=[]), "no graph was searched or given, and none by hand ran"),
        (by_hand(withdrawn={"by hand": "images of another scene"}), "none by hand counts: images of another"),
    ],
)  # fmt: skip
def test_a_benchmark_of_native_schedules_alone_is_refused_in_one_line(
    document: dict[str, Any], said: str, tmp_path: Path
) -> None:
    with pytest.raises(UnreadableError, match=said) as caught:
        read_result(stored(tmp_path, document))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("name", ["optimize_mujoco_warp_mps", "optimize_mujoco_warp_off"])
def test_results_by_hand_that_are_kept_can_be_shown(name: str) -> None:
    path = RESULTS / "gpu" / f"{name}.json"
    summary = json.loads(path.read_text())["summary"]["by hand"]
    (gain, _), *_ = headline(read_result(path))
    assert float(gain.split()[0]) == pytest.approx(summary["speedup_over_best_baseline"], abs=2e-3)


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
    with pytest.raises(RlprofError, match="no such file or folder"):
        read_result(tmp_path / "result.json")


def test_numbers_that_are_none_are_not_known(tmp_path: Path) -> None:
    path = tmp_path / "result.json"
    path.write_text(json.dumps(LEAST | {"overhead": {"net_s": float("nan")}}))
    assert read_result(path)["overhead"]["net_s"] is None


def test_a_folder_whose_optimisation_was_interrupted_says_how_it_goes_on(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError, match=r"no such file or folder\. Next: give a result\.json"):
        read_result(tmp_path)
    (tmp_path / "measurements.jsonl").touch()
    with pytest.raises(UnreadableError, match=r"has not come to a result\. Next: .* --resume"):
        read_result(tmp_path)


def test_a_result_that_is_a_named_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "result.json")
    with pytest.raises(UnreadableError, match="a named pipe, not a file"):
        read_result(tmp_path)
