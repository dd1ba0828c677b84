"""Checked mode on random programs: right declarations have no fault, each removed one has."""

from __future__ import annotations

import random
from collections.abc import Iterable

import pytest

from rlprof.overlap.check_report import CheckReport
from rlprof.overlap.checked import check_declarations
from tests.overlap.declarations import Site
from tests.overlap.generated import generate
from tests.overlap.wrapping import Wrapped, wrapped


def check(found: Wrapped) -> CheckReport:
    return check_declarations(found.program, lambda: [found.world.iterate(i) for i in range(2)])


def shows(site: Site, source: str) -> bool:
    """Whether what a method reads shows in what it returns, and it can be run again."""
    body = source[source.index(f"def {site.name}(") :].partition("return ")[2]
    return site.flavour not in ("coroutine", "future", "buffer") and not body.startswith("None")


def run_seeds(seeds: Iterable[int]) -> tuple[int, int]:
    """Numbers of removed declarations that were to be found: writes, reads."""
    writes = reads = 0
    for seed in seeds:
        program = generate(seed)
        found = wrapped(program)
        before = found.world.state()
        report = check(found)
        assert report.findings == (), f"seed {seed}: {report}"
        assert found.world.state() == before, f"seed {seed}"
        changing = {
            use.state
            for site in program.sites
            for use in site.uses
            if use.mode != "read" and any(path.endswith("/" + site.name) for path in report.calls)
        }
        draw = random.Random(seed)
        for site in program.sites:
            node = next(n for p, n in found.program.nodes.items() if p.endswith(site.name))
            if not node.accesses or not report.calls.get(node.path):
                continue
            taken = draw.choice(node.accesses)
            if taken.mode == "read" and not (taken.name in changing and shows(site, program.source)):
                continue
            kept = node.accesses
            node.accesses = tuple(a for a in kept if a is not taken)
            node.is_stateless = not node.accesses
            findings = check(found).findings
            fault = "undeclared read" if taken.mode == "read" else "undeclared write"
            told = {(f.fault, f.node, f.state) for f in findings}
            assert (fault, node.path, taken.name) in told, f"seed {seed}, {site.name}: {taken}"
            assert {state for _, _, state in told} == {taken.name}, f"seed {seed}: {told}"
            node.accesses, node.is_stateless = kept, False
            reads, writes = reads + (taken.mode == "read"), writes + (taken.mode != "read")
    return writes, reads


def test_random_programs() -> None:
    writes, reads = run_seeds((3, 11))
    assert writes >= 2
    assert reads >= 1


@pytest.mark.slow
def test_many_random_programs() -> None:
    writes, reads = run_seeds(range(100, 120))
    assert writes > 30
    assert reads > 8
