"""A large capture of a made-up training run, laid out as Nsight Systems exports it.

Two processes share one GPU. Each runs steps; a step nests ``phase`` > ``layer`` > operator ranges, and some
operators launch a kernel through an API call on their thread. Rows, columns and types follow exports of
schema 3.20 (SQLite) and the parquet folders of ``nsys export`` (uncompressed, row groups of 2,048 rows).
Rows are made step by step, so memory does not grow with the size of the capture.

    python -m benchmarks.synthetic --work /some/folder
"""

from __future__ import annotations

import argparse
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

PIDS = (4242, 4343)
STEP_NS = 100_000_000
ORIGIN_NS = 5_000_000_000
TYPE_ID = 281479271677952  # GPU 0
NSYS_ROW_GROUP = 2048
PHASES, LAYERS = 4, 40
PHASE_NAMES = ("rollout", "reward", "training", "weight_sync")
OPERATORS = ("aten::linear", "aten::addmm", "aten::mul", "aten::copy_", "aten::softmax", "aten::layer_norm")
KERNELS = (
    "nvjet_sm90_tst_192x192_64x4_1x2_h_bz_coopB_bias_TNN",
    "elementwise_kernel", "vectorized_elementwise_kernel", "reduce_kernel", "flash_fwd_kernel",
)  # fmt: skip
FULL_NAMES = tuple(
    k
    if k.startswith("nvjet")
    else f"void at::native::{k}<(int)128, (int)4, at::native::Functor{i}>(int, T2, T3)"
    for i, k in enumerate(KERNELS)
)
CALL = "cudaLaunchKernel_v7000"
STRINGS = (*KERNELS, *FULL_NAMES, CALL)

#: Column types as in the exports: SQLite's, and parquet's where it is not int64.
UNSIGNED = {
    "globalTid", "globalPid", "endGlobalTid", "rangeId", "category", "domainId", "uint64Value", "typeId",
    "sourceId", "nameId",
}  # fmt: skip
TEXT = {
    "text",
    "jsonText",
    "binaryData",
    "name",
    "value_text",
    "typeName",
    "metricName",
    "chipName",
    "busLocation",
}
TABLES: dict[str, tuple[str, ...]] = {
    "NVTX_EVENTS": (
        "start", "end", "eventType", "rangeId", "category", "color", "text", "globalTid", "endGlobalTid",
        "textId", "domainId", "uint64Value", "int64Value", "doubleValue", "uint32Value", "int32Value",
        "floatValue", "jsonTextId", "jsonText", "binaryData",
    ),
    "CUPTI_ACTIVITY_KIND_KERNEL": (
        "start", "end", "deviceId", "contextId", "greenContextId", "streamId", "correlationId", "globalPid",
        "demangledName", "shortName", "mangledName", "launchType", "cacheConfig", "registersPerThread",
        "gridX", "gridY", "gridZ", "blockX", "blockY", "blockZ", "staticSharedMemory", "dynamicSharedMemory",
        "localMemoryPerThread", "localMemoryTotal", "gridId", "sharedMemoryExecuted", "graphNodeId",
        "sharedMemoryLimitConfig",
    ),
    "CUPTI_ACTIVITY_KIND_RUNTIME": (
        "start", "end", "eventClass", "globalTid", "correlationId", "nameId", "returnValue", "callchainId",
    ),
    "GPU_METRICS": ("rawTimestamp", "timestamp", "typeId", "metricId", "value"),
    "StringIds": ("id", "value"),
    "TARGET_INFO_GPU": ("vmId", "id", "name", "isDiscrete", "totalMemory", "smCount", "chipName", "cuDevice"),
    "TARGET_INFO_CUDA_DEVICE": ("gpuId", "cudaId", "pid"),
    "TARGET_INFO_CUDA_CONTEXT_INFO": (
        "nullStreamId", "hwId", "vmId", "processId", "deviceId", "contextId", "parentContextId",
        "isGreenContext",
    ),
    "TARGET_INFO_GPU_METRICS": ("typeId", "sourceId", "typeName", "metricId", "metricName"),
    "TARGET_INFO_SESSION_START_TIME": ("utcEpochNs",),
    "ANALYSIS_DETAILS": ("globalVid", "duration", "startTime", "stopTime"),
    "META_DATA_EXPORT": ("name", "value"),
    "META_DATA_CAPTURE": ("name", "value"),
}  # fmt: skip
KEY_VALUE = {"StringIds", "META_DATA_EXPORT", "META_DATA_CAPTURE"}

Columns = dict[str, object]


def is_text(table: str, column: str) -> bool:
    return column in TEXT or (table in KEY_VALUE and column == "value")


@dataclass(frozen=True)
class Size:
    """How many rows of each kind; one API call for each kernel."""

    kernels: int = 1_000_000
    ranges: int = 5_000_000
    samples: int = 1_000_000
    #: operators carry a running number, as those of PyTorch's emit_nvtx do: nearly all labels differ
    numbered: bool = False

    @property
    def steps(self) -> int:
        """Steps of both processes together; about 5,000 ranges each."""
        return max(2, round(self.ranges / 5_000))

    @property
    def end_ns(self) -> int:
        return ORIGIN_NS + (self.steps + 1) // 2 * STEP_NS + 1_000_000_000


def share(total: int, parts: int, part: int) -> int:
    """Rows of one part out of equal parts of a total."""
    return total * (part + 1) // parts - total * part // parts


def global_tid(pid: int) -> int:
    return (1 << 48) | (pid << 24) | pid


def step_rows(size: Size, step: int, seed: int) -> dict[str, Columns]:
    """Ranges, calls and kernels of one step of one process, each sorted by start."""
    rng = np.random.default_rng((seed, step))
    pid = PIDS[step % 2]
    tid = global_tid(pid)
    # the second process runs half a step later
    begin = ORIGIN_NS + (step // 2) * STEP_NS + (step % 2) * STEP_NS // 2
    operators = max(LAYERS, share(size.ranges, size.steps, step) - 1 - PHASES - LAYERS)
    # operators one after another with gaps, scaled to fill the step
    weight = rng.lognormal(0.0, 0.8, size=2 * operators)
    edge = np.concatenate([[0.0], np.cumsum(weight)]) / weight.sum()
    edge_ns = begin + 1_000 + (edge * (STEP_NS - 2_000_000)).astype(np.int64)
    start, end = edge_ns[:-1:2], edge_ns[1::2]
    layer = np.arange(operators) * LAYERS // operators
    first = np.searchsorted(layer, np.arange(LAYERS))
    last = np.append(first[1:], operators) - 1
    layer_start, layer_end = start[first] - 100, end[last] + 50
    per_phase = LAYERS // PHASES
    phase_start, phase_end = layer_start[::per_phase] - 100, layer_end[per_phase - 1 :: per_phase] + 50
    starts = np.concatenate([[begin], phase_start, layer_start, start])
    ends = np.concatenate([[phase_end[-1] + 100], phase_end, layer_end, end])
    names = np.array(
        ["step", *PHASE_NAMES, *(f"layer{i}" for i in range(per_phase)), *OPERATORS], dtype=object
    )
    name = np.concatenate(
        [
            [0],
            1 + np.arange(PHASES),
            1 + PHASES + np.arange(LAYERS) % per_phase,
            1 + PHASES + per_phase + rng.integers(len(OPERATORS), size=operators),
        ]
    )
    labels = names[name]
    if size.numbered:
        number = step * 10_000 + np.arange(operators)
        labels[-operators:] = [
            f"{label}, seq = {i}, op_id = {2 * i}"
            for label, i in zip(labels[-operators:], number, strict=True)
        ]
    order = np.argsort(starts, kind="stable")
    ranges = {
        "start": starts[order], "end": ends[order], "eventType": 59, "text": labels[order],
        "globalTid": tid, "domainId": 0,
    }  # fmt: skip

    launches = min(share(size.kernels, size.steps, step), operators)
    chosen = np.sort(rng.choice(operators, size=launches, replace=False))
    span = end[chosen] - start[chosen]
    call_start, call_end = start[chosen] + span // 10, start[chosen] + span // 2
    # correlation ids repeat across processes, as they do in real captures
    correlation = 1 + (step // 2) * 10_000 + np.arange(launches)
    calls = {
        "start": call_start, "end": call_end, "eventClass": 0, "globalTid": tid, "correlationId": correlation,
        "nameId": STRINGS.index(CALL), "returnValue": 0,
    }  # fmt: skip
    duration = rng.lognormal(9.5, 1.0, size=launches).astype(np.int64) + 1_000
    # one stream: a kernel starts when it was launched and the one before it is over
    before = np.cumsum(duration) - duration
    kernel_start = np.maximum.accumulate(call_end + 2_000 - before) + before
    kernel = rng.integers(len(KERNELS), size=launches)
    kernels = {
        "start": kernel_start, "end": kernel_start + duration, "deviceId": 0, "contextId": 1,
        "greenContextId": 0, "streamId": 7, "correlationId": correlation, "globalPid": tid & ~0xFFFFFF,
        "demangledName": len(KERNELS) + kernel, "shortName": kernel, "launchType": 0, "cacheConfig": 0,
        "registersPerThread": 64, "gridX": rng.integers(1, 400, size=launches), "gridY": 1, "gridZ": 1,
        "blockX": 128, "blockY": 1, "blockZ": 1, "staticSharedMemory": 0, "dynamicSharedMemory": 49_152,
        "localMemoryPerThread": 0, "localMemoryTotal": 0, "gridId": correlation,
        "sharedMemoryExecuted": 102_400,
        "sharedMemoryLimitConfig": 0,
    }  # fmt: skip
    return {
        "NVTX_EVENTS": ranges, "CUPTI_ACTIVITY_KIND_RUNTIME": calls, "CUPTI_ACTIVITY_KIND_KERNEL": kernels,
    }  # fmt: skip


def sample_rows(size: Size, part: int, seed: int) -> Columns:
    """SM-activity samples of one part of the capture, as percent."""
    rng = np.random.default_rng((seed, 1_000_003, part))
    first = size.samples * part // size.steps
    count = share(size.samples, size.steps, part)
    period = size.end_ns / size.samples
    raw = ((first + np.arange(count)) * period).astype(np.int64) + rng.integers(-500, 500, size=count)
    time = np.sort(raw)
    phase = (time - ORIGIN_NS) % STEP_NS * PHASES // STEP_NS
    value = np.clip(np.array([15, 40, 90, 5])[phase] + rng.integers(-5, 6, size=count), 0, 100)
    return {"rawTimestamp": time, "timestamp": time, "typeId": TYPE_ID, "metricId": 3, "value": value}


def fixed_rows(size: Size) -> dict[str, list[tuple[object, ...]]]:
    """Rows of the small tables."""
    return {
        "StringIds": list(enumerate(STRINGS)),
        "TARGET_INFO_GPU": [(1 << 48, 0, "NVIDIA H200", 1, 150_109_880_320, 132, "GH100", 0)],
        "TARGET_INFO_CUDA_DEVICE": [(0, 0, pid) for pid in PIDS],
        "TARGET_INFO_CUDA_CONTEXT_INFO": [(7, 0, 1, pid, 0, 1, 0, 0) for pid in PIDS],
        "TARGET_INFO_GPU_METRICS": [(TYPE_ID, 0, "GPU Metrics", 3, "SMs Active [Throughput %]")],
        "TARGET_INFO_SESSION_START_TIME": [(1_760_000_000_000_000_000,)],
        "ANALYSIS_DETAILS": [(1 << 48, size.end_ns, 0, size.end_ns)],
        "META_DATA_EXPORT": [("EXPORT_PRODUCT_VERSION", "2025.3.2.0"), ("EXPORT_SCHEMA_VERSION", "3.20.3")],
        "META_DATA_CAPTURE": [
            ("PROCESS_0:COLLECT_NVTX_TRACE", "true"), ("PROCESS_0:COLLECT_CUDA_TRACE", "true"),
            ("GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY", "10000"),
        ],
    }  # fmt: skip


def chunks(size: Size, seed: int) -> Iterator[tuple[str, Columns]]:
    """Rows of the large tables, a step at a time."""
    for step in range(size.steps):
        yield from step_rows(size, step, seed).items()
        yield "GPU_METRICS", sample_rows(size, step, seed)


def length(columns: Columns) -> int:
    return next(len(v) for v in columns.values() if isinstance(v, np.ndarray))


class SqliteWriter:
    """An export in SQLite: no index, no primary key, as nsys makes it."""

    def __init__(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self.con = sqlite3.connect(path)
        self.con.executescript("PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF;")
        for table, columns in TABLES.items():
            typed = ", ".join(f'"{c}" {"TEXT" if is_text(table, c) else "INTEGER"}' for c in columns)
            self.con.execute(f'CREATE TABLE "{table}" ({typed})')

    def rows(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        marks = ", ".join("?" * len(TABLES[table]))
        self.con.executemany(f'INSERT INTO "{table}" VALUES ({marks})', rows)

    def columns(self, table: str, columns: Columns) -> None:
        n = length(columns)
        whole = []
        for c in TABLES[table]:
            value = columns.get(c)
            whole.append(value.tolist() if isinstance(value, np.ndarray) else [value] * n)
        self.rows(table, list(zip(*whole, strict=True)))

    def close(self) -> None:
        self.con.commit()
        self.con.close()


class ParquetWriter:
    """An export as a folder of parquet files, with the small row groups that nsys writes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.open: dict[str, pq.ParquetWriter] = {}

    def _schema(self, table: str) -> pa.Schema:
        def kind(column: str) -> pa.DataType:
            if is_text(table, column):
                return pa.string()
            return pa.uint64() if column in UNSIGNED else pa.int64()

        return pa.schema([(c, kind(c)) for c in TABLES[table]])

    def _write(self, table: str, content: pa.Table) -> None:
        if table not in self.open:
            self.open[table] = pq.ParquetWriter(
                self.folder / f"{table}.parquet", content.schema, compression="none", use_dictionary=True
            )
        self.open[table].write_table(content, row_group_size=NSYS_ROW_GROUP)

    def rows(self, table: str, rows: Sequence[tuple[object, ...]]) -> None:
        schema = self._schema(table)
        arrays = [pa.array(v, f.type) for v, f in zip(zip(*rows, strict=True), schema, strict=True)]
        self._write(table, pa.Table.from_arrays(arrays, schema=schema))

    def columns(self, table: str, columns: Columns) -> None:
        n, schema = length(columns), self._schema(table)
        arrays = []
        for field in schema:
            value = columns.get(field.name)
            if isinstance(value, np.ndarray):
                arrays.append(pa.array(value, field.type, from_pandas=False))
            else:
                arrays.append(pa.repeat(pa.scalar(value, field.type), n))
        self._write(table, pa.Table.from_arrays(arrays, schema=schema))

    def close(self) -> None:
        for writer in self.open.values():
            writer.close()


def make(size: Size, *, sqlite: Path, parquet: Path, seed: int = 0) -> None:
    """Write one capture twice: as a SQLite file and as a parquet folder."""
    writers = (SqliteWriter(sqlite), ParquetWriter(parquet))
    for writer in writers:
        for table, rows in fixed_rows(size).items():
            writer.rows(table, rows)
    for table, columns in chunks(size, seed):
        for writer in writers:
            writer.columns(table, columns)
    for writer in writers:
        writer.close()


def make_all(folder: Path, size: Size, seed: int = 0) -> dict[str, Path]:
    """The capture in three forms, made anew unless it is there in this size."""
    from rlprof.trace.native import write_rlprof
    from rlprof.trace.nsys_parquet import read_parquetdir

    stem = f"synthetic_{size.kernels}_{size.ranges}_{size.samples}_{seed}{'_numbered' * size.numbered}"
    paths = {
        "sqlite": folder / f"{stem}.sqlite",
        "parquetdir": folder / f"{stem}_pqtdir",
        "rlprof": folder / f"{stem}.rlprof",
    }
    done = folder / f"{stem}.done"
    if not done.exists():
        folder.mkdir(parents=True, exist_ok=True)
        make(size, sqlite=paths["sqlite"], parquet=paths["parquetdir"], seed=seed)
        write_rlprof(read_parquetdir(paths["parquetdir"]), paths["rlprof"], force=True)
        done.touch()
    return paths


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--work", type=Path, required=True, help="folder for the files (about 2 GB)")
    parser.add_argument("--kernels", type=int, default=Size.kernels)
    parser.add_argument("--ranges", type=int, default=Size.ranges)
    parser.add_argument("--samples", type=int, default=Size.samples)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--numbered", action="store_true", help="give each operator a label of its own")
    args = parser.parse_args()
    size = Size(args.kernels, args.ranges, args.samples, args.numbered)
    for kind, path in make_all(args.work, size, args.seed).items():
        print(f"{kind}: {path.name}")


if __name__ == "__main__":
    main()
