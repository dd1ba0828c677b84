"""The bound of a stored optimisation, by today's rules.

    python -m benchmarks.gpu.stored_bound OUT/optimize_libero.json OUT/measurements.jsonl

Takes durations and activity of the profiled native iteration from the measurements, what native iterations
took from the result, and the graph from a recording of the same program at tiny size. The result stays as it
is.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.gpu.bounds import Profiled, Spread, spreads
from benchmarks.gpu.embodied_report import said_in_a_line
from benchmarks.gpu.solo import Reading, Use, busy_shares
from rlprof.errors import UnreadableError, UsageError

if TYPE_CHECKING:
    from rlprof.overlap.callgraph import CallGraph
    from rlprof.overlap.optimize.windows import Window

#: Values of a configuration that decide which calls there are; older results lack those of newer options.
SHAPE = (
    "policy",
    "envs",
    "rollout_epochs",
    "chunks",
    "update_epochs",
    "global_batch",
    "minibatch_scope",
    "whole_answers",
    "prefix_worker",
    "keep_prefix",
)


def record(config: Mapping[str, Any], scratch: Path) -> CallGraph:
    """Record two iterations of the program of a configuration, with tiny models and a small simulator."""
    from rlprof.workloads.embodied.config import configure
    from rlprof.workloads.embodied.optimize import embodied

    shape = {name: config[name] for name in SHAPE if name in config}
    if shape.get("keep_prefix"):
        shape["train"] = "expert"
    small = configure(
        "tiny",
        **shape,
        micro_batch=shape["global_batch"],
        simulator="mujoco_arm",
        chunk_steps=1,
        episode_steps=shape["chunks"],
        workers=1,
        cameras=0,
    )
    with embodied(small, scratch, spares=1, activity="off") as here:
        return here.workload.native


def stored_uses(document: Mapping[str, Any]) -> list[Use]:
    """What the native iterations of a stored result took; older ones tell of the profiled one alone.

    Results without readings have a mean over all that was watched: their busy time is at most as long, since
    what was not of the iteration is in it. So is the processor time of all older results.
    """
    if document.get("native_use"):
        return [Use(**one) for one in document["native_use"].values()]
    step = document["steps"]["native_profile"]
    core_s = step["own_core_s"] + step["simulator_core_s"]
    if (stored := step.get("gpu_utilization_readings")) is None:
        if step.get("gpu_utilization") is None:
            return [Use(0.0, step["wall_s"], core_s, None, "no utilisation was read")]
        return [Use(0.0, step["wall_s"], core_s, step["gpu_utilization"] * step["seconds"])]
    start_s = step.get("first_call_s", 0.0)
    end_s = start_s + step["wall_s"]
    shares = busy_shares([Reading(*one) for one in stored], start_s, end_s)
    return [Use(start_s, end_s, core_s, sum(r.busy_frac * share_s for r, share_s in shares))]


def again(document: Mapping[str, Any], windows: Sequence[Window], native: CallGraph) -> dict[str, Spread]:
    """Bounds of a stored result, by kind of graph.

    Raises
    ------
    UsageError
        If the graph is not that of the result.
    """
    expected = document["steps"]["build_and_record"]["native"]
    if native.hash != expected:
        raise UsageError(
            f"the graph {native.hash[:12]} is not that of the result, {expected[:12]}",
            hint="use the version of the program that made it",
        )
    config = document["config"]
    mps = str(document["argv"].get("mps")) == "True"
    profiled = Profiled(
        native,
        windows,
        slices=not (mps and config["simulator"] == "mujoco_warp"),
        cores=int(document["machine"]["cores"]),
    )
    return spreads(profiled, stored_uses(document))


def windows_of(measurements: Path) -> tuple[Window, ...]:
    """Windows of the first profile among measurements, that of the native iteration."""
    from rlprof.overlap.optimize.workload import Profile

    with measurements.open() as lines:
        for line in lines:
            entry = json.loads(line)
            if entry.get("kind") == "profile":
                return Profile.from_dict(entry["value"]).windows
    raise UsageError(f"{measurements} has no profile", hint="give measurements.jsonl of the run")


@contextmanager
def readable(path: Path) -> Iterator[None]:
    """In the block, what a file lacks or cannot be read as is an error of that file."""
    try:
        yield
    except OSError as error:
        raise UnreadableError(f"cannot be read ({error.strerror})", where=path) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else f"is damaged ({error})"
        hint = "give what benchmarks.gpu.optimize wrote"
        raise UnreadableError(what, where=path, hint=hint) from error


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("result", type=Path)
    parser.add_argument("measurements", type=Path)
    args = parser.parse_args()
    with readable(args.measurements):
        windows = windows_of(args.measurements)
    with readable(args.result):
        document = json.loads(args.result.read_text())
        with tempfile.TemporaryDirectory() as scratch:
            native = record(document["config"], Path(scratch))
        found = again(document, windows, native)
    for kind, spread in found.items():
        told = spread.to_dict()["over_iterations"]
        print(f"{kind}: {told['median_s']:.2f} s ({spread.median.binding}), {told['iterations']} iterations,"
              f" {told['least_s']:.2f} to {told['most_s']:.2f} s")  # fmt: skip
        for one in spread.median.limits:
            print(f"  {one}")
        for one in spread.median.assumed:
            print(f"  beside it: {one}")


if __name__ == "__main__":
    with said_in_a_line():
        main()
