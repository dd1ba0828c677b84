"""Fixtures shared by all tests."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator
from contextlib import suppress
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
DATA = Path(__file__).resolve().parent / "data"


def python_path(*first: Path) -> str:
    """PYTHONPATH of a child: folders, this checkout, and what the caller has, where packages may be alone."""
    callers = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join([*map(str, first), str(ROOT), *filter(None, callers)])


# A limit of 200 ms for an example says how busy the machine is: nothing here is judged by its time.
with suppress(ImportError):  # a GPU machine may have none
    from hypothesis import HealthCheck, settings

    settings.register_profile("untimed", deadline=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("untimed")

# Tests run beside each other: with several threads each they, and their children, would only wait.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Hear Ctrl-C, which shells let jobs in their background ignore: tests and their children send it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Let the garbage collector rest: next to nothing of what is loaded meanwhile is garbage."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Spare the garbage collector the tests and modules, which stay: it would often go over them."""
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def shared_traces() -> Path:
    """Public captures kept beside the repository; tests that need them skip without them."""
    folder = ROOT.parent / "shared" / "traces"
    if not (folder / "nsys").is_dir():
        pytest.skip("the public captures are not beside this checkout (../shared/traces)")
    return folder


@pytest.fixture(scope="session")
def data() -> Path:
    """Small captures that belong to the repository."""
    return DATA
