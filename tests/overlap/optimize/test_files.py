"""What is kept in files: measurements, decisions, graphs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from benchmarks.rl_programs import make
from rlprof.errors import OutputError, UnreadableError, UsageError
from rlprof.overlap.errors import OverlapError
from rlprof.overlap.optimize import optimize
from rlprof.overlap.optimize.graph_file import MOST_BYTES, GraphFile, with_hash
from rlprof.overlap.optimize.log import lines
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.simulated import SimulatedWorkload
from rlprof.overlap.optimize.steps import derive, step
from rlprof.overlap.optimize.store import Store, key_of

EPOCH = "iteration/rollout/epoch"
STEPS = (step("split_spatial", EPOCH, groups=2), step("interleave", EPOCH))


def test_a_store_remembers(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    store = Store(path)
    store.put("a", "local", {"pairs": [[1.0, 2.0]]})
    store.put("b", "other", 3)
    assert Store(path).get("a") == {"pairs": [[1.0, 2.0]]}
    assert Store(path).get("c") is None
    assert len(Store(path)) == 2


def test_a_line_that_was_cut_off_is_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    Store(path).put("a", "other", 1)
    with path.open("a") as file:
        file.write('{"key": "b", "va')
    again = Store(path)
    again.put("c", "other", 2)
    assert (Store(path).get("a"), Store(path).get("b"), Store(path).get("c")) == (1, None, 2)


def test_lines_of_a_store_that_are_damaged_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "store.jsonl"
    Store(path).put("a", "other", 1)
    with path.open("ab") as file:
        file.write(b'\xff\xfe\x00\n3\n[]\n{"key": "b"}\n{"key": ["b"], "value": 1}\n')
    Store(path).put("c", "other", 2)
    assert [Store(path).get(key) for key in "abc"] == [1, None, 2]


@pytest.mark.parametrize(
    ("kind", "where", "wrong"),
    [
        ("profile", ("windows", 0, "sm_activity"), {}),
        ("profile", ("windows", 0, "node"), None),
        ("profile", ("measurement", "time_s"), []),
        ("local", ("seen",), None),
        ("local", ("seen", "alone", 0), True),
        ("local", ("machine",), None),
        ("iteration", ("sm_activity",), [[1]]),
        ("iteration", ("facts",), 3),
    ],
)
def test_what_is_not_as_it_was_written_is_measured_again(
    kind: str, where: tuple[str | int, ...], wrong: object, tmp_path: Path
) -> None:
    path, program = tmp_path / "store.jsonl", make(1)
    first = optimize(SimulatedWorkload(program.graph, program.model), store=Store(path))
    entries = [json.loads(line) for line in path.read_text().splitlines()]
    part = next(e for e in entries if e["kind"] == kind)["value"]
    for name in where[:-1]:
        part = part[name]
    part[where[-1]] = wrong
    path.write_text("".join(json.dumps(e) + "\n" for e in entries))
    store, again = Store(path), SimulatedWorkload(program.graph, program.model)
    found = optimize(again, store=store)
    assert any(said.startswith("damaged lines") for said in store.not_reused)
    assert found.graph.hash == first.graph.hash
    assert document(found, [])["sm_activity"] == document(first, [])["sm_activity"]
    assert bool(again.trained) == (kind == "profile")


def test_a_store_that_cannot_be_written_says_so(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match="cannot be written"):
        Store(tmp_path / "missing" / "store.jsonl").put("a", "other", 1)


def test_keys_tell_texts_and_sets_apart() -> None:
    assert key_of("a", {"x", "y"}) == key_of("a", {"y", "x"})
    assert len({key_of("ab"), key_of("a", "b"), key_of("a", {"b"}), key_of("b", "a")}) == 4


def test_a_graph_is_made_again_from_its_file(tmp_path: Path) -> None:
    native = make(1).graph
    graph = derive(native, STEPS)
    path = tmp_path / "graph.json"
    GraphFile.of(native, graph, STEPS, spares=1).write(path)
    again = GraphFile.read(path)
    assert again.steps == STEPS
    assert again.facts == {"spares": 1}
    assert again.derive(make(1).graph).hash == graph.hash


def test_a_graph_of_another_program_is_refused(tmp_path: Path) -> None:
    native = make(1).graph
    kept = GraphFile.of(native, derive(native, STEPS), STEPS)
    with pytest.raises(OverlapError, match="another program"):
        kept.derive(make(3).graph)


def test_a_graph_that_came_out_otherwise_is_refused() -> None:
    native = make(1).graph
    kept = GraphFile.of(native, native, STEPS)
    with pytest.raises(OverlapError, match="make another graph"):
        kept.derive(native)


def test_a_file_that_was_changed_is_refused(tmp_path: Path) -> None:
    native = make(1).graph
    path = tmp_path / "graph.json"
    GraphFile.of(native, derive(native, STEPS), STEPS).write(path)
    document = json.loads(path.read_text())
    document["steps"][0]["options"]["groups"] = 4
    path.write_text(json.dumps(document))
    with pytest.raises(UnreadableError, match="was changed"):
        GraphFile.read(path)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "is no JSON"),
        ("[]", "is no rlprof graph"),
        ("[" * 200_000, "is no JSON"),
        ('{"a":' * 200_000, "is no JSON"),
        ('{"format": "rlprof graph", "version": "' + "9" * 5000 + '"}', "of version 9{20}; this"),
        ('{"format": "rlprof graph", "version": 9}', "of version 9"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, content: str, says: str) -> None:
    path = tmp_path / "graph.json"
    path.write_text(content)
    with pytest.raises(UnreadableError, match=says):
        GraphFile.read(path)
    with pytest.raises(UnreadableError, match="no such file"):
        GraphFile.read(tmp_path / "none.json")


def test_a_file_that_is_too_large_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "graph.json"
    with path.open("wb") as file:
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(UnreadableError, match="is too large to be such a file"):
        GraphFile.read(path)


@pytest.mark.parametrize("name", ["region", "native_hash", "graph_hash", "facts", "steps"])
@pytest.mark.parametrize("value", [None, 5, "x", ["ab"], [["a", 1]], [[]]])
def test_a_whole_file_with_values_of_another_type_is_none(tmp_path: Path, name: str, value: object) -> None:
    if name in ("region", "native_hash", "graph_hash") and value == "x":
        return
    document = GraphFile("iteration", (), "native", "graph").to_dict()
    del document["hash"]
    path = tmp_path / "graph.json"
    path.write_text(json.dumps(with_hash({**document, name: value})))
    with pytest.raises((UnreadableError, UsageError)) as told:
        GraphFile.read(path)
    assert "Next: " in str(told.value) or name == "steps"


def test_a_step_that_is_none_in_a_whole_file(tmp_path: Path) -> None:
    native = make(1).graph
    path = tmp_path / "graph.json"
    good = GraphFile.of(native, native, ())
    object.__setattr__(good, "steps", ())
    document = good.to_dict()
    del document["hash"]
    document["steps"] = [{"kind": "teleport", "target": "x", "options": {}}]
    from rlprof.overlap.optimize.graph_file import _hash

    path.write_text(json.dumps({**document, "hash": _hash(document)}))
    with pytest.raises(UsageError, match="teleport"):
        GraphFile.read(path)


def test_lines_show_the_end_of_paths() -> None:
    (line,) = lines(
        {
            "what": "not measured",
            "steps": "split_spatial iteration/rollout/epoch/chunk groups=2",
            "reason": "iteration/a/epoch[0]/chunk[1]/step takes 1/2 of iteration/a/epoch[0]/reset",
        }
    )
    assert line == (
        "  split_spatial chunk groups=2: not measured, epoch[0]/chunk[1]/step takes 1/2 of epoch[0]/reset"
    )
    assert lines({"what": "something else"}) == ["{'what': 'something else'}"]


@pytest.mark.parametrize(
    "line",
    [
        {"key": "a", "kind": "local", "value": None},
        {"key": "a", "kind": "local", "value": {"pairs": "x"}},
        {"key": "a", "kind": "complete", "value": {"pairs": [[float("nan"), 1.0]]}},
        {"key": "a", "kind": "lever", "value": {"pairs": [[-1.0, 1.0]]}},
        {"key": "a", "kind": "local", "value": {"pairs": [[1.0, 1.0]], "machine": [1]}},
        {"key": "a", "kind": "quota level", "value": {"pairs": [[1.0]]}},
        {"key": "a", "kind": "quota complete", "value": {}},
        {"key": "a", "kind": "profile", "value": {"windows": 3}},
        {"kind": "spent", "session": 1, "part": "search", "time_s": -5.0},
        {"kind": "spent", "session": 1, "part": "search", "time_s": float("nan")},
        {"kind": "spent", "session": 1, "part": "search", "time_s": "x"},
        {"kind": "iteration", "session": 1, "part": "search", "graph": "g", "number": 0,
         "value": {"time_s": float("inf"), "sm_activity": None, "tasks": [], "facts": {}}},
    ],
)  # fmt: skip
def test_what_is_not_as_it_was_written_is_neither_used_nor_counted_and_is_told(
    tmp_path: Path, line: dict[str, object]
) -> None:
    path = tmp_path / "store.jsonl"
    store = Store(path)
    store.begin()
    store.put("b", "local", {"pairs": [[1.0, 2.0]]})
    with path.open("a") as file:
        file.write(json.dumps(line) + "\n")
    again = Store(path)
    again.begin()
    assert again.not_reused == ("damaged lines of store.jsonl, passed over: 1; what they took is in no sum",)
    assert again.get("a") is None
    assert again.get("b") is not None
    assert 0 <= again.cost().total_s < 60
