"""What is measured: the points of each kind, by device and effort. Sizes only, nothing runs here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from rlprof.planning.calibration.raw import Point
from rlprof.planning.shapes import SHAPES, ModelShape

Preset = Literal["smoke", "quick", "full"]
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
LINKS = (*COLLECTIVES, "p2p")
#: The first of them as part of a replayed graph, as decode steps have it.
REPLAYED = "all_reduce_graph"
#: What constants of compute and memory are fitted to, and whole operators, which predictions are compared
#: with.
FITTED = ("copy", "gemm", "forward", "decode_step")
#: The same calls launched otherwise: what the host adds, and what it does not.
LAUNCHED = ("forward_graph", "decode_step_eager")
VALIDATED = ("inference", "generation", "training")


@dataclass(frozen=True, slots=True)
class Effort:
    """How much time goes into one visit of a point.

    Parameters
    ----------
    rounds : int
        Visits of each point.
    repeats : int
        Times taken at a visit.
    section_s : float
        Length of what is timed at once, of short calls.
    operator_repeats : int
        Times taken at a visit of a whole operator.
    decode_stride : int
        Of so many decode steps one is captured, and replayed for the others.
    """

    rounds: int
    repeats: int
    section_s: float
    operator_repeats: int
    decode_stride: int = 1


EFFORTS: dict[tuple[str, Preset], Effort] = {
    ("cuda", "full"): Effort(3, 5, 5e-3, 2, 16),
    ("cuda", "quick"): Effort(2, 3, 2e-3, 1, 16),
    ("cuda", "smoke"): Effort(1, 2, 1e-3, 1, 16),
    ("cpu", "full"): Effort(3, 5, 2e-2, 3),
    ("cpu", "quick"): Effort(2, 3, 1e-2, 2),
    ("cpu", "smoke"): Effort(1, 2, 1e-3, 1),
}


def effort_of(device: str, preset: Preset) -> Effort:
    """How much time to spend on a device."""
    return EFFORTS[device, preset]


def _cut(shape: ModelShape, layers: int) -> ModelShape:
    """A shape with fewer layers."""
    return replace(shape, name=f"{shape.name}/{layers}", layers=layers)


_135M, _500M, _1500M = (SHAPES[name] for name in ("smollm2-135m", "qwen2.5-0.5b", "qwen2.5-1.5b"))
_7B, _8B, _13B = (SHAPES[name] for name in ("llama2-7b", "llama3.1-8b", "llama2-13b"))
#: The sizes of llama2-3b with heads of 128: its own, of 100, suit no fast attention kernel, and the whole
#: KV cache would be copied in every step.
_3B = replace(SHAPES["llama2-3b"], name="llama2-3b-25x128", heads=25, kv_heads=25, head_dim=128)


#: Small ones for processors: every ratio of a real model, none of its size.
_SMALL: tuple[ModelShape, ...] = (
    ModelShape("cpu-2m", 4, 192, 512, 6, 2, 1000),
    ModelShape("cpu-9m", 6, 320, 896, 10, 10, 2000),
    ModelShape("cpu-23m", 6, 512, 1408, 8, 4, 4000),
)
_TINY: tuple[ModelShape, ...] = (
    ModelShape("cpu-tiny", 2, 64, 128, 4, 2, 100),
    ModelShape("cpu-tiny-wide", 2, 128, 256, 4, 4, 100),
)


def _shape(shape: ModelShape) -> dict[str, Any]:
    return asdict(shape)


def _operator(kind: str, shape: ModelShape, sequences: int, prompt: int, response: int) -> Point:
    return Point(
        kind,
        {
            "shape": _shape(shape),
            "sequences": sequences,
            "prompt_tokens": prompt,
            "response_tokens": response,
        },
    )


def kernel_points(device: str, preset: Preset) -> list[Point]:
    """Products, copies, norms and the optimizer."""
    rows: tuple[int, ...]
    if device == "cuda":
        rows = (1, 4, 16, 64, 128, 256, 512, 1024, 2048, 4096, 8192)
        pairs = [(w, w) for w in (512, 1024, 2048, 4096, 8192)] + [
            (4096, 11008),
            (11008, 4096),
            (5120, 27648),
        ]
        copies, numel = [2**n for n in range(24, 33, 2)], [2**26, 2**28, 2**30]
        cal, sizes = _7B, [(8, 512), (2, 512), (32, 512), (8, 128), (8, 2048)]
    else:
        rows = (1, 4, 16, 64, 128, 256, 512, 1024)
        pairs = [(w, w) for w in (64, 128, 256, 512, 1024)] + [(512, 1408), (1408, 512)]
        copies, numel = [2**n for n in range(22, 29)], [2**20, 2**22, 2**24]
        cal, sizes = _SMALL[2], [(8, 64), (2, 64), (16, 64), (8, 256)]
    if preset == "quick":
        rows, copies = rows[::2], copies[::2]
    if preset == "smoke":
        rows, copies, numel, sizes = (4, 64, 256), copies[:2], numel[:1], sizes[:2]
        pairs = [(w, w) for w in ((1024, 4096) if device == "cuda" else (64, 256))]
        cal = _TINY[1] if device == "cpu" else cal
    gemms = [Point("gemm", {"rows": r, "inner": k, "columns": n}) for r in rows for k, n in pairs]
    return [
        *(Point("copy", {"bytes": size}) for size in copies),
        *(Point("nongemm", {"shape": _shape(cal), "sequences": b, "tokens": t}) for b, t in sizes),
        *(Point("norms", {"shape": _shape(cal), "sequences": b, "tokens": t}) for b, t in sizes),
        *(Point("optimizer", {"parameters": n}) for n in numel),
        *gemms,
    ]


def forward_points(device: str, preset: Preset) -> list[Point]:
    """Transformer forwards and single decode steps: what F_peak and the effective bandwidth are fitted to.

    Their sizes are none of those that predictions are compared with. Small ones tell what a layer costs
    however little it does; forwards as one CUDA graph, and decode steps without one, what the host adds.
    """
    few: tuple[ModelShape, ...]
    if device == "cuda":
        shapes: tuple[ModelShape, ...] = tuple(_cut(s, 8) for s in (_3B, _7B, _13B, _1500M))
        few = (_135M, _cut(_7B, 2))
        sizes = [(1, 384), (4, 384), (16, 384), (24, 768), (8, 1536), (1, 96)]
        decodes = [(1, 512), (8, 512), (32, 512), (64, 768), (128, 320), (128, 1200), (8, 3000)]
        launched = [(1, 96), (4, 384)], [(1, 512), (32, 512)]
    else:
        shapes, few = _SMALL, _TINY[:1]
        sizes, decodes = [(1, 48), (4, 48), (12, 48), (6, 160)], [(1, 64), (4, 64), (16, 96)]
        launched = [], [(4, 64)]
    if preset == "quick":
        sizes, decodes = sizes[1::2], decodes[::2] if device == "cuda" else decodes
    if preset == "smoke":
        shapes, few = (_TINY if device == "cpu" else shapes[:1]), few[:1] if device == "cuda" else ()
        sizes, decodes = sizes[:2], decodes[:2]
    if device == "cpu":  # everything is launched in the same way
        launched = [], []
    made = [
        *(_operator("forward", s, b, length, 0) for s in shapes for b, length in sizes),
        *(_operator("decode_step", s, b, length, 0) for s in shapes for b, length in decodes),
        *(_operator("forward", s, b, length, 0) for s in few for b, length in sizes[:2]),
        *(_operator("decode_step", s, b, length, 0) for s in few for b, length in decodes[:2]),
    ]
    known = {(p.kind, p.key["sequences"], p.key["prompt_tokens"]) for p in made}
    for kind, there in zip(LAUNCHED, launched, strict=True):
        base = kind.removesuffix("_graph").removesuffix("_eager")
        made += [
            _operator(kind, s, b, length, 0)
            for s in (*few, *shapes[:2])
            for b, length in there
            if (base, b, length) in known
        ]
    return made


def validation_points(device: str, preset: Preset, role: str | None = None) -> list[Point]:
    """Whole operators of RL training, to compare predictions with: at least 60 with the full preset.

    Parameters
    ----------
    device, preset : str
        As everywhere.
    role : str, optional
        Only those of this role.
    """
    if device == "cuda":
        all_shapes = [_500M, _1500M, _3B, _7B, _8B, _13B]
        trained = [_500M, _1500M, _cut(_3B, 13), _3B, _cut(_7B, 16), _7B]
        inference = [
            (8, 128, 128),
            (16, 128, 384),
            (32, 128, 384),
            (8, 512, 128),
            (64, 128, 128),
            (16, 512, 512),
        ]
        generation = [
            (8, 128, 128),
            (32, 128, 128),
            (64, 128, 64),
            (16, 512, 128),
            (32, 256, 256),
            (96, 128, 128),
        ]
        training = [(4, 128, 384), (8, 128, 384), (16, 128, 384), (8, 512, 128), (16, 128, 128)]
    else:
        all_shapes, trained = list(_SMALL), list(_SMALL)
        inference = [
            (2, 32, 32),
            (4, 32, 64),
            (8, 32, 32),
            (8, 32, 96),
            (16, 16, 48),
            (4, 96, 32),
            (12, 64, 64),
        ]
        generation = [
            (2, 32, 16),
            (8, 32, 16),
            (16, 16, 24),
            (4, 96, 16),
            (8, 64, 32),
            (24, 16, 16),
            (4, 32, 32),
        ]
        training = [
            (2, 32, 32),
            (4, 32, 64),
            (8, 32, 32),
            (8, 32, 96),
            (16, 16, 48),
            (4, 96, 32),
            (12, 64, 64),
        ]
    if preset == "quick":
        inference, generation, training = inference[::2], generation[::2], training[::2]
    if preset == "smoke":
        all_shapes = trained = list(_TINY) if device == "cpu" else [_cut(_7B, 2)]
        inference, generation, training = inference[:3], generation[:3], training[:3]
    kinds = (
        ("inference", all_shapes, inference),
        ("generation", all_shapes, generation),
        ("training", trained, training),
    )
    return [
        _operator(kind, s, *size)
        for kind, shapes, sizes in kinds
        if role in (None, kind)
        for s in shapes
        for size in sizes
    ]


def parallel_points(device: str, count: int, preset: Preset) -> list[Point]:
    """Operators that two devices share, by tensor or data parallelism; no constant is fitted to them."""
    if count < 2:
        return []
    shapes: tuple[ModelShape, ...]
    trained: tuple[ModelShape, ...]
    data: tuple[ModelShape, ...]
    if device == "cuda":
        shapes, trained = (_7B, _8B, _13B), (_cut(_7B, 16), _7B)
        inference, training = [(16, 128, 384), (64, 128, 128)], [(8, 128, 384), (16, 128, 384)]
        generation, data = [(32, 128, 128), (96, 128, 64)], (_1500M, *trained)
    else:
        shapes = trained = data = _SMALL[:2]
        inference, training, generation = [(4, 32, 64)], [(4, 32, 64)], [(4, 32, 16)]
    if preset == "smoke":
        shapes = trained = data = _TINY[:1] if device == "cpu" else (_cut(_7B, 2),)
        inference, training, generation = inference[:1], training[:1], generation[:1]
    plan = (
        ("inference", "tensor", shapes, inference),
        ("training", "data", data, training),
        ("training", "tensor", trained, training),
        ("generation", "tensor", shapes, generation),
    )
    made = [
        (_operator(kind, s, *size), way) for kind, way, there, sizes in plan for s in there for size in sizes
    ]
    return [Point(p.kind, {**p.key, way: 2}) for p, way in made]


def link_points(device: str, count: int, preset: Preset) -> list[Point]:
    """Collectives and transfers over 2, 4, ... and all devices at hand; none for one device."""
    ranks = sorted({p for p in (2, 4, 8, 16, count) if 1 < p <= count})
    if device == "cuda":
        sizes = [2**n for n in (10, 14, 17, 20, 22, 24, 26, 28, 30)]
    else:
        sizes = [2**n for n in (10, 12, 14, 16, 18, 20, 22)]
    step = {"full": 1, "quick": 2, "smoke": 3}[preset]
    kinds = (*LINKS, REPLAYED) if device == "cuda" else LINKS
    return [
        Point(kind, {"bytes": size, "ranks": p, "tier": "intra_node"})
        for kind in kinds
        for p in (ranks if kind != "p2p" else ranks[:1])
        for size in (sizes[::step] if kind != REPLAYED else sizes[:6:step])
    ]


def shapes_in_turn(points: Iterable[Point]) -> list[Point]:
    """Order operators so that those of one model follow one another: it is built once for all of them."""

    def order(point: Point) -> tuple[str, bool, str]:
        ways = ", ".join(way for way in ("tensor", "data") if way in point.key)
        return (ways, point.kind == "training", str(point.key["shape"]["name"]))

    return sorted(points, key=order)
