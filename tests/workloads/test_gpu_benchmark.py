"""`benchmarks/gpu/embodied` on the processor: what runs on a GPU machine for the first time must work."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from benchmarks.gpu import common, embodied, embodied_report
from rlprof.workloads.embodied.config import Config

pytest.importorskip("torch")
pytest.importorskip("mujoco", reason="MuJoCo is not installed: pip install 'rlprof[workloads]'")
ROOT = Path(__file__).resolve().parents[2]
SIZES = [
    *("--preset", "exact", "--device", "cpu", "--workers", "0", "--set", "envs=4", "chunks=2"),
    *("episode_steps=10", "denoise_steps=2", "global_batch=8", "micro_batch=4", "update_epochs=1"),
]


def run(monkeypatch: pytest.MonkeyPatch, out: Path, command: str, *more: str) -> None:
    monkeypatch.setattr(sys, "argv", ["embodied", command, "--out", str(out), *SIZES, *more])
    monkeypatch.setattr(common, "BEGAN_S", time.monotonic())  # as if it were a process of its own
    embodied.main()


def test_schedules_take_turns_and_a_step_that_fails_stops_nothing(tmp_path, monkeypatch) -> None:
    order = "colocated,hybrid-pipe+prefetch,hybrid-pipe,colocated+graph"
    more = ("--schedules", order, "--rounds", "1", "--seconds", "60", "--times", "1")
    run(monkeypatch, tmp_path, "run", "--parts", "solo,schedules", *more)
    found: dict[str, Any] = json.loads((tmp_path / "embodied_mujoco_arm.json").read_text())
    rows = [(r["variant"], r["round"], r["warm_up"], r["short"]) for r in found["iterations"]]
    wanted = [
        *(("colocated", 0, True, False), ("hybrid-pipe", 0, True, True)),
        *(("colocated", 1, False, False), ("hybrid-pipe", 1, False, False)),
    ]
    assert rows == wanted
    assert all(r["semantic_differences"] == [] for r in found["iterations"])
    assert all(0 < r["activity"]["iteration"] <= 1 for r in found["iterations"])
    assert not found["steps"]["colocated+graph_1"]["ok"]
    assert "CUDA graphs need a CUDA device" in found["steps"]["colocated+graph_1"]["error"]
    assert "offloads the simulator" in found["steps"]["hybrid-pipe+prefetch_0"]["error"]
    assert found["summary"]["hybrid-pipe"]["iterations"] == 1
    assert found["steps"]["hybrid-pipe_replay"]["chain"] == 0.0
    table = found["steps"]["table1"]
    assert table["speedup"] == pytest.approx(table["serial_s"] / table["overlapped_s"])
    config = found["config"]
    assert (config["chunks"], config["rollout_epochs"]) == (2, 2)
    full = next(r for r in found["iterations"] if not r["short"])
    assert full["simulator_steps"] == Config(**{**config, "preset": "exact"}).simulator_steps


def test_the_policy_by_itself(tmp_path, monkeypatch) -> None:
    run(monkeypatch, tmp_path, "selftest", "--backend", "none-such")
    found = json.loads((tmp_path / "embodied_selftest.json").read_text())
    steps = found["steps"]
    assert all(step["ok"] for name, step in steps.items() if name != "activity")
    assert steps["build"]["parameters"] > 1e5
    assert steps["evaluate_4"]["log_ratio_max"] < 1e-3
    assert steps["training_step"]["after_reload"] > 0
    assert not steps["activity"]["ok"]  # and nothing else is lost by that


def test_a_simulator_that_failed_is_made_anew(tmp_path, monkeypatch) -> None:
    from rlprof.workloads.embodied.errors import SimulatorError
    from rlprof.workloads.embodied.simulators.mujoco_arm import MujocoArm

    left = [0]
    native = MujocoArm.step

    def breaks(self: Any, *args: Any, **kwargs: Any) -> Any:
        left[0] += 1
        if left[0] == 3:
            raise SimulatorError("the gripper is stuck")
        return native(self, *args, **kwargs)

    monkeypatch.setattr(MujocoArm, "step", breaks)
    more = ("--parts", "schedules", "--schedules", "colocated,colocated-pipe", "--rounds", "1")
    run(monkeypatch, tmp_path, "run", *more, "--seconds", "60")
    found = json.loads((tmp_path / "embodied_mujoco_arm.json").read_text())
    assert "stuck" in found["steps"]["colocated_0"]["error"]
    assert [r["variant"] for r in found["iterations"]] == ["colocated-pipe", "colocated", "colocated-pipe"]


def test_results_are_written_whole_after_every_step(tmp_path) -> None:
    report = embodied_report.Report(tmp_path / "x.json", {"command": "test"})
    with report.step("one") as found:
        found["answer"] = 42
    with report.step("two"):
        raise RuntimeError("no more")
    written = json.loads((tmp_path / "x.json").read_text())
    assert written["steps"]["one"]["answer"] == 42
    assert written["steps"]["two"]["error"] == "RuntimeError: no more"


@pytest.mark.parametrize("script", sorted((ROOT / "benchmarks/gpu").glob("*.sh")), ids=lambda p: p.stem)
def test_the_scripts_are_ones_that_bash_reads(script: Path) -> None:
    assert subprocess.run(["bash", "-n", script], check=False).returncode == 0


@pytest.mark.parametrize("name", ["all", "embodied_setup", "warp"])
def test_a_step_changes_no_variable_of_its_script(name: str, tmp_path: Path) -> None:
    own = """
        seen() { compgen -v | sort; declare -p steps limit_all out limit name left code; }
        steps="one two" limit_all=100 out=$2 limit=(--timeout 5) name=mine left=3 code=0
        left() { echo $limit_all; }
        eval "$(sed -n '/^step()/,/}$/p' "$1")"
        seen > "$2/before"; seen > "$2/before"
        step one 20 true; step two 20 sh -c 'exit 3'
        seen > "$2/after"
        diff "$2/before" "$2/after"
    """
    script = ROOT / f"benchmarks/gpu/{name}.sh"
    ran = subprocess.run(
        ["bash", "-c", own, "bash", script, tmp_path], capture_output=True, text=True, check=False
    )
    assert "== one: code 0" in ran.stdout
    assert "== two: code 3" in ran.stdout
    assert ran.returncode == 0, f"{ran.stdout}{ran.stderr}"


def test_tables_show_what_was_measured_and_not_what_was_withdrawn() -> None:
    from benchmarks.embodied_tables import iterations_table

    results = ROOT / "benchmarks/results/gpu"
    result = json.loads((results / "embodied_libero.json").read_text())
    result["withdrawn"] = {"hybrid": "its stages did not overlap"}
    lines = {line.split(" | ")[0]: line for line in iterations_table(result).splitlines()}
    counted = [r for r in result["iterations"] if r["variant"] == "colocated" and not r["warm_up"]]
    assert f"| {len(counted)} |" in lines["| colocated"]
    assert f"{min(r['simulator_steps_per_s'] for r in counted):.1f}" in lines["| colocated"]
    assert lines["| hybrid"].split(" | ")[1] == "withdrawn: its stages did not overlap"
    assert not any(c.isdigit() for c in lines["| hybrid"].split(" | ")[3])
    alone = iterations_table(json.loads((results / "embodied_mujoco_warp_mps.json").read_text()))
    assert "variant" not in alone  # no complete iterations were measured there
    assert "| serial |" in alone


def test_the_table_of_an_optimisation_says_what_it_gained_and_at_most_could() -> None:
    from benchmarks.embodied_tables import optimised_table

    result = json.loads((ROOT / "benchmarks/results/gpu/optimize_libero.json").read_text())
    table = optimised_table(result)
    lines = {line.split(" | ")[0]: line.split(" | ") for line in table.splitlines()}
    medians = result["summary"]
    for name, told in medians.items():
        row = lines[f"| {name.replace('native', 'colocated', 1)}"]
        assert row[2] == str(told["iterations"])
        assert row[3].startswith(f"{told['steps_per_s']:.1f} (")
    todays = ("native", "colocated-pipe", "hybrid", "hybrid-pipe")
    best = max(m["steps_per_s"] for name, m in medians.items() if name.partition(",")[0] in todays)
    assert float(lines["| optimised"][4]) == pytest.approx(
        medians["optimised"]["steps_per_s"] / best, abs=1e-3
    )
    assert "by hand" not in lines  # it ran one warm-up alone
    most = medians["optimised"]["most_speedup"]["any graph"]
    assert lines["| bound, any graph"][1].startswith(f"{most:.2f} times as fast")
    assert any("replayed" in line for line in lines)
    # today's results tell beside the bound what would hold if kernels took turns, and how far apart both are
    limit = {"name": "GPU time slices, kernels in turn", "least_s": 4.0}
    over: dict[str, Any] = {"iterations": 3, "least_s": 3.5, "median_s": 3.6, "most_s": 3.8}
    over["assumed"] = {limit["name"]: {"least_s": 3.9, "median_s": 4.0, "most_s": 4.1}}
    new = {"least_s": 3.6, "binding": "SM time", "limits": [], "assumed": [limit], "over_iterations": over}
    medians["optimised"]["most_speedup"]["any graph"] = 2.0
    told = optimised_table(result | {"bound": {"any graph": new}})
    between = "{} to {} s in 3 native iterations |"
    assert (
        "| bound, any graph | 2.00 times as fast; 3.60 s, by SM time; " + between.format("3.50", "3.80")
        in told
    )
    beside = f"| beside it, any graph | 1.80 times as fast; 4.00 s, by {limit['name']}; "
    assert beside + between.format("3.90", "4.10") in told


def _of_one_iteration(name: str, weights: str) -> dict[str, Any]:
    """A stored result, as if all of its orders had trained the same iteration."""
    result: dict[str, Any] = json.loads((ROOT / f"benchmarks/results/gpu/{name}.json").read_text())
    kept = {"kept": True, "iteration": 2, "updates": 4, "weights": weights}
    return {**result, "same_iteration": kept}


def test_a_gain_under_a_daemon_is_told_over_the_best_without_one_of_the_same_iteration() -> None:
    from benchmarks.embodied_tables import optimised_table

    mps, off = (_of_one_iteration(f"optimize_mujoco_warp_{name}", "a") for name in ("mps", "off"))
    (line,) = (x for x in optimised_table(mps, [off]).splitlines() if "with an MPS daemon or without" in x)
    gain = mps["summary"]["by hand"]["steps_per_s"] / off["summary"]["native"]["steps_per_s"]
    assert line.startswith(
        f"| `by hand` over the best of today's with an MPS daemon or without | {gain:.3f}:"
    )
    assert "colocated without a daemon, 248.3 steps/s" in line
    assert "weights of the same bits" in line
    assert "both runs" not in optimised_table(off, [mps])  # its own run has the best: no other is told of
    off["same_iteration"]["weights"] = "b"
    assert "weights of other bits" in optimised_table(mps, [off])
    assert "All train the same iteration, number 2" in optimised_table(mps, [off])
    # others cannot be compared
    plain = {k: v for k, v in off.items() if k != "same_iteration"}
    later = {**off, "same_iteration": {**off["same_iteration"], "iteration": 3}}
    heavier = {**off, "config": {**off["config"], "substeps": 429}}
    for other in (plain, later, heavier, mps):
        assert "or without" not in optimised_table(mps, [other])
    assert "or without" not in optimised_table({k: v for k, v in mps.items() if k != "same_iteration"}, [off])


def test_runs_stored_before_there_were_turns_on_cores_are_of_the_same_configuration() -> None:
    from benchmarks.embodied_tables import optimised_table

    mps, off = (_of_one_iteration(f"optimize_mujoco_warp_{name}", "a") for name in ("mps", "off"))
    mps["config"] = {**mps["config"], "simulator_cores": 0}
    assert "with an MPS daemon or without" in optimised_table(mps, [off])
    mps["config"]["simulator_cores"] = 16
    table = optimised_table(mps, [off])
    assert "with an MPS daemon or without" not in table
    assert "16 at a time on the cores" in table


def test_tables_of_parts_are_those_of_their_results() -> None:
    from benchmarks.part_tables import answer_cost_table, rollout_quota_table

    results = ROOT / "benchmarks/results/gpu"
    cost = json.loads((results / "answer_cost.json").read_text())
    lines = {tuple(x.split(" | ")[:2]): x.split(" | ") for x in answer_cost_table(cost).splitlines()}
    each = [r["answer_ms"] for r in cost["rows"] if (r["batch"], r["way"]) == (16, "captured")]
    assert lines["| 16", "captured"][6:8] == [f"{sum(each) / len(each):.1f}", "1.00"]
    assert lines["| 80", "compiled"][2:8] == ["0", "", "", "", "", ""]  # its time was over
    quota = json.loads((results / "rollout_quota_mujoco_warp.json").read_text())
    levels = {x.split(" | ")[0]: x.split(" | ") for x in rollout_quota_table(quota).splitlines()}
    best = quota["quotas"]["quotas"]["rollout"]
    told = quota["summary"][f"{best} %"]
    rounds = [str(told["chunks"][str(c)]["rounds"]) for c in range(3)]
    assert sum(map(int, rounds)) == told["rounds"]
    assert levels[f"| {best} %"][1:4] == [str(told["sms"]), " + ".join(rounds), f"{told['time_s']:.3f}"]
    assert levels["| 100 %"][4:6] == ["", ""]
    assert f"Decision of Algorithm 2: {best} % takes {levels[f'| {best} %'][4]}" in rollout_quota_table(quota)


def test_a_table_says_which_equality_held_and_which_replay_failed() -> None:
    from benchmarks.embodied_tables import optimised_table

    result = json.loads((ROOT / "benchmarks/results/gpu/optimize_libero_again.json").read_text())
    assert "log-probabilities of recorded chains were not evaluated" in optimised_table(result)
    same: dict[str, Any] = {
        "weights_abs": 0.0,
        "weights_rel": 0.0,
        "updates_rel": 0.0,
        "losses_abs": 0.0,
        "losses_rel": 0.0,
    }
    same |= {"equality": "bitwise", "holds": True}
    near = same | {"weights_abs": 2e-6, "updates_rel": 0.034, "losses_abs": 0.5, "losses_rel": 0.1}
    told = {
        "native": same,
        "optimised": near | {"equality": "semantic record"},
        "colocated-pipe": near | {"equality": "none", "holds": False},
    }
    for row in result["iterations"]:
        if not row["warm_up"] and row["variant"] in told:
            row["against_native"] = told[row["variant"]]
    step = next(s for name, s in result["steps"].items() if name == "optimised_replay")
    step |= {"evaluated": 0.2, "log_prob_tolerance": 0.5, "chain_tolerance": 0.03, "passed": False}
    cells = (x.strip("| ").split(" | ", 1) for x in optimised_table(result).splitlines())
    lines = {row[0]: row[-1] for row in cells}
    beside = ", beside native training of the same iteration"
    assert lines[f"trained by `colocated` once more{beside}"] == "bitwise: weights, losses and minibatches"
    assert lines[f"trained by `optimised`{beside}"] == (
        "semantic record; bits differ: weights by at most 2.0e-06, what it changed of them by 3.4 % of its"
        " norm, losses by at most 5.0e-01 (relative 1.0e-01)"
    )
    assert lines[f"trained by `colocated-pipe`{beside}"] == "NOT EQUAL: semantic records differ"
    assert lines["native answers to 4 calls of `optimised`, replayed"].endswith(
        "recorded chains by 2.0e-01 (allowed 5.0e-01, of points of chains 3.0e-02): FAILED"
    )
