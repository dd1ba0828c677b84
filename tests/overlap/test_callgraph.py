"""A graph as people meet it: in a notebook's cell, in a failed assertion."""

from __future__ import annotations

from tests.overlap.handmade import rollout_graph


def test_a_graph_shows_itself_in_a_line_with_its_history() -> None:
    graph = rollout_graph(3, ((0, 1, 2), (3, 4, 5)))
    assert repr(graph) == f"<CallGraph of {graph.region}: {len(graph)} calls, {len(graph.streams)} streams>"
    changed = graph.changed("a first step").changed("a second one")
    assert repr(changed).endswith("streams; a first step; a second one>")
