"""What installing and importing the package pulls in."""

from __future__ import annotations

import importlib.metadata
import json
import subprocess
import sys
import tomllib
from collections.abc import Iterable

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# Run-time heavies that only an extra may bring.
HEAVY_DISTRIBUTIONS = {
    "torch",
    "ray",
    "transformers",
    "jax",
    "mujoco",
    "tensorflow",
    "jupyterlab",
    "ipywidgets",
}
HEAVY_MODULES = {
    "polars",
    "pandas",
    "numpy",
    "pyarrow",
    "altair",
    "vl_convert",
    "torch",
    "typer",
    "rich",
    "orjson",
}


def closure(requirements: Iterable[str]) -> set[str]:
    """Names of all distributions that `requirements` bring, followed through what is installed here."""
    seen: set[tuple[str, str]] = set()
    pending = [(Requirement(r), "") for r in requirements]
    while pending:
        requirement, extra = pending.pop()
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = canonicalize_name(requirement.name)
        for wanted in ("", *requirement.extras):
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                pending += [(Requirement(r), wanted) for r in importlib.metadata.requires(name) or ()]
    return {name for name, _ in seen}


def test_installing_without_extras_pulls_no_heavy_distribution() -> None:
    names = closure(PROJECT["dependencies"])
    assert {"numpy", "polars", "jinja2"} <= names  # jinja2 comes through altair
    assert not names & HEAVY_DISTRIBUTIONS


def test_the_closure_follows_dependencies_of_dependencies() -> None:
    assert {"papermill", "nbclient", "jupyter-client"} <= closure(["papermill"])


def test_importing_the_package_imports_no_heavy_module() -> None:
    code = "import json, sys, rlprof; print(json.dumps([m for m in sys.modules if '.' not in m]))"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    loaded = set(json.loads(out.stdout))
    assert "rlprof" in loaded
    assert not loaded & HEAVY_MODULES


def test_every_public_name_of_the_package_loads() -> None:
    import rlprof

    assert {"read", "Trace", "Unavailable"} <= set(rlprof.__all__)
    for name in rlprof.__all__:
        assert getattr(rlprof, name) is not None


def test_the_version_is_stated_once_and_is_in_the_changelog_or_unreleased() -> None:
    import rlprof

    assert PROJECT["dynamic"] == ["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    assert f"## [{rlprof.__version__}]" in changelog or "## [Unreleased]" in changelog


def test_the_licence_named_in_the_metadata_is_the_one_shipped() -> None:
    text = (ROOT / "LICENSE").read_text()
    assert PROJECT["license"] == "Apache-2.0"
    assert "Apache License" in text
    assert "Version 2.0" in text
