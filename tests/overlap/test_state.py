"""State objects and declarations of their use."""

from __future__ import annotations

from typing import Any

import pytest

from rlprof.overlap import State, reads, refreshes, updates
from rlprof.overlap.errors import WrapError
from rlprof.overlap.specs import AccessSpec


def test_declarations() -> None:
    env, w = State("ENV", partitions=4), State("W")
    found = [*reads(w, "THETA"), *updates(env[2]), *refreshes(env[lambda call: call.index])]
    assert [a.spec for a in found] == [
        AccessSpec("W", "read"),
        AccessSpec("THETA", "read"),
        AccessSpec("ENV", "update", 2),
        AccessSpec("ENV", "refresh", None, keyed=True),
    ]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: State(""), "cannot name a state"),
        (lambda: State("a[0]"), "cannot name a state"),
        (lambda: State("component:x"), "cannot name a state"),
        (lambda: State("A", partitions=0), "state A has 0 partitions"),
        (lambda: State("A", copies=object()), "copies of state A are a value of type object"),
        (lambda: State("A", copies="B"), "copies of state A are a value of type str"),
        (lambda: State("A", by_sample=True), "number of samples is missing"),
        (lambda: reads(3), "type int is no state object"),
        (lambda: State("A", partitions=3)[3], r"no partition 3\. Next: its partitions are 0 \.\. 2"),
        (lambda: State("A", partitions=3)["x"], "no partition 'x'"),
        (lambda: State("A")[1.5], "1.5 is no partition"),
        (lambda: State("A")[True], "True is no partition"),
    ],
)
def test_wrong_declarations(make: Any, message: str) -> None:
    with pytest.raises(WrapError, match=message):
        make()


def test_a_copy_is_another_object() -> None:
    thing = object()
    with pytest.raises(WrapError, match="copy of state A is the object itself"):
        State("A", thing, copies=[thing])


def test_partitions_can_be_named_as_they_are_used() -> None:
    assert State("A")["left"].key == "left"
