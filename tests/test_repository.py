"""Rules that hold for the repository as a whole."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from tests.conftest import ROOT

MAX_TRACKED_BYTES = 5_000_000
# Written in parts, so that this file does not find itself.
MACHINE_PATHS = re.compile(
    "|".join(re.escape(p) for p in ("/wo" + "rk/main", "/wo" + "rk/shared", "/ro" + "ot/."))
)
UNFINISHED = re.compile(r"\b(TODO|FIXME|XXX)\b|raise NotImplementedError")
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def tracked(*patterns: str) -> list[Path]:
    """Files that git tracks and that still exist; skips outside a checkout."""
    found = subprocess.run(
        ["git", "ls-files", "-z", "--", *patterns], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if found.returncode:
        pytest.skip("not a git checkout")
    return [path for name in found.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def text_of(path: Path) -> str | None:
    """The text of a file, None for a binary one."""
    raw = path.read_bytes()
    return None if b"\0" in raw[:4096] or raw[:2] == b"\x1f\x8b" else raw.decode("utf-8", "replace")


def headings(text: str) -> set[str]:
    """Anchors of the headings of a Markdown file, as GitHub makes them."""
    titles = re.findall(r"^#{1,6}\s+(.+?)\s*$", FENCE.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", t.lower()).replace(" ", "-") for t in titles}


def test_no_tracked_file_is_large() -> None:
    assert not [(p.name, p.stat().st_size) for p in tracked() if p.stat().st_size > MAX_TRACKED_BYTES]


def test_no_file_names_a_path_of_a_developers_machine() -> None:
    hits = []
    for path in tracked():
        for number, line in enumerate((text_of(path) or "").splitlines(), 1):
            if MACHINE_PATHS.search(line):
                hits.append(f"{path.relative_to(ROOT)}:{number}: {line.strip()[:100]}")
    assert not hits


def test_nothing_in_the_package_is_marked_unfinished() -> None:
    hits = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in tracked("rlprof/*.py")
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if UNFINISHED.search(line)
    ]
    assert not hits


def test_notebooks_store_no_outputs() -> None:
    notebooks = tracked("*.ipynb")
    for path in notebooks:
        cells = [c for c in json.loads(path.read_text())["cells"] if c["cell_type"] == "code"]
        assert all(not c["outputs"] and c["execution_count"] is None for c in cells), path.name


def broken_links(path: Path) -> list[str]:
    """Relative links of a Markdown file whose file or heading does not exist."""
    broken = []
    for target in LINK.findall(FENCE.sub("", path.read_text())):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        there = (path.parent / name).resolve() if name else path
        lost = (
            anchor and there.suffix == ".md" and there.exists() and anchor not in headings(there.read_text())
        )
        if lost or not there.exists():
            broken.append(f"{path.relative_to(ROOT)} -> {target}")
    return broken


def test_links_between_documents_resolve() -> None:
    documents = tracked("*.md")
    assert documents
    assert not [link for path in documents for link in broken_links(path)]


def test_shell_scripts_are_executable_and_parse() -> None:
    scripts = tracked("tools/*.sh", ".ci/run")
    assert scripts
    for path in scripts:
        assert path.stat().st_mode & 0o111, path.name
        shell = "bash" if "bash" in path.read_text().splitlines()[0] else "sh"
        done = subprocess.run([shell, "-n", str(path)], capture_output=True, text=True, check=False)
        assert not done.returncode, done.stderr


def options_of(verb: str) -> set[str]:
    """Long options that `rlprof VERB --help` lists."""
    shown = subprocess.run(
        [sys.executable, "-m", "rlprof", verb, "--help"],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "200", "TERM": "dumb"},
        capture_output=True,
        text=True,
        check=True,
    )
    return set(re.findall(r"--[a-z][a-z-]+", shown.stdout)) - {"--help"}


@pytest.mark.parametrize("verb", ["analyze", "calibrate", "capture", "doctor", "export", "plan"])
def test_the_documented_options_are_those_of_the_command(verb: str) -> None:
    text = (ROOT / "docs" / "cli.md").read_text()
    section = re.search(rf"^## `rlprof {verb} .*?(?=^## |\Z)", text, re.MULTILINE | re.DOTALL)
    assert section is not None
    documented = set(re.findall(r"--[a-z][a-z-]+", section[0]))
    assert documented == options_of(verb)


def test_types_of_all_code_but_the_tests_are_checked() -> None:
    checked = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]["files"]
    assert {p.relative_to(ROOT).parts[0] for p in tracked("*.py")} == {*checked, "tests"}


def test_every_dependency_is_described() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    text = (ROOT / "docs" / "dependencies.md").read_text()
    extras = project["optional-dependencies"].values()
    named = {re.split(r"[<>=\[;! ]", r)[0] for group in (project["dependencies"], *extras) for r in group}
    assert not {name for name in named if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", text)}


def test_every_shipped_capture_is_described_with_its_size_and_digest() -> None:
    text = (ROOT / "datasets" / "README.md").read_text()
    tables = {ROOT / "datasets" / "papers", ROOT / "datasets" / "runs"}  # with facts of their own
    captures = [p for p in tracked("datasets/*") if p.suffix != ".md" and tables.isdisjoint(p.parents)]
    assert captures
    for path in captures:
        row = next((line for line in text.splitlines() if f"`{path.name}`" in line), "")
        assert hashlib.sha256(path.read_bytes()).hexdigest() in row, path.name
        assert f"{path.stat().st_size:,}" in row, path.name


def test_every_raw_table_is_the_one_that_its_facts_are_about() -> None:
    tables = tracked("datasets/runs/*.csv")
    assert tables
    for path in tables:
        about = json.loads(path.with_suffix(".json").read_text())
        assert hashlib.sha256(path.read_bytes()).hexdigest() == about["sha256"], path.name
        assert {"study", "preset", "seed", "parameters"} <= about.keys()
        if "measured" in about:  # taken from runs that are stored: what measured them, and who took them
            assert about["measured"]
            assert {"machine", "versions", "ended"} <= about["read"].keys()
        else:
            assert {"machine", "versions", "ended"} <= about.keys()


def test_the_readme_shows_what_the_demo_prints(tmp_path: Path) -> None:
    shown = re.search(
        r"\$ make demo\n.*?\n(.*?)^written: demo-report", (ROOT / "README.md").read_text(), re.M | re.S
    )
    assert shown is not None
    made = subprocess.run(
        [
            sys.executable,
            "-m",
            "rlprof",
            "analyze",
            "datasets/vla_h200.rlprof",
            "--out",
            str(tmp_path / "report"),
        ],
        cwd=ROOT,
        env={**os.environ, "COLUMNS": "80"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert shown[1] == made.stdout
