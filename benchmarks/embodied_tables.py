"""Tables of what `benchmarks/gpu/embodied.sh` brought back."""

from __future__ import annotations

import statistics
from typing import Any


def _machine(result: dict[str, Any]) -> str:
    m = result["machine"]
    gpu, driver, *_ = m["gpu"].splitlines()[0].split(", ")
    versions = f"Python {m['python']}, torch {m['torch']}, transformers {m['transformers']}"
    return f"{m['date']}, {gpu}, driver {driver}, {m['cores']} cores, {versions}"


def iterations_table(result: dict[str, Any]) -> str:
    """Conditions, Table 1, and complete iterations of a run of `benchmarks.gpu.embodied`."""
    c, withdrawn = result["config"], result.get("withdrawn", {})
    out = [
        f"{_machine(result)}, {_simulator(c)}: {c['policy']}, {c['algorithm']}, {c['envs']} environments,"
        f" {c['rollout_epochs']} x {c['chunks']} chunks of {c['chunk_steps']} actions, {c['cameras']} cameras"
        f" of {c['image']} x {c['image']}; activity by {result['activity_source']}. Variants take turns; the"
        " first iteration of each is not counted.",
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


def _simulator(config: dict[str, Any]) -> str:
    own = ("rendering", "shadows", "every_action", "tasks", "substeps", "objects", "rollout_process")
    said = [f"{name} {config[name]}" for name in own if config.get(name)]
    shown = f" ({', '.join(said)})" if said else ""
    processes = 1 if config["simulator"] == "mujoco_warp" else config["workers"]
    return f"{config['simulator']}{shown} in {processes} process{'es' if processes > 1 else ''}"


def _median(values: Any) -> float:
    return float(statistics.median(values))


def warp_probe_table(result: dict[str, Any]) -> str:
    """Seconds of a chunk of mujoco_warp over worlds, substeps and objects."""
    m = result["machine"]
    gpu, driver, *_ = m["gpu"].splitlines()[0].split(", ")
    out = [
        f"{m['date']}, {gpu}, driver {driver}, warp-lang {m['warp-lang']}, mujoco-warp {m['mujoco-warp']},"
        f" mujoco {m['mujoco']}; chunks of {result['chunk_steps']} actions, two cameras, median of three.",
        "",
        "| worlds | substeps | objects | pixels | start s | reset s | physics s | render s | chunk s"
        " | steps/s |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for c in result["cases"]:
        if "chunk_s" in c:
            rate = c["worlds"] * result["chunk_steps"] / c["chunk_s"]
            out.append(
                f"| {c['worlds']} | {c['substeps']} | {c['objects']} | {c['image']} x {c['image']}"
                f" | {c['start_s']:.2f} | {c['reset_s']:.3f} | {c['physics_s']:.3f} | {c['render_s']:.3f}"
                f" | {c['chunk_s']:.3f} | {rate:,.0f} |"
            )
    return "\n".join(out)
