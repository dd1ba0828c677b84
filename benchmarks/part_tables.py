"""Tables of parts of embodied training that `benchmarks/gpu` measures by themselves."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.embodied_tables import machine_line
from benchmarks.gpu.answer_cost import PARTS, WAYS


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


def overlap_probe_table(result: dict[str, Any]) -> str:
    """Seconds of answers and chunks alone and side by side, and of known work beside simulators."""
    out = [
        machine_line(result) + ": median (10 % .. 90 %).",
        "",
        "| drawn, nice value | answer alone s | chunk alone s | two chunks at once s | answer beside s"
        " | chunk beside s | both, one after the other s"
        " | known work beside two simulators, times as long: GPU, core, wake-up |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    states = ("answer_alone", "step_alone", "steps_at_once", "answer_beside", "step_beside", "cycle")
    for name, found in result["steps"].items():
        if not found.get("ok") or "cycle" not in found:
            continue
        each = (found[state] for state in states)
        times = [f"{s['median_s']:.3f} ({s['p10_s']:.3f}..{s['p90_s']:.3f})" for s in each]
        beside = found["gauges_beside_steps"]
        known = (f"{beside[k]['mean_s'] / one['mean_s']:.2f}" for k, one in found["gauges_alone"].items())
        out.append(f"| {' | '.join([name, *times, ', '.join(known)])} |")
    return "\n".join(out)


def drawing_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.drawing`."""
    facts, ways = result["machine"], ("alone", "together", "sparing", "nothing")
    found = {name: step for name, step in result["steps"].items() if step["ok"]}
    shown = [way for way in ways if any(way in step for step in found.values())]
    gpu, driver = facts["gpu"].split("\n")[0].split(", ")[:2]
    lines = [
        f"{facts['date']}, {gpu}, driver {driver}, {facts['cores']} cores; an environment is two images of"
        " 224 x 224. Milliseconds of a round, which ends with the last process: median (min..max).",
        "",
        f"| in | {' | '.join(f'read back {way}' for way in shown)} | waiting for pixels then | same bits |",
        f"|---|{'---:|' * (len(shown) + 2)}",
    ]
    for name, step in found.items():
        cells = [_spread_ms(step[way]["round_ms"]) for way in shown]
        waiting = f"{step['together']['reading_ms_per_env']['median']:.1f} of an environment"
        same = "yes" if step["images_equal"] else "NO"
        lines.append(f"| {name} | {' | '.join(cells)} | {waiting} | {same} |")
    return "\n".join(lines)


def _spread_ms(found: dict[str, float]) -> str:
    return f"{found['median']:.1f} ({found['min']:.1f}..{found['max']:.1f})"


def answer_cost_table(result: dict[str, Any]) -> str:
    """Conditions and measurements of `benchmarks.gpu.answer_cost`."""
    m = result["machine"]
    gpu, driver, *_ = m["gpu"].splitlines()[0].split(", ")
    out = [
        f"{m['date']}, {gpu}, driver {driver}, {m['cores']} cores, Python {m['python']}, torch {m['torch']}."
        " Milliseconds: means over rounds of a round's median; the time of what is empty was over.",
        "",
        f"| samples | way | rounds | {' | '.join(PARTS)} | of the captured answer | actions differ from eager"
        " ones by at most |",
        f"|---:|---|---:|{'---:|' * (len(PARTS) + 2)}",
    ]
    far = {(d["batch"], d["way"]): d["actions_most"] for d in result["differences"]}
    for batch, way in ((b, w) for b in sorted({b for b, _ in far}) for w in WAYS if (b, w) in far):
        rows = [r for r in result["rows"] if (r["batch"], r["way"]) == (batch, way)]
        base = [r["answer_ms"] for r in result["rows"] if (r["batch"], r["way"]) == (batch, "captured")]
        means = [statistics.mean(r[f"{part}_ms"] for r in rows) for part in PARTS] if rows else []
        shown = [f"{ms:.1f}" for ms in means] or [""] * len(PARTS)
        over = f"{means[-1] / statistics.mean(base):.2f}" if means and base else ""
        cells = [str(batch), way, str(len(rows)), *shown, over, f"{far[batch, way]:.1e}"]
        out.append(f"| {' | '.join(cells)} |")
    return "\n".join(out)


def rollout_quota_table(result: dict[str, Any]) -> str:
    """Conditions and the levels of `benchmarks.gpu.rollout_quota`."""
    c, quotas = result["config"], result["quotas"]
    out = [
        f"{machine_line(result)}, {c['simulator']} (substeps {c['substeps']}, objects {c['objects']}):"
        f" {c['policy']}, {c['envs']} environments, chunks of {c['chunk_steps']} actions, under an MPS"
        " daemon. Seconds until an answer and a chunk at the same time are both ready, for the mean chunk of"
        " an episode (`benchmarks.gpu.quota_rounds`).",
        "",
        "| quota of the rollout | SMs | rounds with each chunk | both ready s | less than with all SMs"
        " | the same, median of rounds with equal chunks | rollout ready s | simulator ready s |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    chunks = sorted({int(c) for told in result["summary"].values() for c in told["chunks"]})
    levels = sorted(result["summary"].items(), key=lambda item: -item[1]["sms"])
    for level, told in levels:
        rounds = [told["chunks"].get(str(c), {"rounds": 0})["rounds"] for c in chunks]
        shares = [1 - told[name] for name in ("over_all_sms", "median_round_over_all_sms")]
        cells = [
            *(level, str(told["sms"]), " + ".join(map(str, rounds)), f"{told['time_s']:.3f}"),
            *("" if told["over_all_sms"] == 1 else f"{100 * less:.1f} %" for less in shares),
            *(f"{told[f'{who}_ready_s']:.3f}" for who in ("rollout", "simulator")),
        ]
        out.append(f"| {' | '.join(cells)} |")
    waits = quotas["pair"]
    slack = f"Slack: {waits['slack_s']:.2f} s of the {waits['earlier']}, in {waits['agreeing']} rounds."
    return "\n".join([*out, "", f"{slack} Decision of Algorithm 2: {quotas['reason']}."])
