"""Graph files whose facts are none that an optimisation writes, with a hash that fits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlprof.errors import UnreadableError
from rlprof.overlap.optimize.graph_file import GraphFile
from rlprof.workloads.embodied.config import configure
from rlprof.workloads.embodied.earlier_graph import EarlierGraph
from rlprof.workloads.embodied.graph_check import check_graph
from rlprof.workloads.embodied.graph_facts import MOST_SPARES
from rlprof.workloads.embodied.levers import kept_levers

ODD: list[Any] = [5, 1.5, float("nan"), float("inf"), True, "x", ["x", 1], [[]]]


def written(folder: Path, **facts: Any) -> Path:
    path = folder / "graph.json"
    GraphFile("iteration", (), "native", "graph", facts).write(path)
    return path


@pytest.mark.parametrize("name", ["levers", "chosen", "config", "stream_priorities", "asked", "kept"])
@pytest.mark.parametrize("value", ODD, ids=str)
def test_facts_of_another_type_are_refused(tmp_path: Path, name: str, value: Any) -> None:
    path = written(tmp_path, **{name: value})
    with pytest.raises(UnreadableError, match=f"graph.json: says that {name} is .* Next: optimise again"):
        kept_levers(path)
    with pytest.raises(UnreadableError, match=f"says that {name} is"):
        check_graph(configure("tiny"), GraphFile.read(path), path)
    with pytest.raises(UnreadableError, match=f"says that {name} is"):
        EarlierGraph.read(path, tmp_path / "quotas.json")


@pytest.mark.parametrize("value", [-1, MOST_SPARES + 1, 10**30, *ODD[1:]], ids=str)
def test_so_are_spare_simulators_that_nobody_can_have(tmp_path: Path, value: Any) -> None:
    with pytest.raises(UnreadableError, match="says that spares is"):
        kept_levers(written(tmp_path, spares=value))


@pytest.mark.parametrize("facts", ["levers", "chosen"])
@pytest.mark.parametrize("value", ["2", [], {}, 1.5, True, -1, 10**30, None], ids=str)
def test_so_are_values_of_levers(tmp_path: Path, facts: str, value: Any) -> None:
    path = written(tmp_path, **{facts: {"workers": value}})
    with pytest.raises(UnreadableError, match=r"graph.json: has a lever of which workers is"):
        kept_levers(path)


def test_facts_of_an_optimisation_are_taken(tmp_path: Path) -> None:
    levers = {"workers": 2, "rendering": "egl", "painters": None, "cuda_graph": True}
    facts = {
        "spares": 1,
        "levers": levers,
        "chosen": {},
        "stream_priorities": {"rollout": -1},
        "kept": ["workers"],
    }
    assert kept_levers(written(tmp_path, **facts)) == levers
    assert kept_levers(written(tmp_path, levers=None, spares=None)) == {}
