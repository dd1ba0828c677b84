"""What `rlprof optimize embodied` reports, as a document of `benchmarks.gpu.optimize`: fewer orders ran."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rlprof.overlap.optimize.result import FORMAT

Document = dict[str, Any]


def is_report(document: Mapping[str, Any]) -> bool:
    """Whether it is a ``result.json`` of an optimisation of embodied training."""
    facts = document.get("facts")
    return document.get("format") == FORMAT and isinstance(facts, Mapping) and "config" in facts


def as_run(document: Mapping[str, Any]) -> Document:
    """Return the report of an optimisation in the form of a run.

    Its iterations are those of the native order and of the selected graph that were compared with each other
    (all, where none were): warm-ups and iterations of other graphs do not count. Samples of activity and
    phases are not in a report.

    Parameters
    ----------
    document : mapping
        As `is_report` knows it.
    """
    config, hardware = document["facts"]["config"], document["facts"].get("hardware", {})
    steps = config["envs"] * config["rollout_epochs"] * config["chunks"] * config["chunk_steps"]
    machine = {"gpu": hardware.get("gpu", ""), **dict(document.get("machine") or {})}
    machine |= {name: hardware[name] for name in ("torch", "python", "cores") if name in hardware}
    iterations = document.get("iterations", ())
    names = _variants(document)
    total = document.get("total") or {}
    compared = {time_s for pair in total.get("pairs", ()) for time_s in pair}
    return {
        "command": "optimize",
        "config": config,
        "argv": {},
        "machine": machine,
        "steps": {},
        "optimisation": {k: v for k, v in document.items() if k not in ("decisions", "timelines")},
        "iterations": [
            {
                "variant": names[one["graph"]],
                "warm_up": bool(compared) and one["time_s"] not in compared,
                "wall_s": one["time_s"],
                "simulator_steps_per_s": steps / one["time_s"],
                "phases_s": {},
                "sm_activity": one["sm_activity"],
            }
            for one in iterations
            if one["graph"] in names
        ],
    }


def _variants(document: Mapping[str, Any]) -> dict[str, str]:
    """Names of the graphs that ran, by hash: the first one is native, the last one was selected."""
    told = {entry["what"]: entry.get("graph") for entry in document.get("decisions", ())}
    first, last = told.get("started"), told.get("ended")
    found = {last: "optimised"} if last is not None and document.get("steps") else {}
    return found | ({first: "native"} if first is not None else {})
