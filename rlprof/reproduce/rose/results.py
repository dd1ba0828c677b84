"""Measurements of embodied RL: documents that scripts in `benchmarks/gpu` wrote, or one made here.

`python -m benchmarks.place_rose OUT` puts such documents where they are looked for.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rlprof.reproduce.errors import ReproduceError
from rlprof.reproduce.rose.here import measured_here, settings
from rlprof.reproduce.rose.provenance import provenance, run_facts
from rlprof.reproduce.rose.reported import as_run, is_report
from rlprof.reproduce.rose.rounds import with_decisions
from rlprof.reproduce.study import Study

if TYPE_CHECKING:
    import polars as pl

FOLDER = "benchmarks/results/gpu"
#: Optimisations on a processor.
PROCESSOR_FOLDER = "benchmarks/results/optimize"
#: Which of the paper's simulators each stands for; physics of the arm run on a processor, as LIBERO's.
PAPER_SIMULATORS = {"libero": "LIBERO", "mujoco_warp": "ManiSkill", "mujoco_arm": "LIBERO"}
#: What makes the optimisations of a preset, on a machine that it fits.
MADE_BY = {
    "smoke": "python -m benchmarks.gpu.optimize --out OUT --preset tiny --device cpu --workers 1",
    "h200": "bash benchmarks/gpu/optimize.sh OUT libero (or mujoco_warp) on a GPU",
}
#: What the paper calls each policy; pi0 stands for pi0.5.
PAPER_POLICIES = {
    "pi0": "pi0.5",
    "pi05": "pi0.5",
    "openvla_oft": "OpenVLA-OFT",
    "gr00t": "GR00T N1.6",
}
#: The policy of a workload, unless its name says otherwise.
USUAL_POLICY = "pi0"
#: Options that say how an MPS daemon's clients share SMs, or how a run is measured, not what is trained.
OF_MPS = ("simulator_sm_percent", "rollout_sm_percent", "same_iteration", "timeout_s")
#: What configurations had that lack it: they were stored before there was a choice.
BEFORE = {"simulator_cores": 0}
#: Actions of a chunk, unless a workload's name says otherwise.
USUAL_CHUNK = 5
#: Environments by simulator, unless a workload's name says otherwise; names with other simulators never do.
USUAL_ENVS = {"libero": 16, "mujoco_warp": 80}
Document = dict[str, Any]


def documents(
    checkout: Path, wanted: Callable[[Document], bool], folder: str = FOLDER
) -> dict[str, Document]:
    """Return the documents of measurements that are stored, by file.

    Parameters
    ----------
    checkout : pathlib.Path
        Holds `folder`.
    wanted : callable
        Says which; by content, whatever the file is called.
    folder : str
        Of measurements on GPUs, or another one.
    """
    found: dict[str, Document] = {}
    for path in sorted((checkout / folder).rglob("*.json")):
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            continue
        if isinstance(document, dict) and is_report(document):
            document = as_run(document)
        if isinstance(document, dict) and wanted(document):
            found[str(path.relative_to(checkout / folder))] = document
    return found


def on_gpu(document: Document) -> bool:
    """Whether a run of `benchmarks.gpu.embodied`, `optimize` or `rollout_quota` was on a GPU."""
    config = document.get("config")
    return (
        document.get("command") in ("run", "optimize", "rollout_quota")
        and isinstance(config, dict)
        and str(config.get("device", "")).startswith("cuda")
    )


def is_optimisation(document: Document) -> bool:
    """Whether `benchmarks.gpu.optimize` wrote it, or `rlprof optimize` reported it, wherever it ran."""
    return document.get("command") == "optimize" and isinstance(document.get("config"), dict)


def is_rollout_quota(document: Document) -> bool:
    """Whether `benchmarks.gpu.rollout_quota` wrote it."""
    return document.get("command") == "rollout_quota" and isinstance(document.get("config"), dict)


def optimisation_study(
    name: str,
    preset: str,
    seed: int,
    checkout: Path,
    rows_of: Callable[[str, Document], Sequence[dict[str, Any]]],
    beside: Mapping[str, Any] | None = None,
) -> Study:
    """Return a study of stored optimisations: on a GPU (`h200`), or small on a processor (`smoke`).

    Parameters
    ----------
    name, preset, seed, checkout
        As of every study. The seed tells tables apart; stored measurements have their own.
    rows_of : callable
        Rows of a document, given its file. Documents without rows are no cases.
    beside : mapping, optional
        What else the rows are made of.

    Returns
    -------
    Study
        Without cases, and with the command that makes them, if nothing is stored.
    """

    def wanted(document: Document) -> bool:
        here = on_gpu(document) if preset == "h200" else not on_gpu(document)
        return is_optimisation(document) and here and bool(rows_of("", document))

    stored = documents(checkout, wanted, FOLDER if preset == "h200" else PROCESSOR_FOLDER)
    if stored:
        return stored_study(name, preset, seed, with_decisions(stored, checkout), rows_of, beside)
    made_by = f"{MADE_BY[preset]}, then python -m benchmarks.place_rose OUT"
    return Study(name, preset, seed, {}, {}, reads=True, missing=f"no optimisation is stored: {made_by}")


def measured_study(
    name: str,
    preset: str,
    seed: int,
    checkout: Path,
    wanted: Callable[[Document], bool],
    rows_of: Callable[[str, Document], Sequence[dict[str, Any]]],
    parts: str,
) -> Study:
    """Return a study of stored measurements (`h200`), or of one made here (`smoke`).

    Parameters
    ----------
    name, preset, seed, checkout
        As of every study. The seed tells tables apart; stored measurements have their own.
    wanted : callable
        Which stored documents.
    rows_of : callable
        Rows of a document, given its file.
    parts : str
        What is measured here.
    """
    if preset == "smoke":
        cases: dict[str, Callable[[], Sequence[dict[str, Any]]]] = {
            "here": lambda: rows_of("here", measured_here(checkout, parts))
        }
        return Study(name, preset, seed, {"arguments": settings(parts)}, cases)
    return stored_study(name, preset, seed, documents(checkout, wanted), rows_of)


def stored_study(
    name: str,
    preset: str,
    seed: int,
    stored: Mapping[str, Document],
    rows_of: Callable[[str, Document], Sequence[dict[str, Any]]],
    beside: Mapping[str, Any] | None = None,
) -> Study:
    """Return a study of stored documents: other documents make another table.

    Parameters
    ----------
    name, preset, seed
        As of every study.
    stored : mapping of str to dict
        The documents, by file.
    rows_of : callable
        Rows of a document, given its file.
    beside : mapping, optional
        What else the rows are made of, plain values by name.

    Raises
    ------
    ReproduceError
        If there are none.
    """
    if not stored:
        raise ReproduceError(
            f"no measurements for {name} are stored",
            where=FOLDER,
            hint="scripts in benchmarks/gpu make them, python -m benchmarks.place_rose OUT stores them",
        )
    digests = {
        file: hashlib.sha256(json.dumps(d, sort_keys=True).encode()).hexdigest()[:12]
        for file, d in {**stored, **(beside or {})}.items()
    }
    cases = {file: partial(rows_of, file, document) for file, document in stored.items()}

    def stale(frame: pl.DataFrame) -> str | None:
        """A table of an earlier version has other columns."""
        columns = {name for rows in cases.values() for row in rows() for name in row}
        return None if {"case", *columns} == set(frame.columns) else "it has the columns of another version"

    measured = {file: provenance(document) for file, document in stored.items()}
    return Study(name, preset, seed, {"files": digests}, cases, reads=True, stale=stale, measured=measured)


def workload(simulator: str, chunk_steps: int, policy: str = USUAL_POLICY, envs: int | None = None) -> str:
    """Name what is trained, for people: runs of other chunks, policies, environments are not compared.

    Parameters
    ----------
    simulator : str
        Its name; the workload's name begins with it, see `simulator_of`.
    chunk_steps : int
        Actions of a chunk.
    policy : str
        Its name; told where it is not the usual one, see `policy_of`.
    envs : int, optional
        How many; told where they are not as many as usual with that simulator.
    """
    words = [simulator]
    words += [policy] if policy != USUAL_POLICY else []
    words += [f"{envs} environments"] if envs not in (None, USUAL_ENVS.get(simulator, envs)) else []
    words += [f"{chunk_steps} actions a chunk"] if chunk_steps != USUAL_CHUNK else []
    return ", ".join(words)


def policy_of(workload: str) -> str:
    """Return the policy of a workload, given its name."""
    words = workload.split(", ")[1:2]
    return words[0] if words and words[0] in PAPER_POLICIES else USUAL_POLICY


def paper_name(workload: str) -> str:
    """Return what the paper calls the policy of a workload."""
    return PAPER_POLICIES[policy_of(workload)]


def simulator_of(workload: str) -> str:
    """Return the simulator of a workload, given its name."""
    return workload.partition(",")[0]


def file_stem(workload: str) -> str:
    """Return the name of a workload as part of a file's."""
    return "_".join(re.findall(r"\w+", workload))


def facts(file: str, document: Document) -> dict[str, Any]:
    """Return what every row holds of the run that it belongs to."""
    config = document["config"]
    chunk_steps = config.get("chunk_steps", USUAL_CHUNK)
    return {
        "file": file,
        "simulator": config["simulator"],
        "workload": workload(config["simulator"], chunk_steps, config["policy"], config["envs"]),
        "setup": setup_of(config),
        "policy": config["policy"],
        "preset": config.get("preset"),
        "envs": config["envs"],
        "chunk_steps": chunk_steps,
        "denoise_steps": config.get("denoise_steps"),
        "device": config["device"],
        **run_facts(document),
        "workers": config.get("workers"),
        "simulator_cores": config.get("simulator_cores") or 0,
        "cuda_graph": bool(config.get("cuda_graph")),
        "mps": str(document.get("argv", {}).get("mps")) == "True",
        "same_iteration": same_iteration(document),
    }


def setup_of(config: Mapping[str, Any]) -> str:
    """Return a short hash of a configuration but for what an MPS daemon makes possible.

    Runs of one hash trained the same, and differ in the daemon alone.
    """
    kept = {k: v for k, v in config.items() if k not in OF_MPS and v not in (None, BEFORE.get(k))}
    return hashlib.sha256(json.dumps(kept, sort_keys=True).encode()).hexdigest()[:12]


def same_iteration(document: Document) -> str | None:
    """Return which iteration of training all counted ones of a run were; None if training went on.

    Runs with ``--same-iteration`` put weights, moments and counters back before each. Two of one such text
    began with the same bits.
    """
    kept = document.get("same_iteration")
    if not isinstance(kept, Mapping) or not kept.get("kept"):
        return None
    weights = kept.get("weights")
    return f"iteration {kept.get('iteration')}" + (f", weights {str(weights)[:12]}" if weights else "")


def with_run(frame: pl.DataFrame) -> pl.DataFrame:
    """Add the column ``run``: under what each row was measured, and where, if other runs were under the same.

    Parameters
    ----------
    frame : polars.DataFrame
        With the `facts` of each row's run.
    """
    import polars as pl

    names: dict[str, str] = {}
    of: dict[tuple[str, str], list[str]] = {}
    for row in frame.unique("file", maintain_order=True).iter_rows(named=True):
        said = ["captured steps"] if row["cuda_graph"] else []
        if row["workers"] and row["simulator"] != "mujoco_warp":  # its one process has no others beside it
            said.append(f"{row['workers']} process{'es' if row['workers'] > 1 else ''}")
        said += [f"turns on {row['simulator_cores']} cores"] if row["simulator_cores"] else []
        said.append(f"MPS {'on' if row['mps'] else 'off'}")
        names[row["file"]] = ", ".join(said)
        of.setdefault((row["workload"], names[row["file"]]), []).append(row["file"])
    for files in of.values():
        for file in files if len(files) > 1 else ():
            names[file] += f" ({file.removesuffix('.json')})"
    return frame.with_columns(pl.col("file").replace_strict(names, return_dtype=pl.String).alias("run"))


def order(document: Document, variant: str) -> str:
    """Return what an order counts as: a graph by hand, where a run searched none, as the optimised one.

    `benchmarks.gpu.optimize` takes by hand the steps that its searches of these workloads select, two rollout
    epochs side by side.
    """
    if variant != "by hand" or isinstance(document.get("optimisation"), Mapping) or document.get("given"):
        return variant
    both = any(found.get("variant") == "optimised" for found in document.get("iterations", ()))
    return variant if both else "optimised"


def outcome(document: Document) -> dict[str, Any]:
    """Return what the optimiser decided in a run of `benchmarks.gpu.optimize`, for rows.

    Returns
    -------
    dict
        ``rounds`` and ``accepted`` (how many), ``steps``, ``ended`` (why); ``quota`` ("simulator 90 %";
        empty: all SMs are kept) and ``quota_reason``. Null where nothing was searched; of a graph that
        another run had found ``accepted`` and ``steps`` are told.
    """
    found, quotas = document.get("optimisation"), document.get("quotas")
    row: dict[str, Any] = dict.fromkeys(("rounds", "accepted", "steps", "ended", "quota", "quota_reason"))
    if isinstance(found, Mapping):
        rounds = found.get("rounds") or ()
        row |= {
            "rounds": len(rounds),
            "accepted": sum(bool(r.get("accepted")) for r in rounds),
            "steps": "; ".join(found.get("steps") or ()),
            "ended": found.get("ended"),
        }
    elif isinstance(given := document.get("given"), Mapping):  # a graph that another run had found
        row |= {"accepted": given.get("accepted"), "steps": "; ".join(given.get("steps") or ())}
    if isinstance(quotas, Mapping):
        chosen = quotas.get("quotas") or {}
        row |= {
            "quota": "; ".join(f"{name} {percent} %" for name, percent in chosen.items()),
            "quota_reason": quotas.get("reason"),
        }
    return row


def set_up(row: Mapping[str, Any]) -> str:
    """Say what differs from the paper's set-up, from a row that has the facts of its run."""
    gpu, policy = row["gpu"], row["policy"]
    if row.get("preset") in ("exact", "tiny"):
        policy = f"a tiny {policy}"
    steps = "" if row["denoise_steps"] is None else f" and {row['denoise_steps']} denoise steps"
    return (
        f"another machine and program: {'a processor' if gpu == 'none' else f'one {gpu}'}, {policy} on"
        f" {row['simulator']} with {row['envs']} environments, chunks of {row['chunk_steps']} actions{steps}"
        " here; eight GPUs, pi0.5 in RLinf there"
    )
