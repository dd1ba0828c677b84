"""Results of GPU runs on their way into the checkout: what is placed, what is refused, what they lose."""

from __future__ import annotations

import json
import shutil
import tarfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import place_rose, searches
from benchmarks.gpu import private
from rlprof.reproduce.session import stored
from tests.conftest import ROOT
from tests.reproduce.rose import made


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """The papers' numbers, and results of earlier runs."""
    there = made.checkout(tmp_path / "checkout", earlier=made.run(), quota=made.tuning(times={100: 5.0}))
    (there / "reproductions").mkdir()
    shutil.copytree(ROOT / "datasets" / "papers", there / "datasets" / "papers")
    for path in (ROOT / "datasets").glob("vla_small_h200.rlprof"):
        shutil.copyfile(path, there / "datasets" / path.name)
    return there


def left(folder: Path, **documents: Any) -> Path:
    for name, document in documents.items():
        made.write(folder / f"{name}.json", document)
    return folder


def test_a_run_becomes_tables_and_comparisons(checkout: Path, tmp_path: Path) -> None:
    out = left(
        tmp_path / "out",
        optimize_libero=made.optimised(),
        embodied_mujoco_warp=made.run("mujoco_warp"),
        optimisation={"format": "rlprof optimisation"},
        decisions={},
    )
    done = place_rose.place([out], checkout)
    assert not done.refused
    assert {p.name for p in done.files} == {"optimize_libero.json", "embodied_mujoco_warp.json"}
    tables = {p.name for p in place_rose.make_tables(checkout)}
    measured = {"alone", "schedules", "quota", "over_time", "ablation", "overhead", "reasons", "activity"}
    assert tables == {f"{name}.h200.csv" for name in measured}
    assert not place_rose.make_tables(checkout)  # nothing is new
    shown = stored("rose/fig14b", preset="h200", repository=checkout)
    assert shown.compared()[1].ours == pytest.approx(1.3)
    assert "measured on NVIDIA H200" in shown.origins


def searched(document: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The whole search of a run, as `benchmarks.gpu.optimize` writes it beside the run's result."""
    decisions = [
        {
            "what": "candidates", "round": 1, "target": "iteration/epoch/step", "candidates": [],
            "refused": [{"steps": "split epoch groups=2", "reason": "epoch[0]/chunk[1]/step needs it"}],
        },
        {"what": "ended", "reason": "done", "steps": [], "graph": "g", "stopped": False},
    ]  # fmt: skip
    calls = [["epoch[0]/chunk[1]/step", "epoch/chunk/step", "env", 0.1234567891, 1.1234567891]]
    return {
        "format": "rlprof optimisation", "version": 1, "facts": {"config": document["config"]},
        **document["optimisation"], "timelines": {"before": calls, "after": []}, "decisions": decisions,
        **more,
    }  # fmt: skip


def test_decisions_of_a_search_are_kept_small_under_the_name_of_its_run(
    checkout: Path, tmp_path: Path
) -> None:
    document = made.optimised()
    document["argv"]["name"] = "_ten"
    outs = [
        left(tmp_path / name, optimize_libero_ten=document, optimisation_ten=searched(document))
        for name in "ab"
    ]
    (outs[0] / "optimisation_ten.json").unlink()  # this one was cut short
    done = place_rose.place(outs, checkout)
    assert not done.refused
    kept = {str(p.relative_to(checkout / "benchmarks" / "results")): p for p in done.files}
    assert set(kept) == {
        "gpu/optimize_libero_ten.json", "gpu/optimize_libero_ten_2.json",
        "searches/optimize_libero_ten_2.json",
    }  # fmt: skip
    file = kept["searches/optimize_libero_ten_2.json"]
    found = json.loads(file.read_text())
    assert found["decisions"] == searched(document)["decisions"]  # ids of calls are whole
    assert found["timelines"]["before"] == [
        ["epoch[0]/chunk[1]/step", "epoch/chunk/step", "env", 0.12346, 1.12346]
    ]
    assert found["machine"] == document["machine"]
    assert file.stat().st_size < len(json.dumps(found, indent=1))
    assert "| 1 | step | split epoch groups=2 |  |  | refused: epoch[0]/chunk[1]/step needs it |" in (
        searches.search_table(found)
    )


def test_a_search_of_another_run_is_not_taken_for_its_own(checkout: Path, tmp_path: Path) -> None:
    document = made.optimised()
    other = searched(document, overhead={"net_s": 1.0})
    done = place_rose.place([left(tmp_path / "out", optimize_libero=document, optimisation=other)], checkout)
    (why,) = done.refused.values()
    assert "is not the search of optimize_libero.json" in why
    assert [p.parent.name for p in done.files] == ["gpu"]  # the run itself is whole


def test_what_the_command_itself_found_on_a_gpu_is_kept(checkout: Path, tmp_path: Path) -> None:
    document = made.optimised()
    (file,) = place_rose.place([left(tmp_path / "out", result=searched(document))], checkout).files
    assert file == checkout / "benchmarks" / "results" / "searches" / "cli_libero.json"
    assert "machine" not in json.loads(file.read_text())
    left(tmp_path / "out", machine=document["machine"])
    (file,) = place_rose.place([tmp_path / "out"], checkout).files
    found = json.loads(file.read_text())
    assert found["machine"] == document["machine"]
    assert found["facts"]["hardware"] == {
        "date": "2026-11-30", "gpu": "NVIDIA H200", "driver": "580.1", "torch": "2.11.0"
    }  # fmt: skip
    on_a_processor = made.optimised(device="cpu")
    done = place_rose.place([left(tmp_path / "cpu", result=searched(on_a_processor))], checkout)
    assert not done.files


def test_what_is_packed_is_found_and_equal_names_are_kept_apart(checkout: Path, tmp_path: Path) -> None:
    first, second = (
        left(tmp_path / name, optimize_libero=made.optimised(seconds=n)) for n, name in enumerate("ab")
    )
    with tarfile.open(second / "rest.tar.gz", "w:gz") as packed:
        packed.add(second / "optimize_libero.json", "optimize_libero.json")
    (second / "optimize_libero.json").unlink()
    done = place_rose.place([first, second], checkout)
    assert [p.name for p in done.files] == ["optimize_libero.json", "optimize_libero_2.json"]
    assert [json.loads(p.read_text())["seconds"] for p in done.files] == [0, 1]


def test_names_of_the_card_the_user_and_folders_are_lost(checkout: Path, tmp_path: Path) -> None:
    document = made.optimised()
    document["argv"] |= {"graph": "/mnt/somewhere/deep/graph.json"}
    document["steps"]["levels"] = {
        "ok": False,
        "error": "MpsError: a daemon of user somebody in /tmp/rlprof-mps-1000/0a1b2c3d: see /root/run/log",
        "gpu": {"uuid": "GPU-0a1b2c3d-4e5f", "name": "NVIDIA H200"},
        "folder": "/tmp/x",
    }
    document["steps"]["replay"] = {
        "ok": True,
        "node": "iteration/generate_rollouts/chunk",
        "rate": "3 steps/s",
    }
    (file,) = place_rose.place([left(tmp_path / "out", optimize_libero=document)], checkout).files
    text = file.read_text()
    for word in ("somebody", "/root", "/tmp", "/mnt", "0a1b2c3d", "uuid", "folder"):
        assert word not in text
    kept = json.loads(text)
    assert kept["argv"]["graph"] == "graph.json"
    assert kept["steps"]["replay"] == document["steps"]["replay"]  # nodes and units are no folders
    assert kept["iterations"] == document["iterations"]


@pytest.mark.parametrize(
    "word",
    ["/home/somebody", "api_key=0123456789", "somebody@example.com", "00000000:1B:00.0", "GPU-0a1b2c3d-4e5f"],
)
def test_what_still_tells_of_a_machine_or_a_person_is_not_placed(
    checkout: Path, tmp_path: Path, word: str
) -> None:
    document = made.optimised()
    document["steps"]["build"][word] = "in a place where nothing is replaced"
    done = place_rose.place([left(tmp_path / "out", optimize_libero=document)], checkout)
    assert not done.files
    (why,) = done.refused.values()
    assert "a machine or a person" in why
    assert not (checkout / "benchmarks" / "results" / "gpu" / "optimize_libero.json").exists()


def test_the_host_name_of_this_machine_is_not_placed(
    checkout: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = {
        "host name": {"node-1234"},
        "user": {"somebody"},
        "home folder": set[str](),
        "machine": set[str](),
    }
    monkeypatch.setattr(private, "own_words", lambda: words)
    out = left(tmp_path / "out", optimize_libero=made.optimised(note="ran on node-1234"))
    (why,) = place_rose.place([out], checkout).refused.values()
    assert "host name: nod" in why


def test_runs_that_measured_nothing_are_refused_with_the_reason(checkout: Path, tmp_path: Path) -> None:
    failed = made.run()
    failed["iterations"] = []
    failed["steps"] = {"build": {"ok": False, "error": "OutOfMemoryError: 3 GiB"}}
    out = left(tmp_path / "out", embodied_libero=failed, embodied_arm=made.run("mujoco_arm", device="cpu"))
    (out / "optimize_libero.json").write_text("{")
    left(out, mps={"probe": {"machine": {}}})
    done = place_rose.place([out], checkout)
    why = {Path(path).name: reason for path, reason in done.refused.items()}
    assert not done.files
    assert "OutOfMemoryError: 3 GiB" in why["embodied_libero.json"]
    assert why["embodied_arm.json"] == "no run on a GPU, and no optimisation"
    assert why["optimize_libero.json"].startswith("no JSON")
    assert why["mps.json"].startswith("it is not complete")


def test_a_search_of_a_quota_alone_is_worth_something(checkout: Path, tmp_path: Path) -> None:
    document = made.optimised(
        "mujoco_warp", mps=True, variants=(), quotas={"quotas": {}, "reason": "no pair"}
    )
    del document["optimisation"]
    document["steps"] = {"quotas": {"ok": True}}
    assert place_rose.place([left(tmp_path / "out", optimize_mujoco_warp_mps=document)], checkout).files


def test_levers_are_placed_with_the_others(checkout: Path, tmp_path: Path) -> None:
    machine = made.run()["machine"]
    document = {"command": "levers", "machine": machine, "steps": {"probe": {"ok": True}}}
    (file,) = place_rose.place([left(tmp_path / "out", levers_libero=document)], checkout).files
    assert json.loads(file.read_text()) == document


def test_a_check_writes_nothing(checkout: Path, tmp_path: Path) -> None:
    out = left(tmp_path / "out", optimize_mujoco_arm=made.optimised("mujoco_arm", device="cpu"))
    before = sorted(checkout.rglob("*"))
    (file,) = place_rose.place([out], checkout, check=True).files
    assert file == checkout / "benchmarks" / "results" / "optimize" / "optimize_mujoco_arm.json"
    assert sorted(checkout.rglob("*")) == before


@pytest.mark.parametrize(
    "damage",
    [
        {"steps": None}, {"steps": {"levels": 3}}, {"iterations": 5}, {"iterations": [{}]},
        {"command": "selftest", "config": None}, {"command": "levers", "config": {}, "machine": None},
    ],
)  # fmt: skip
def test_one_damaged_result_is_refused_and_the_others_are_placed(
    checkout: Path, tmp_path: Path, damage: dict[str, Any]
) -> None:
    out = left(tmp_path / "out", optimize_libero=made.optimised(), zz=made.run("mujoco_warp") | damage)
    done = place_rose.place([out], checkout)
    assert [p.name for p in done.files] == ["optimize_libero.json"]
    assert list(done.refused) == [str(out / "zz.json")]
    assert done.refused[str(out / "zz.json")].startswith("it is not complete")


@pytest.mark.parametrize("keeps", [0, 7, 60])
def test_a_damaged_archive_is_refused(checkout: Path, tmp_path: Path, keeps: int) -> None:
    out = left(tmp_path / "out", optimize_libero=made.optimised(), embodied=made.run("mujoco_warp"))
    archive = out / "rest.tar.gz"
    with tarfile.open(archive, "w:gz") as packed:
        packed.add(out / "embodied.json", "embodied.json")
    (out / "embodied.json").unlink()
    archive.write_bytes(archive.read_bytes()[:keeps])
    done = place_rose.place([out], checkout)
    assert [p.name for p in done.files] == ["optimize_libero.json"]
    assert done.refused[str(archive)].startswith("no archive: ")


def test_a_folder_without_a_result_is_named(checkout: Path, tmp_path: Path) -> None:
    empty, foreign = left(tmp_path / "empty", decisions={}), left(tmp_path / "foreign", x={"y": 1})
    done = place_rose.place([empty, foreign], checkout)
    assert done.refused == dict.fromkeys(map(str, (empty, foreign)), "no result of a run is in it")
