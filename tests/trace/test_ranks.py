from __future__ import annotations

import pytest

from rlprof.trace.ranks import Claim, rank_in_name


@pytest.mark.parametrize(
    ("name", "rank", "group"),
    [
        ("rank-3.json.gz", 3, ""),
        ("two_ranks_rank-1.json.gz", 1, "two ranks"),
        ("rank_12.pt.trace.json", 12, ""),
        ("trace.rank7.nsys-rep", 7, "trace"),
        ("/a/rank-9/traces-r3.jsonl", 3, "traces"),
        ("RANK=4.json", 4, ""),
        ("actor_rank0.nsys-rep", 0, "actor"),
        ("rollout_rank0.nsys-rep", 0, "rollout"),
        ("worker.r11.sqlite", 11, "worker"),
    ],
)
def test_a_rank_is_found_in_a_file_name(name: str, rank: int, group: str) -> None:
    assert rank_in_name(name) == Claim(rank, group)


@pytest.mark.parametrize(
    "name",
    ["trace.json", "local_rank0.json", "localrank-1.json", "run3.sqlite", "r2d2.json", "/rank-3/trace.json"],
)
def test_a_name_without_a_rank_has_none(name: str) -> None:
    assert rank_in_name(name) is None
