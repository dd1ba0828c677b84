"""The report of an optimisation: one page that loads nothing, and says what was tried and what it gains."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from benchmarks.rl_programs import make
from rlprof.overlap.optimize import Options, optimize
from rlprof.overlap.optimize.log import DecisionLog
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.report.optimize import optimization_html, task_table, timelines, write_optimization_report
from rlprof.report.optimize_sections import headline, section
from rlprof.report.optimize_tables import payback
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT

HOSTILE = "</script><script>alert(1)</script><img src=x onerror=\"alert('1')\"> {{'\n"
STORED = ["optimize/cpu.json", "gpu/optimize_libero.json", "gpu/optimize_mujoco_warp_search.json"]
QUOTA = {
    "quotas": {"simulator": 40},
    "reason": "clear after 6 pairs",
    "cost": {"total_s": 61.5, "retained_training_s": 20.0, "iterations": 8, "trials": 12},
    "pair": {
        "earlier": "env", "later": "rollout", "join": "predict", "slack_s": 0.031, "occurrences": 24,
        "earlier_ready_s": 0.1, "later_ready_s": 0.131, "others": ["actor and env: they never overlap"],
    },
    "search": {
        "start": 9, "best": 4, "reason": "the fine part is done",
        "trials": [
            {"k": 9, "phase": "start", "amount": 132, "setting": 100, "time_s": 0.5, "runs": 2},
            {"k": 4, "phase": "coarse", "amount": 52, "setting": 40, "time_s": 0.4, "runs": 2},
            {"k": 6, "phase": "fine", "amount": 72, "setting": 55, "time_s": 0.45, "runs": 5,
             "comparison": {"gain_frac": 0.11, "decision": "better", "pairs": [[0.5, 0.45]] * 5}},
            {"k": 1, "phase": "coarse", "amount": 12, "setting": 10, "unavailable": "no memory"},
        ],
    },
    "validation": {
        "kept": True, "reason": "clear after 6 pairs",
        "comparison": {
            "reference": {"median_s": 5.0, "low_s": 4.9, "high_s": 5.1, "runs": 6},
            "candidate": {"median_s": 4.5, "low_s": 4.4, "high_s": 4.6, "runs": 6},
            "gain_frac": 0.1, "gain_s": 0.5, "low_s": 0.4, "high_s": 0.6, "confidence": 0.9,
            "pairs": [[5.0, 4.5]] * 6,
        },
    },
}  # fmt: skip


def result_of(seed: int, noise_frac: float = 0.0, **options: object) -> dict[str, Any]:
    program = make(seed)
    log = DecisionLog()
    workload = SimulatedWorkload(program.graph, program.model, noise_frac=noise_frac)
    found = optimize(workload, Options(**options), log=log)  # type: ignore[arg-type]
    facts = {
        "config": {"policy": "<b>pi0", "preset": "tiny"},
        "hardware": {"cores": 2},
        "rlprof": "0",
        "date": "2026-11-30",
    }
    return json.loads(json.dumps(document(found, log.entries, facts)))  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def result() -> dict[str, Any]:
    return result_of(1, noise_frac=0.001)


def charts(page: str) -> dict[str, Any]:
    """Specifications of a page's charts by name."""
    found = re.findall(r'<script type="application/json" data-chart="(\w+)"[^>]*>(.*?)</script>', page)
    return {name: json.loads(text) for name, text in found}


def test_the_page_has_the_gain_the_steps_and_the_refusals(result: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "report.html"
    write_optimization_report(result, path)
    page = path.read_text()
    total = result["total"]
    ratio = total["reference"]["median_s"] / total["candidate"]["median_s"]
    assert f"{ratio:.3f} ×" in page
    assert "split_spatial iteration/rollout/epoch groups=2" in page
    assert "refused: split: loop" in page
    assert "iterations until it is paid back" in page
    assert "&lt;b&gt;pi0" in page
    assert "<b>pi0" not in page
    assert "2026-11-30" in page
    assert not re.search(r"(?:src|href)=[\"']?http", page)
    assert list(charts(page)) == ["course", "phases", "levels", "before", "after", "pairs"]


def test_timelines_share_an_axis(result: dict[str, Any]) -> None:
    drawn = timelines(result)
    assert list(drawn) == ["before", "after"]
    ends = {json.dumps(chart.to_dict()["encoding"]["x"]["scale"]["domain"]) for chart, _ in drawn.values()}
    assert len(ends) == 1
    scales = {json.dumps(chart.to_dict()["encoding"]["color"]["scale"]) for chart, _ in drawn.values()}
    assert len(scales) == 1  # a name has one colour in both
    before = task_table(result["timelines"]["before"])
    assert {"rollout", "env", "actor"} <= set(before["lane"])
    assert before["start_s"].min() == 0.0


def test_the_course_of_both_orders_is_drawn_to_its_end(result: dict[str, Any]) -> None:
    spec = charts(optimization_html(result))["course"]
    (rows,) = [v for v in spec["datasets"].values() if v and "at_s" in v[0]]
    for order in ("before", "after"):
        stored = result["over_time"][order]
        here = [r for r in rows if r["variant"] == order]
        assert len(here) == len(stored["course"]) + 1 <= 401
        assert [r["active_frac"] for r in here[:-1]] == stored["course"]
        assert here[-1]["at_s"] == pytest.approx(stored["parts"]["iteration"]["seconds"], abs=1e-5)
    table = repr(section(result, "activity").items[1])
    assert re.search(r"^iteration +\S+ m?s +\S+ %", table, re.MULTILINE)
    assert re.search(r"^rollout ", table, re.MULTILINE)


def test_the_gain_has_quartiles_and_an_interval(result: dict[str, Any]) -> None:
    gain = repr(section(result, "gain").items[0])
    total = result["total"]
    assert total["reference"]["runs"] >= 4
    assert re.search(r"quartiles \S+ m?s to \S+ m?s", gain)
    assert re.search(r"\d+% interval \S+ m?s to \S+ m?s", gain)


def test_no_gain_is_said() -> None:
    found = result_of(1, epsilon=0.9)
    page = optimization_html(found)
    assert "no gain" in page
    assert "the native order is kept" in page
    assert "activity of an iteration in the native order" in page
    assert "never: nothing was gained" in page
    lever = {"lever": "workers", "before": 1, "value": 2, "outcome": "kept", "reason": "better"}
    assert "never" not in payback(found | {"levers": [lever]})  # it gained, and its gain is not counted
    assert payback(found | {"levers": [lever | {"outcome": "dropped"}]}) == "never: nothing was gained"
    drawn = charts(page)
    assert "before" in drawn
    assert "after" not in drawn
    (rows,) = [v for v in drawn["course"]["datasets"].values() if v and "at_s" in v[0]]
    assert {r["variant"] for r in rows} == {"before"}


def test_levers_that_were_kept_are_the_gain_where_no_overlap_pays() -> None:
    found = result_of(1, epsilon=0.9)
    (measured,) = [e["result"] for e in found["decisions"] if e["what"] == "validated"][:1]
    row = {"lever": "workers", "before": 1, "value": 2, "outcome": "kept", "reason": "", "result": measured}
    gain = f"{measured['gain_frac']:+.1%}"
    value, what = headline(found | {"levers": [row, row | {"outcome": "dropped"}]})[0]
    assert value == gain
    assert what == (
        "an iteration by levers alone (workers, 1 → 2):"
        " no overlap that was tried pays; the native order is kept"
    )
    other = row | {"lever": "cuda-graph", "before": False, "value": True}
    stopped = found | {"levers": [row, other], "stopped": True}
    value, what = headline(stopped)[0]
    assert value == f"{gain} and {gain}"
    assert "(workers, 1 → 2, then cuda-graph, off → on): it was stopped before an overlap" in what
    assert headline(found | {"levers": [row | {"outcome": "dropped"}]})[0][0] == "no gain"


def test_an_interrupted_one_says_how_far_it_came(result: dict[str, Any]) -> None:
    nothing = result | {
        "steps": [], "ended": "interrupted", "stopped": True, "total": None, "rounds": [], "iterations": [],
        "unfinished": ["interrupted"],
        "sm_activity": {"before": None, "after": None}, "timelines": {"before": [], "after": []},
        "over_time": {n: {"reason": "no iteration was measured"} for n in ("before", "after")},
        "batch_times": [], "decisions": [],
    }  # fmt: skip
    page = optimization_html(nothing)
    assert "no gain so far" in page
    assert "interrupted; --resume goes on" in page
    assert "No round began" in page
    assert "Before: no iteration was measured" in page
    assert not charts(page)
    # a graph was accepted, and the rounds were not compared in all
    value, what = headline(result | {"stopped": True, "total": None})[0]
    accepted = [r for r in result["rounds"] if r["accepted"]]
    assert value.startswith("about ")
    assert f"of {len(accepted)} rounds added up" in what


def test_what_the_budget_left_is_told_apart_from_the_graph(result: dict[str, Any]) -> None:
    left = ["the budget ended before it was decided whether levers pay: nice", "quotas were not searched"]
    told = dict(headline(result | {"unfinished": left}))
    assert told["not finished"] == f"{'; '.join(left)}; --resume goes on"
    assert headline(result | {"unfinished": left})[0] == headline(result)[0]
    assert "not finished" not in dict(headline(result))
    before = {k: v for k, v in result.items() if k != "unfinished"}  # of an earlier version
    assert "not finished" not in dict(headline(before))
    spent = "the budget of 60 s is spent"
    told = dict(headline(before | {"stopped": True, "ended": spent}))
    assert told["not finished"] == f"{spent}; --resume goes on"


def test_estimates_are_shown_with_their_residuals(result: dict[str, Any]) -> None:
    assert result["interference"]["reason"] is None
    page = optimization_html(result)
    assert "median residual" in page
    for factor in result["interference"]["factors"]:
        assert factor["factor"] >= 1


def test_quotas_show_every_level_and_why_it_was_kept_or_dropped(result: dict[str, Any]) -> None:
    shown = section(result | {"quota": QUOTA}, "quotas")
    text = "\n".join(map(repr, shown.items))
    assert re.search(r"^has slack +env, before rollout; they meet at predict", text, re.MULTILINE)
    assert re.search(r"100 % +500 ms .* q0: what others are compared with", text)
    assert re.search(r"40 % +400 ms .* validated by complete iterations \(\+20\.0% against q0\)", text)
    assert re.search(r"55 % +450 ms .* \+11\.0%, better \(5 pairs\) +dropped: another level took less", text)
    assert "61.5 s, 20 s of it training that counts; 8 iterations, 12 local trials" in text
    assert "not measured: no memory" in text
    assert re.search(r"5 s \(quartiles .* kept +clear after 6 pairs", text)
    assert [f.key for f in shown.figures] == ["quota"]
    (none,) = section(result | {"quota": None}, "quotas").items
    assert isinstance(none, Unavailable)
    only = section(result | {"quota": {"quotas": {}, "reason": "there is no GPU to divide"}}, "quotas")
    assert "there is no GPU to divide" in repr(only.items[0])


EARLIER = {
    "file": "graph.json", "date": "2026-11-30T17:08:37+00:00",
    "steps": ["split_spatial epoch", "interleave epoch"],
    "levers": {"workers": 8}, "quotas": {"simulator": 40},
}  # fmt: skip


def test_a_graph_of_an_earlier_session_is_told_beside_what_was_found(result: dict[str, Any]) -> None:
    assert "Graph of an earlier session" not in optimization_html(result | {"earlier_graph": None})
    less = result | {"earlier_graph": EARLIER, "steps": [], "total": None}
    nothing, stays = section(less, "graph").items
    assert isinstance(nothing, Unavailable)
    text = repr(stays)
    assert re.search(r"^file +graph.json: it stays: what is shown here found less", text, re.MULTILINE)
    assert re.search(r"^found +2026-11-30T17:08:37", text, re.MULTILINE)
    assert re.search(r"^steps +split_spatial epoch; interleave epoch", text, re.MULTILINE)
    assert re.search(r"^levers +workers=8", text, re.MULTILINE)
    assert re.search(r"^quotas +simulator=40", text, re.MULTILINE)
    aside = result | {"earlier_graph": EARLIER | {"file": "earlier-1/graph.json"}}
    assert "earlier-1/graph.json: set aside for what is shown here" in optimization_html(aside)
    # of a version that set none aside, and told no file
    old = {"date": None, "steps": ["interleave epoch"], "levers": {}}
    text = repr(section(result | {"earlier_graph": old}, "graph").items[1])
    assert "graph.json: it stays" in text
    assert re.search(r"^found +not stored", text, re.MULTILINE)
    assert re.search(r"^levers +none", text, re.MULTILINE)


def test_states_of_the_machine_are_told_by_kind_of_work(result: dict[str, Any]) -> None:
    graph = result["decisions"][0]["graph"]
    gpu = {"sm_clock_mhz": 1980.0, "slowed_by": "0x4"}
    rows = [
        {"graph": graph, "time_s": 1.0, "facts": {"gpu": gpu | {"sm_clock_mhz": c}}} for c in (1200.0, 1980.0)
    ]
    text = repr(section(result | {"iterations": rows}, "machine").items[0])
    assert re.search(r"^native iterations +SM clock \(MHz\) +2 +1590 \(1200 to 1980\)", text, re.MULTILINE)
    sides = {"reference": gpu | {"trials": 3, "wall_s": 1.0, "others_cores": 0.5}, "candidate": gpu}
    trial = next(e for e in result["decisions"] if e["what"] == "compared") | {"machine": sides}
    text = repr(section(result | {"decisions": [*result["decisions"], trial]}, "machine").items[0])
    assert re.search(r"^local trials, candidate +SM clock \(MHz\) +1 +1980", text, re.MULTILINE)
    assert re.search(r"^local trials, reference +cores kept busy by others +1 +0\.5", text, re.MULTILINE)
    assert "wall s" not in text
    unread = [{"graph": graph, "time_s": 1.0, "facts": {"gpu": "unavailable: nvidia-smi gave no answer"}}]
    (why,) = section(result | {"iterations": unread}, "machine").items
    assert isinstance(why, Unavailable)
    assert "nvidia-smi gave no answer" in why.reason


def test_the_cost_is_told_by_part_and_doubts_with_the_comparison(result: dict[str, Any]) -> None:
    part = {
        "part": "search", "total_s": 50.0, "retained_training_s": 20.0, "net_s": 30.0, "iterations": 12,
        "lost_iterations": 2, "trials": 40, "apart": False,
    }  # fmt: skip
    quotas = part | {"part": "quotas", "apart": True, "lost_iterations": 0}
    more = {"parts": [part, quotas], "sessions": [{}, {}], "measurements_of_unknown_cost": 3}
    shown = section(result | {"overhead": result["overhead"] | more}, "cost")
    text = "\n".join(map(repr, shown.items))
    assert "In 2 sessions. What 3 measurements of an earlier version took is not known." in text
    assert re.search(r"^search +50 s +20 s +30 s +12 \(2 lost\) +40", text, re.MULTILINE)
    assert "quotas (apart)" in text
    doubted = result["total"] | {"doubts": ["others kept 1.5 cores busy beside one side"]}
    gain = optimization_html(result | {"total": doubted, "rounds": []})
    assert "doubtful: others kept 1.5 cores busy beside one side" in gain


def test_factors_that_cannot_be_told_say_why(result: dict[str, Any]) -> None:
    factors = [{"node": "a/b", "beside": "a/c, a/d", "factor": 1.5, "error_frac": 0.1, "calls": 4}]
    untold = [{"node": "a/b", "beside": "a/e", "reason": "too few calls"}]
    found = {"reason": None, "factors": factors, "residual_frac": {"a/b": 0.02}, "untold": untold}
    text = repr(section(result | {"interference": found}, "estimates").items[1])
    assert re.search(r"^b +c, d +1\.50 × ± 10% +4 +2\.0 %", text, re.MULTILINE)
    assert "cannot be told: too few calls" in text


@pytest.mark.parametrize("name", STORED)
def test_results_of_before_are_shown(name: str) -> None:
    from rlprof.report.optimize_stored import read_result

    page = optimization_html(read_result(ROOT / "benchmarks" / "results" / name))
    assert "Gain with its spread" in page
    assert "2026-11-30" in page
    if name.startswith("gpu"):
        assert "course" in charts(page)
        assert "Counted iterations" in page
        assert "NVIDIA H200" in page
        assert "SM clock (MHz)" in page
    else:
        assert "its course over the iteration is not stored" in page.lower()
        assert "refused: " in page


class Tags(HTMLParser):
    """Elements of a page, and the attributes of each."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, tuple(name for name, _ in attrs)))


def spoilt(value: Any, kept: frozenset[str], key: str = "") -> Any:
    """A document with hostile text in every string, and in names of whatever may be called anything."""
    if isinstance(value, dict):
        free = key in {"config", "hardware", "parts", "quotas", "gpu"}
        return {
            (k + HOSTILE if free and k != "iteration" else k): v if k in kept else spoilt(v, kept, k)
            for k, v in value.items()
        }
    if isinstance(value, list):
        return [spoilt(v, kept) for v in value]
    return value + HOSTILE if isinstance(value, str) else value


def test_hostile_names_break_nothing(result: dict[str, Any]) -> None:
    states = [{"graph": "g", "time_s": 1.0, "facts": {"gpu": {"slowed_by": "0x4"}}}]
    full = result | {"quota": QUOTA, "iterations": states, "earlier_graph": EARLIER}
    full["levers"] = [
        {
            "lever": "workers",
            "before": 1,
            "value": "2",
            "outcome": "kept",
            "reason": "clear",
            "result": full["total"],
        }
    ]
    bad = spoilt(full, frozenset({"format", "what"}))
    page, plain = optimization_html(bad), optimization_html(full)
    assert [t for t in Tags(page).found if t[0] in {"script", "img"}] == [
        t for t in Tags(plain).found if t[0] in {"script", "img"}
    ]
    assert {name for _, names in Tags(page).found for name in names} == {
        name for _, names in Tags(plain).found for name in names
    }
    assert list(charts(page)) == list(charts(plain))
    assert "alert(1)" in page
