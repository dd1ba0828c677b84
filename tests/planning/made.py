"""Problems made for tests: the constants of the worked example, small clusters, random plans."""

from __future__ import annotations

from hypothesis import strategies as st

from rlprof.planning.cluster import Cluster, Constant, Hardware, unit_of
from rlprof.planning.pipeline import Pipeline
from rlprof.planning.plan import Assignment, Box, Parallelism, Plan
from rlprof.planning.shapes import ModelShape
from rlprof.planning.workload import Workload

#: The invented constants of the worked example, and a rack tier of the same rates as between nodes.
EXAMPLE = {
    "peak_flops": 400e12,
    "memory_bandwidth": 3e12,
    "memory_bytes": 80e9,
    "reserved_frac": 0.10,
    "gamma_m": 128,
    "gamma_k": 256,
    "nongemm_s": 50e-6,
    "nongemm_sequences": 8,
    "nongemm_tokens": 512,
    "collective.intra_node.alpha_s": 5e-6,
    "collective.intra_node.bandwidth": 150e9,
    "collective.inter_node.alpha_s": 10e-6,
    "collective.inter_node.bandwidth": 40e9,
    "collective.inter_rack.alpha_s": 10e-6,
    "collective.inter_rack.bandwidth": 40e9,
    "p2p.intra_node.alpha_s": 3e-6,
    "p2p.intra_node.bandwidth": 100e9,
    "p2p.inter_node.alpha_s": 8e-6,
    "p2p.inter_node.bandwidth": 20e9,
    "p2p.inter_rack.alpha_s": 8e-6,
    "p2p.inter_rack.bandwidth": 20e9,
}


def hardware(gpus_per_node: int = 4, **changed: float) -> Hardware:
    """The worked example's constants, some of them changed."""
    values = {**EXAMPLE, **changed}
    constants = {
        name: Constant(value, unit_of(name) or "", source="invented") for name, value in values.items()
    }
    return Hardware("example", "no real GPU", gpus_per_node, constants)


def cluster(racks: int = 1, nodes: int = 4, gpus: int = 4, **changed: float) -> Cluster:
    """A cluster of the worked example's hardware."""
    return Cluster(hardware(gpus, **changed), racks, nodes, gpus)


#: A model small enough for any plan; eight layers, so that it divides into stages.
TINY = ModelShape("tiny", 8, 64, 128, 4, 2, 100)


def line(first: int, count: int) -> Box:
    """GPUs of one node."""
    return Box((0, 0, first), (1, 1, count))


def at(
    first: int, count: int = 1, parallelism: tuple[int, int, int] | None = None, microbatches: int = 1
) -> Assignment:
    """GPUs of one node, by default data parallel."""
    return Assignment(line(first, count), Parallelism(*(parallelism or (count, 1, 1))), microbatches)


@st.composite
def plans(draw: st.DrawFn, pipeline: Pipeline, workload: Workload, machines: Cluster) -> Plan:
    """Plans of boxes of one node or of whole nodes, that pass `Plan.check`."""
    assignments = {}
    for i, v in enumerate(pipeline.invocations):
        layers = pipeline.model_of(i).shape.layers
        nodes = draw(st.sampled_from([n for n in (1, 2, 4) if n <= machines.nodes_per_rack]))
        gpus = machines.gpus_per_node
        if nodes == 1:
            gpus = draw(st.sampled_from([g for g in (1, 2, 4) if g <= machines.gpus_per_node]))
        size = nodes * gpus
        tensor = draw(st.sampled_from([t for t in (1, 2, 4) if gpus % t == 0]))
        stages = draw(st.sampled_from([p for p in (1, 2, 4) if size // tensor % p == 0 and layers % p == 0]))
        data = size // tensor // stages
        mb = draw(st.sampled_from([m for m in (1, 2, 4) if workload.sequences % (data * m) == 0]))
        box = Box(
            (
                draw(st.integers(0, machines.racks - 1)),
                draw(st.integers(0, machines.nodes_per_rack // nodes - 1)) * nodes,
                draw(st.integers(0, machines.gpus_per_node // gpus - 1)) * gpus,
            ),
            (1, nodes, gpus),
        )
        assignments[v.name] = Assignment(box, Parallelism(data, stages, tensor), mb)
    return Plan(assignments)
