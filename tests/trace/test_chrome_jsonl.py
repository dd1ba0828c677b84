"""Chrome-trace JSON lines as the tracers of RLinf and AReaL write them, and what goes wrong with them."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from rlprof.errors import NotATraceError, UnreadableError
from rlprof.trace.aliases import RLINF_DOCUMENTED, RLINF_ROLES, spellings
from rlprof.trace.chrome_jsonl import read_chrome_jsonl
from rlprof.trace.hierarchy import hierarchy
from rlprof.trace.tables import SCHEMAS
from rlprof.trace.trace import Trace

US = 1000
T0 = 1_790_000_000_000_000  # us since the epoch


class Rlinf:
    """Writes events as RLinf's tracer does: begin and end lines, worker names as process ids."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []
        self.labelled: set[str] = set()

    def _line(self, ph: str, pid: str, name: str, at_us: int) -> None:
        common = {"ts": T0 + at_us, "pid": pid, "tid": "main"}
        if pid not in self.labelled:
            self.labelled.add(pid)
            self.lines.append({"name": "process_name", "ph": "M", **common, "args": {"name": pid}})
        self.lines.append({"name": name, "cat": "default", "ph": ph, **common})

    def begin(self, pid: str, name: str, at_us: int) -> Rlinf:
        self._line("B", pid, name, at_us)
        return self

    def end(self, pid: str, name: str, at_us: int) -> Rlinf:
        self._line("E", pid, name, at_us)
        return self

    def span(self, pid: str, name: str, start_us: int, end_us: int) -> Rlinf:
        return self.begin(pid, name, start_us).end(pid, name, end_us)

    def restart(self) -> Rlinf:
        self.labelled.clear()
        return self

    def read(self, folder: Path, tail: str = "") -> Trace:
        return written(folder, self.lines, tail=tail)


def areal(
    name: str, ts: int, dur: int, *, cat: str = "compute", rank: int = 0, pid: int = 40, tid: int = 40
) -> dict[str, Any]:
    args = {"rank": rank}
    return {"name": name, "ph": "X", "ts": ts, "dur": dur, "pid": pid, "tid": tid, "cat": cat, "args": args}


def written(folder: Path, lines: list[Any], name: str = "trace_events.jsonl", tail: str = "") -> Trace:
    path = folder / name
    path.write_text("".join(json.dumps(line) + "\n" for line in lines) + tail)
    return read_chrome_jsonl(path)


def ranges(trace: Trace, *columns: str) -> list[tuple[Any, ...]]:
    return trace.table("ranges", columns).select(columns).rows()  # type: ignore[arg-type]


# --- RLinf --------------------------------------------------------------------------------------------


def rlinf_step() -> Rlinf:
    """One step: weights, rollout of two workers, training."""
    log = (
        Rlinf()
        .begin("driver", "step", 0)
        .begin("driver", "sync_weights", 1)
        .end("driver", "sync_weights", 10)
    )
    log.begin("driver", "generate_rollouts", 10)
    log.begin("EnvGroup:0", "interact", 12).begin("EnvGroup:0", "env_interact_step", 13)
    log.begin("RolloutGroup:0", "rollout/generate", 12).span("RolloutGroup:0", "predict", 20, 30)
    log.end("EnvGroup:0", "env_interact_step", 19).span("RolloutGroup:0", "predict", 40, 50)
    log.end("EnvGroup:0", "interact", 60).end("RolloutGroup:0", "rollout/generate", 61)
    log.end("driver", "generate_rollouts", 62).begin("driver", "actor_training", 63)
    log.span("ActorGroup:0", "run_training", 64, 90)
    return log.end("driver", "actor_training", 91).end("driver", "step", 100)


def test_rlinf_begin_and_end_nest_by_worker(tmp_path: Path) -> None:
    trace = rlinf_step().read(tmp_path)
    assert trace.notes == ()
    labels = dict(trace.table("processes", ["process", "label"]).iter_rows())
    assert sorted(labels.values()) == ["ActorGroup:0", "EnvGroup:0", "RolloutGroup:0", "driver"]
    nodes = hierarchy(trace).nodes
    found = {(labels[process], path) for process, path in nodes.select("process", "path").iter_rows()}
    assert found == {
        ("driver", "step"),
        ("driver", "step/sync_weights"),
        ("driver", "step/generate_rollouts"),
        ("driver", "step/actor_training"),
        ("EnvGroup:0", "interact"),
        ("EnvGroup:0", "interact/env_interact_step"),
        ("RolloutGroup:0", "rollout/generate"),
        ("RolloutGroup:0", "rollout/generate/predict"),
        ("ActorGroup:0", "run_training"),
    }


def test_rlinf_times_count_from_the_epoch(tmp_path: Path) -> None:
    trace = rlinf_step().read(tmp_path)
    assert (trace.meta.utc_origin_ns, trace.meta.start_ns, trace.meta.end_ns) == (T0 * US, 0, 100 * US)
    assert trace.meta.product == "RLinf tracer"
    assert trace.meta.format == "chrome-jsonl"


def test_tables_have_the_types_and_order_of_the_schema(tmp_path: Path) -> None:
    trace = rlinf_step().read(tmp_path)
    for table in ("ranges", "processes"):
        assert dict(trace.table(table).schema) == SCHEMAS[table]
    assert set(trace.missing) == set(SCHEMAS) - {"ranges", "processes"}


def test_host_and_address_in_a_worker_name_are_dropped(tmp_path: Path) -> None:
    trace = Rlinf().span("EnvGroup:0@node7.cluster(10.1.2.3)", "interact", 0, 5).read(tmp_path)
    assert trace.table("processes").select("label", "pid").rows() == [("EnvGroup:0", None)]
    told = repr([trace.table(t).to_dicts() for t in trace.loaders]) + repr(trace.meta)
    assert "node7" not in told
    assert "10.1.2.3" not in told


def test_begin_without_end_is_cut_at_the_end_of_the_capture(tmp_path: Path) -> None:
    trace = Rlinf().begin("driver", "step", 0).span("driver", "eval", 5, 9).read(tmp_path)
    assert ranges(trace, "name", "start_ns", "end_ns", "cut") == [
        ("step", 0, 9 * US, True),
        ("eval", 5 * US, 9 * US, False),
    ]
    assert any(note.startswith("1 range never ended") for note in trace.notes)


def test_end_without_begin_is_dropped_with_a_count(tmp_path: Path) -> None:
    trace = Rlinf().end("driver", "step", 0).span("driver", "step", 5, 9).read(tmp_path)
    assert ranges(trace, "name", "start_ns") == [("step", 0)]
    assert any(note.startswith("1 end of ranges") for note in trace.notes)


def test_half_written_last_line_is_left_out_with_a_note(tmp_path: Path) -> None:
    trace = rlinf_step().read(tmp_path, tail='{"name": "step", "cat": "defa')
    assert len(trace.table("ranges")) == len(rlinf_step().read(tmp_path).table("ranges"))
    assert any("last line" in note for note in trace.notes)


def test_lines_that_are_no_events_are_left_out_with_a_count(tmp_path: Path) -> None:
    log = Rlinf().span("driver", "step", 0, 5)
    trace = written(tmp_path, ["text", *log.lines, [1], {"a": 1}, {"ph": "i", "name": "mark", "ts": T0}])
    assert ranges(trace, "name") == [("step",)]
    assert any(note.startswith("3 lines left out") for note in trace.notes)


def test_batches_written_out_of_order_are_sorted(tmp_path: Path) -> None:
    log = Rlinf().span("driver", "a", 0, 4).span("driver", "b", 5, 9)
    trace = written(tmp_path, log.lines[::-1])
    assert ranges(trace, "name", "start_ns", "end_ns") == [("a", 0, 4 * US), ("b", 5 * US, 9 * US)]


def test_run_appended_to_the_file_of_a_killed_one(tmp_path: Path) -> None:
    log = Rlinf().begin("driver", "step", 0).span("driver", "eval", 1, 3).restart()
    trace = log.span("driver", "step", 1_000_000, 1_000_009).read(tmp_path)
    assert ranges(trace, "name", "end_ns", "cut") == [
        ("step", 3 * US, True),
        ("eval", 3 * US, False),
        ("step", 1_000_009 * US, False),
    ]


def test_interleaved_coroutines_stand_beside_the_hierarchy(tmp_path: Path) -> None:
    log = Rlinf().begin("EnvGroup:0", "interact", 0)
    log.begin("EnvGroup:0", "send", 1).begin("EnvGroup:0", "recv", 2).end("EnvGroup:0", "send", 3)
    log.end("EnvGroup:0", "recv", 4).span("EnvGroup:0", "send", 5, 6).end("EnvGroup:0", "interact", 9)
    trace = log.read(tmp_path)
    assert ranges(trace, "name", "style") == [
        ("interact", "push_pop"),
        ("send", "start_end"),
        ("recv", "start_end"),
        ("send", "start_end"),
    ]
    assert any("interleaved coroutines" in note for note in trace.notes)


# --- AReaL --------------------------------------------------------------------------------------------


def areal_rank(rank: int) -> list[dict[str, Any]]:
    meta = [
        {"name": "thread_name", "ph": "M", "pid": 40 + rank, "tid": 40, "args": {"name": "MainThread"}},
        {"name": "process_name", "ph": "M", "pid": 40 + rank, "args": {"name": f"Rank {rank}, Process"}},
        {"name": "process_sort_index", "ph": "M", "pid": 40 + rank, "args": {"sort_index": rank}},
    ]
    spans = [
        areal("fsdp_engine.train_batch", 110, 40, rank=rank, pid=40 + rank),
        areal("train.rollout", 0, 100, cat="scheduler", rank=rank, pid=40 + rank),
        areal("save", 160, 5, cat="io", rank=rank, pid=40 + rank),
    ]
    mark = {"name": "wait", "ph": "i", "ts": 3, "pid": 40 + rank, "tid": 40, "cat": "scheduler", "s": "t"}
    return [*meta, *spans, {**mark, "args": {"rank": rank}}]


def test_areal_rank_comes_from_the_events(tmp_path: Path) -> None:
    trace = written(tmp_path, areal_rank(3), "traces-r3.jsonl")
    assert trace.table("processes").select("pid", "rank", "label", "file").rows() == [
        (43, 3, "rank 3", "traces-r3.jsonl")
    ]
    assert ranges(trace, "name", "start_ns", "end_ns") == [
        ("train.rollout", 0, 100 * US),
        ("fsdp_engine.train_batch", 110 * US, 150 * US),
        ("save", 160 * US, 165 * US),
    ]
    assert trace.meta.product == "AReaL perf_tracer"
    assert trace.notes == ()


def test_areal_clock_starts_with_each_process_so_it_claims_no_utc(tmp_path: Path) -> None:
    assert written(tmp_path, areal_rank(0)).meta.utc_origin_ns is None


def test_areal_child_that_outlasts_its_parent_by_truncation_is_nested(tmp_path: Path) -> None:
    trace = written(tmp_path, [areal("step", 0, 100), areal("update", 91, 10)])
    assert ranges(trace, "name", "style", "end_ns") == [
        ("step", "push_pop", 100 * US),
        ("update", "push_pop", 100 * US),
    ]
    assert hierarchy(trace).nodes["path"].to_list() == ["step", "step/update"]


def test_areal_episodes_in_flight_together_are_one_node_each(tmp_path: Path) -> None:
    episodes = [areal("arun_episode", 10 * i, 500, tid=41) for i in range(20)]
    trace = written(tmp_path, [areal("step", 0, 900), *episodes])
    nodes = hierarchy(trace).nodes
    assert sorted(nodes["path"].to_list()) == ["arun_episode", "step"]


def test_two_processes_with_clocks_of_their_own_are_noted(tmp_path: Path) -> None:
    trace = written(tmp_path, [*areal_rank(0), areal("train.rollout", 0, 90, pid=77)])
    assert any("2 processes" in note for note in trace.notes)


# --- files --------------------------------------------------------------------------------------------


def test_gzipped_lines(tmp_path: Path) -> None:
    path = tmp_path / "trace_events.jsonl.gz"
    lines = "".join(json.dumps(line) + "\n" for line in rlinf_step().lines)
    path.write_bytes(gzip.compress(lines.encode()))
    assert len(read_chrome_jsonl(path).table("ranges")) == 10


def test_lines_longer_than_a_read_are_whole(tmp_path: Path) -> None:
    long = {**areal("x" * 200_000, 0, 5)}
    trace = written(tmp_path, [long, areal("y", 6, 5)])
    assert [len(name) for (name,) in ranges(trace, "name")] == [200_000, 1]


def test_times_that_are_none_are_set_aside_with_counts(tmp_path: Path) -> None:
    bad = [
        {**areal("a", 0, 5), "ts": None},
        {**areal("a", 0, 5), "dur": -1},
        {**areal("a", 0, 5), "dur": "nan"},
    ]
    trace = written(tmp_path, [areal("step", 0, 5), *bad])
    assert ranges(trace, "name") == [("step",)]
    assert "1 event without a usable start time set aside" in trace.notes
    assert "2 events without a usable duration set aside" in trace.notes


@pytest.mark.parametrize(
    "content",
    [
        "",
        "\n\n",
        "hello\n",
        '{"request_id": 1, "submit_ts": 0.5}\n',
        '{"ph": "M", "name": "process_name", "pid": 1}\n',
    ],
)
def test_file_without_an_event_is_one_line_and_exit_code_2(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    with pytest.raises(NotATraceError) as caught:
        read_chrome_jsonl(path)
    assert caught.value.exit_code == 2
    assert "\n" not in str(caught.value)


def test_absent_file_is_unreadable(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        read_chrome_jsonl(tmp_path / "absent.jsonl")


# --- names --------------------------------------------------------------------------------------------


def test_documented_names_find_the_emitted_ones_and_back() -> None:
    assert spellings("rollout/predict") == ("rollout/predict", "predict")
    assert spellings("env_interact_step") == ("env_interact_step", "env/step")
    assert spellings("denoise") == ("denoise",)


def test_every_documented_name_carries_the_role_that_emits_it() -> None:
    for emitted, documented in RLINF_DOCUMENTED.items():
        assert documented.partition("/")[0] == RLINF_ROLES[emitted]
