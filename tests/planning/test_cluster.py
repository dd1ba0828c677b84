from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from rlprof.errors import UnreadableError
from rlprof.planning.cluster import Cluster, Constant
from rlprof.planning.errors import HardwareError, PlanError, TopologyError
from rlprof.planning.hardware_file import (
    cluster_named,
    hardware_from_toml,
    hardware_to_toml,
    read_hardware,
    shipped_hardware,
    write_hardware,
)
from rlprof.planning.plan import Assignment, Box, Parallelism, Plan, tier_between
from rlprof.planning.workload import Workload
from tests.planning.made import at, cluster, hardware
from tests.planning.test_pipeline import RIGHT


def test_the_shipped_hardware_reads_and_says_what_is_measured() -> None:
    assert {"a100-40gb", "gh200", "h100", "h200"} <= set(shipped_hardware())
    for name in shipped_hardware():
        h = read_hardware(name)
        assert h.name == name
        for constant in h.constants.values():
            assert constant.source
            assert constant.status == "nominal" or (constant.samples and constant.date and constant.gpu)


def test_hardware_survives_a_file(tmp_path: Path) -> None:
    measured = Constant(1e12, "FLOP/s", "calibrated", "GEMM sweep", 40, "2026-01-02", "some GPU", 0.03)
    h = replace(hardware(), constants={**hardware().constants, "peak_flops": measured})
    write_hardware(h, tmp_path / "hw.toml")
    read = read_hardware(str(tmp_path / "hw.toml"))
    assert read == h
    assert read.constants == h.constants
    assert "peak_flops" not in read.nominal


def broken(text: str, change: str) -> str:
    before, _, after = change.partition(" -> ")
    assert before in text
    return text.replace(before, after, 1)


PEAK = '[constants.peak_flops]\nvalue = 400000000000000.0\nunit = "FLOP/s"'


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ('format = "rlprof.hardware" -> format = "x"', '"format" is not "rlprof.hardware"'),
        ("version = 1 -> version = 7", "version 7, known is 1"),
        ("gpus_per_node = 4 -> gpus_per_node = 0", "gpus_per_node is 0"),
        ("value = 400000000000000.0 -> value = -1.0", "peak_flops is -1.0"),
        ("value = 400000000000000.0 -> value = nan", "peak_flops is nan"),
        ("value = 400000000000000.0 -> value = 0", "peak_flops is 0"),
        ("value = 400000000000000.0 -> value = 1e-320", "peak_flops is 1e-320.*at least 1e-30"),
        ('value = 400000000000000.0 -> value = "fast"', "peak_flops is 'fast', no number"),
        ('unit = "FLOP/s" -> unit = "TFLOP/s"', "peak_flops is in 'TFLOP/s'.*give it in 'FLOP/s'"),
        ("[constants.peak_flops] -> [constants.peak]", "unknown constant 'peak'"),
        (f"{PEAK} -> [constants.extra]", "neither value nor unit"),
        ('status = "nominal" -> status = "calibrated"', "called calibrated without samples, date and gpu"),
        ('status = "nominal" -> status = "guessed"', "status 'guessed'"),
        ("version = 1 -> version = ", "no TOML"),
        ('gpu = "no real GPU" -> colour = "red"', "unknown key 'colour'"),
        ("value = 0.1 -> value = 1.0", "leaves no memory"),
        ('source = "invented" -> source = ""', "peak_flops has no source"),
        ('unit = "FLOP/s" -> date = "today"', "peak_flops lacks 'unit'"),
    ],
)
def test_a_broken_hardware_file_is_one_clear_error(change: str, said: str) -> None:
    text = hardware_to_toml(hardware())
    with pytest.raises(HardwareError, match=said) as caught:
        hardware_from_toml(broken(text, change), "mine.toml")
    assert "\n" not in str(caught.value)


def test_a_missing_constant_is_named() -> None:
    rest = {k: v for k, v in hardware().constants.items() if k not in ("gamma_m", "p2p.inter_rack.alpha_s")}
    with pytest.raises(HardwareError, match=r"lacks gamma_m, p2p.inter_rack.alpha_s"):
        replace(hardware(), constants=rest)


def test_a_tier_that_was_not_measured_is_only_missed_where_it_is_used() -> None:
    one_node = {k: v for k, v in hardware().constants.items() if "inter" not in k}
    h = replace(hardware(), constants=one_node)
    assert Cluster(h, 1, 1, 4).size == 4
    with pytest.raises(HardwareError, match=r"no constant 'collective.inter_node.bandwidth'"):
        Cluster(h, 1, 2, 4)


@pytest.mark.parametrize(
    ("text", "error", "said"),
    [
        ("gh200", TopologyError, "is no cluster"),
        ("gh200:2x4", TopologyError, "is no cluster"),
        ("gh200:\uff11x\uff12x\uff14", TopologyError, "is no cluster"),  # full-width digits
        ("gh200:0x1x4", TopologyError, "racks is 0"),
        ("gh200:1x-1x4", TopologyError, "nodes_per_rack is -1"),
        ("gh200:1x1x8", TopologyError, "at most 4 GPUs, not 8"),
        ("gh9000:1x1x1", HardwareError, "unknown hardware 'gh9000'.*gh200"),
        ("./nowhere.toml:1x1x1", UnreadableError, "nowhere.toml"),
    ],
)
def test_clusters_that_cannot_be(text: str, error: type[Exception], said: str) -> None:
    with pytest.raises(error, match=said):
        cluster_named(text)


def test_gpus_are_numbered_rack_by_rack() -> None:
    c = cluster_named("gh200:2x8x4")
    assert (c.size, str(c)) == (64, "gh200:2x8x4")
    assert c.gpu_name(37) == "1/1/1"
    assert Box((1, 0, 1), (1, 2, 2)).gpus(c) == (33, 34, 37, 38)


def test_levels_of_the_network() -> None:
    here = Box((0, 0, 0), (1, 1, 2))
    assert [tier_between(here, Box(o, (1, 1, 1))) for o in ((0, 0, 3), (0, 2, 0), (1, 0, 0))] == [
        "intra_node", "inter_node", "inter_rack",
    ]  # fmt: skip
    assert [Box((0, 0, 0), e).tier for e in ((1, 1, 4), (1, 2, 1), (2, 1, 1))] == [
        "intra_node",
        "inter_node",
        "inter_rack",
    ]


def test_what_if() -> None:
    h = hardware().with_value("memory_bytes", 50e9, "what if")
    assert h.value("memory_bytes") == 50e9
    assert hardware().value("memory_bytes") == 80e9
    with pytest.raises(HardwareError, match="unknown constant"):
        hardware().with_value("memory", 1.0, "x")


WORK = Workload(16, 8, 8)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (at(3, 2), "plan of 'g': the box .* is not within"),
        (Assignment(Box((0, 0, 0), (1, 1, 4)), Parallelism(2, 1, 1)), "needs 2 GPUs, the box .* has 4"),
        (at(0, 3, (1, 3, 1)), "8 layers do not divide into 3 pipeline stages"),
        (at(0, 3, (3, 1, 1)), "16 sequences do not divide into 3 replicas"),
        (at(0, 1, (1, 1, 1), 5), "16 sequences do not divide into 1 replicas of 5"),
        (at(0, 1, (1, 1, 1), 0), "0 microbatches"),
        (Assignment(Box((0, 0, 0), (1, 2, 1)), Parallelism(1, 1, 2)), "stays within a node"),
    ],
)
def test_a_plan_that_does_not_fit_names_the_invocation(wrong: Assignment, said: str) -> None:
    plan = Plan({"g": wrong, "i": at(0), "t": at(0)})
    with pytest.raises(PlanError, match=said):
        plan.check(RIGHT, WORK, cluster(1, 2, 4))


def test_a_plan_names_exactly_the_invocations() -> None:
    with pytest.raises(PlanError, match="says nothing about i, t"):
        Plan({"g": at(0)}).check(RIGHT, WORK, cluster())
    with pytest.raises(PlanError, match="names x, no invocation"):
        Plan(dict.fromkeys("gitx", at(0))).check(RIGHT, WORK, cluster())
