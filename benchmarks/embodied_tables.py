"""Tables of what `benchmarks/gpu/embodied.sh` and `optimize.sh` brought back."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from benchmarks.gpu.same_iteration import weakest
from rlprof.reproduce.rose.results import setup_of

#: Schedules of today's systems; `native` is the colocated loop of a program whose calls are recorded.
TODAYS = ("colocated", "native", "colocated-pipe", "hybrid", "hybrid-pipe")


def machine_line(result: dict[str, Any]) -> str:
    """Where and with what a run of embodied training was measured."""
    m = result["machine"]
    gpu, driver, *_ = m["gpu"].splitlines()[0].split(", ")
    versions = f"Python {m['python']}, torch {m['torch']}, transformers {m['transformers']}"
    return f"{m['date']}, {gpu}, driver {driver}, {m['cores']} cores, {versions}"


def _conditions(result: dict[str, Any], source: str) -> str:
    c = result["config"]
    steps = f"{c['denoise_steps']} denoise steps" if c.get("denoise_steps") else "denoise steps"
    if c.get("cuda_graph"):
        steps += " as CUDA graphs"
    return (
        f"{machine_line(result)}, {_simulator(c)}: {c['policy']}, {c['algorithm']}, {c['envs']} environments,"
        f" {c['rollout_epochs']} x {c['chunks']} chunks of {c['chunk_steps']} actions, {c['cameras']} cameras"
        f" of {c['image']} x {c['image']}{'' if steps == 'denoise steps' else f', {steps}'}"
        f"{', layers of answers compiled' if c.get('compile_policy') else ''}"
        f"{', prefixes kept for training' if c.get('keep_prefix') else ''}"
        f"{', by a graph with resets ahead' if c.get('reset_ahead') else ''};"
        f" activity by {source}. Variants take turns; the first iteration of each is not counted."
        f"{_one_iteration(result)}"
    )


def _one_iteration(result: dict[str, Any]) -> str:
    kept = result.get("same_iteration") or {}
    if not kept.get("kept"):
        return ""
    return f" All train the same iteration, number {kept['iteration']}, from the same weights."


def iterations_table(result: dict[str, Any]) -> str:
    """Conditions, Table 1, and complete iterations of a run of `benchmarks.gpu.embodied`."""
    withdrawn = result.get("withdrawn", {})
    out = [
        _conditions(result, result["activity_source"]),
        "",
        "| variant | placement | iterations | simulator steps/s: median (min..max) | iteration s | rollouts s"
        " | training s | moves s | SM activity % |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in result["iterations"]:
        if not row["warm_up"]:
            rows.setdefault(row["variant"], []).append(row)
    if not rows:
        out = out[:1]
    for name, done in rows.items():
        if name in withdrawn:
            out.append(f"| {name} | withdrawn: {withdrawn[name]} | {len(done)} | | | | | | |")
            continue
        rates = [r["simulator_steps_per_s"] for r in done]
        active = [r["activity"]["iteration"] for r in done if isinstance(r["activity"], dict)]
        phases = [_median(r["phases_s"][p] for r in done) for p in ("generate_rollouts", "actor_training")]
        moves = [r["moves_s"] for r in done if r.get("moves_s")]
        shown = [
            *(name, done[0]["placement"], str(len(done))),
            f"{_median(rates):.1f} ({min(rates):.1f}..{max(rates):.1f})",
            *(f"{s:.2f}" for s in (_median(r["wall_s"] for r in done), *phases)),
            f"{_median(moves):.2f}" if moves else "",
            f"{100 * statistics.mean(active):.1f}" if active else "",
        ]
        out.append(f"| {' | '.join(shown)} |")
    if "solo_serial" in result["steps"]:
        out += ["", *_table1(result)]
    return "\n".join(out)


def _table1(result: dict[str, Any]) -> list[str]:
    serial = _median(result["steps"]["solo_serial"]["each_s"])
    names = {
        "inference": "inference alone",
        "captured": "the same, denoise steps as CUDA graphs",
        "simulation": "simulation alone",
        "serial": "serial",
        "overlapped": "overlapped (all environments, two threads)",
        "two_groups": "two halves in turn",
    }
    out = [
        "| a chunk of all environments | s: median (min..max) | serial over it | SM activity % |",
        "|---|---:|---:|---:|",
    ]
    for name, shown in names.items():
        if not (each := result["steps"].get(f"solo_{name}", {}).get("each_s")):
            continue
        gain = f"{serial / _median(each):.2f}" if name in ("overlapped", "two_groups") else ""
        active = result["steps"][f"solo_{name}"].get("activity")
        # an early run took the slow first call into the activity
        known = isinstance(active, dict) and not result.get("solo_activity_includes_first_call")
        share = f"{100 * active[name]:.1f}" if known else ""
        out.append(f"| {shown} | {_median(each):.3f} ({min(each):.3f}..{max(each):.3f}) | {gain} | {share} |")
    return out


def optimised_table(result: dict[str, Any], beside: Sequence[dict[str, Any]] = ()) -> str:
    """Conditions, complete iterations, and what was decided in a run of `benchmarks.gpu.optimize`.

    Parameters
    ----------
    result : dict
        Of the run.
    beside : sequence of dict
        Results of other runs: of the same iteration with an MPS daemon, where this one had none, or without.
    """
    rows = _counted(result)
    rates = {name: [r["simulator_steps_per_s"] for r in of] for name, of in rows.items()}
    sources = {r["over_time"]["source"] for of in rows.values() for r in of if r.get("over_time")}
    out = [
        _conditions(result, " and ".join(sorted(sources)) or "nobody"),
        "",
        "| order | placement | iterations | simulator steps/s: median (min..max) | over the best of today's"
        " | iteration s | rollouts s | training s | SM activity % | differences of the semantic record |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    best = max((_median(rates[n]) for n in rows if _of_today(n)), default=None)
    for name, of in rows.items():
        active = [r["sm_activity"] for r in of if r.get("sm_activity") is not None]
        phases = (_median(r["phases_s"][p] for r in of) for p in ("generate_rollouts", "actor_training"))
        shown = [
            *(_shown(name), of[0]["placement"], str(len(of))),
            f"{_median(rates[name]):.1f} ({min(rates[name]):.1f}..{max(rates[name]):.1f})",
            f"{_median(rates[name]) / best:.3f}" if best else "",
            *(f"{s:.2f}" for s in (_median(r["wall_s"] for r in of), *phases)),
            f"{100 * statistics.mean(active):.1f}" if active else "",
            str(sum(len(r["semantic_differences"]) for r in of)),
        ]
        out.append(f"| {' | '.join(shown)} |")
    return "\n".join([*out, *_decided(result, [*_as_native(rows), *_either_way(result, beside)])])


def _counted(result: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Whole iterations that count, by order."""
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in result["iterations"]:
        if not (row["warm_up"] or row.get("short")):
            rows.setdefault(row["variant"], []).append(row)
    return rows


def _of_today(name: str) -> bool:
    """Whether an order is a schedule of today's systems, with levers that any may have, drawn wherever."""
    return name.partition(",")[0].partition("+")[0] in TODAYS


def _shown(name: str) -> str:
    return name.replace("native", "colocated", 1)


def _as_native(rows: dict[str, list[dict[str, Any]]]) -> list[tuple[str, str]]:
    """How what each order trained compares with native training of the same iteration."""
    found = []
    for name, of in rows.items():
        if (told := weakest([r["against_native"] for r in of if "against_native" in r])) is None:
            continue
        again = " once more" if name == "native" else ""
        what = f"trained by `{_shown(name)}`{again}, beside native training of the same iteration"
        if told["equality"] == "bitwise":
            text = "bitwise: weights, losses and minibatches"
        elif told["equality"] == "semantic record":
            parts = [f"weights by at most {told['weights_abs']:.1e}"]
            if told["updates_rel"] is not None:
                parts.append(f"what it changed of them by {100 * told['updates_rel']:.2g} % of its norm")
            relative = "" if told["losses_rel"] is None else f" (relative {told['losses_rel']:.1e})"
            parts.append(f"losses by at most {told['losses_abs']:.1e}{relative}")
            text = f"semantic record; bits differ: {', '.join(parts)}"
        else:
            text = "semantic records differ"
        found.append((what, text if told["holds"] else f"NOT EQUAL: {text}"))
    return found


def _either_way(result: dict[str, Any], beside: Sequence[dict[str, Any]]) -> list[tuple[str, str]]:
    """What graphs gain over the best of today's schedules of two runs, with an MPS daemon and without."""
    runs = [result, *(other for other in beside if _other_way(result, other))]
    if len(runs) == 1:
        return []
    todays = [
        (_median(r["simulator_steps_per_s"] for r in of), name, one)
        for one in runs
        for name, of in _counted(one).items()
        if _of_today(name)
    ]
    if not todays:
        return []
    best, name, one = max(todays, key=lambda item: item[0])
    text = f"{_shown(name)} {'under' if _under_mps(one) else 'without'} a daemon, {best:.1f} steps/s"
    if one is not result:
        weights = {r["same_iteration"].get("weights") for r in (result, one)}
        bits = "of the same" if len(weights) == 1 and None not in weights else "of other"
        text += f"; both runs train the same iteration, from weights {bits} bits"
    rows = _counted(result)
    return [
        (
            f"`{graph}` over the best of today's with an MPS daemon or without",
            f"{_median(r['simulator_steps_per_s'] for r in rows[graph]) / best:.3f}: {text}",
        )
        for graph in ("optimised", "by hand")
        if graph in rows
    ]


def _under_mps(result: dict[str, Any]) -> bool:
    return str(result["argv"].get("mps")) == "True"


def _other_way(result: dict[str, Any], other: dict[str, Any]) -> bool:
    """Whether two runs trained the same iteration, one of them under an MPS daemon."""
    kept = [r.get("same_iteration") for r in (result, other)]
    if not all(k and k.get("kept") for k in kept) or _under_mps(result) == _under_mps(other):
        return False
    same = [[k[field] for field in ("iteration", "updates")] for k in kept if k]
    return setup_of(result["config"]) == setup_of(other["config"]) and same[0] == same[1]


def _decided(result: dict[str, Any], further: Sequence[tuple[str, str]] = ()) -> list[str]:
    """Bound, outcome and cost of a search, replays, and what more is told, as rows of a table."""
    rows = []
    if found := result.get("optimisation"):
        steps = "; ".join(f"`{step}`" for step in found["steps"]) or "none"
        rows.append(("steps that Algorithm 1 selected", steps.replace("iteration/generate_rollouts/", "")))
        rows.append(("how its search ended", found["ended"]))
        spent = found["overhead"]
        rows.append(
            (
                "seconds of the search: in all, training that counts, net",
                ", ".join(f"{spent[k]:.1f}" for k in ("total_s", "retained_training_s", "net_s")),
            )
        )
        if (after := spent.get("paid_back_after_iterations")) is not None:
            rows.append(("paid back after iterations", f"{after:.0f}"))
    medians = result.get("summary") or {}
    by_graph = medians.get("optimised") or medians.get("by hand") or {}
    most = by_graph.get("most_speedup") or {}
    for name, bound in (result.get("bound") or {}).items():
        over = bound.get("over_iterations") or {}
        rows.append((f"bound, {name}", _limit(bound["least_s"], bound["binding"], most.get(name), over)))
        for one in bound.get("assumed") or ():  # no bound: it holds only as its name says
            known = name in most and one["least_s"]
            gain = most[name] * bound["least_s"] / one["least_s"] if known else None
            spread = over.get("assumed", {}).get(one["name"]) or {}
            spread = {**spread, "iterations": over.get("iterations", 1)} if spread else {}
            told = _limit(one["least_s"], one["name"], gain, spread)
            rows.append((f"beside it, {name}", told))
    for name, step in result["steps"].items():
        if name.endswith("_replay") and step.get("ok"):
            what = f"native answers to {step['calls']} calls of `{name.removesuffix('_replay')}`, replayed"
            far = f"actions differ by at most {step['actions']:.1e}; "
            if "evaluated" not in step:  # that of a redrawn noise says nothing about an answer
                rows.append((what, f"{far}log-probabilities of recorded chains were not evaluated"))
                continue
            far += f"log-probabilities of recorded chains by {step['evaluated']:.1e}"
            limits = (
                f"allowed {step['log_prob_tolerance']:.1e}, of points of chains {step['chain_tolerance']:.1e}"
            )
            rows.append((what, f"{far} ({limits}): {'passed' if step['passed'] else 'FAILED'}"))
    rows += further
    return ["", "| | |", "|---|---|", *(f"| {a} | {b} |" for a, b in rows)] if rows else []


def _limit(least_s: float, name: str, gain: float | None, over: dict[str, Any]) -> str:
    """What a limit allows, by what, and how far apart iterations put it."""
    text = f"{gain:.2f} times as fast; " if gain is not None else ""
    text += f"{least_s:.2f} s, by {name}"
    if over.get("iterations", 1) > 1:
        text += f"; {over['least_s']:.2f} to {over['most_s']:.2f} s in {over['iterations']} native iterations"
    return text


def _simulator(config: dict[str, Any]) -> str:
    own = ("rendering", "shadows", "every_action", "tasks", "substeps", "objects", "rollout_process")
    said = [f"{name} {config[name]}" for name in own if config.get(name)]
    shown = f" ({', '.join(said)})" if said else ""
    processes = 1 if config["simulator"] == "mujoco_warp" else config["workers"]
    turns = f", {cores} at a time on the cores" if (cores := config.get("simulator_cores")) else ""
    return f"{config['simulator']}{shown} in {processes} process{'es' if processes > 1 else ''}{turns}"


def _median(values: Any) -> float:
    return float(statistics.median(values))
