"""Results of `benchmarks.gpu.mps` as they are kept, and their tables.

    python -m benchmarks.gpu.mps_report OUT

takes what `OUT/mps.json` holds to benchmarks/results/gpu (`mps.json`, `mps_quota.json`), without what names
the card, the user, folders or values of the environment.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

from benchmarks.gpu.common import save

Facts = dict[str, Any]
RESULTS = Path(__file__).resolve().parents[1] / "results" / "gpu"
#: What a kept result does not hold, wherever it is.
LEFT_OUT = {"uuid", "variables", "folder", "pipe", "mark", "traceback", "help", "environment"}
REPLACED = (
    (re.compile(r" of user \S+"), ""),
    (re.compile(r"(?:/[^\s'/]+)+/(python[0-9.]*)"), r"\1"),
    (re.compile(r"(?:/[^\s'/]+)+/(nvidia-cuda-mps-\w+)"), r"\1"),
    (re.compile(r"/(?:root|home|Users)/\S*/"), "OUT/"),
    (re.compile(r"GPU-[0-9a-f]{8}[-0-9a-f]*"), "GPU-x"),
    (re.compile(r"rlprof-mps-\d+/[0-9a-f]{8}"), "rlprof-mps/x"),  # named by the card
)


def public(value: Any) -> Any:
    """A result without what is of one machine or person.

    Whether a process carries the mark of its daemon stays, as `marked`; variables do not.
    """
    if isinstance(value, dict):
        kept = {name: public(found) for name, found in value.items() if name not in LEFT_OUT}
        if isinstance(environment := value.get("environment"), dict) and "pid" in value:
            kept["marked"] = "RLPROF_MPS" in environment
        return kept
    if isinstance(value, list):
        return [public(found) for found in value]
    if isinstance(value, str):
        for pattern, instead in REPLACED:
            value = pattern.sub(instead, value)
    return value


def keep(out: Path, results: Path = RESULTS) -> list[Path]:
    """Write what is kept of a run's results; return the files."""
    document = public(json.loads((out / "mps.json").read_text()))
    document.pop("tests", None)  # of the repository, not of MPS
    document.get("life", {}).get("start", {}).pop("out", None)  # variables for a shell
    quota = document.get("quota", {}).pop("result", None)
    machine = document.pop("probe")["machine"]
    command = "bash benchmarks/gpu/mps.sh OUT"
    save(results / "mps.json", {"command": command, "machine": machine, **document})
    files = [results / "mps.json"]
    if quota is not None:
        save(results / "mps_quota.json", {"command": command, "machine": machine, **quota})
        files.append(results / "mps_quota.json")
    return files


def _machine(machine: Facts) -> str:
    gpu, driver = machine["gpu"].split(", ")[:2]
    return (
        f"{machine['date']}, {gpu}, driver {driver}, {machine['cores']} cores, Python {machine['python']},"
        f" torch {machine['torch']}"
    )


def mps_table(result: Facts) -> str:
    """What was done beside a daemon, and what came of it."""
    life, levels = result["life"], result["life"]["levels"]
    amounts = [level["amount"] for level in levels["levels"]]
    contexts = life["contexts"]
    same = sum(c["sm_count"] == c["context_sm_count"] for c in contexts)
    client, foreign = life["client"], result["foreign"]
    graphs = {n: all(f["equal"].values()) and not f["errors"] for n, f in _ways(result["graphs"])}
    rates = {
        n: f"{f['samples']:,} samples, mean {f['mean_percent']:.1f} %" for n, f in _ways(result["counters"])
    }
    egl = result["egl"]
    rows = [
        ("`rlprof mps start`, `stop`", f"{life['start']['took_s']} s, {life['stop']['took_s']} s"),
        (
            "processes of the daemon that carry its mark",
            f"{sum(p['marked'] for p in life['processes'])} of {len(life['processes'])}",
        ),
        (
            "`rlprof mps levels`",
            f"{len(amounts)} levels from {len(levels['probed'])} percentages, {amounts[0]} to {amounts[-1]}"
            f" SMs, in {levels['took_s']} s",
        ),
        ("SMs before a context and of a context", f"equal for {same} of {len(contexts)} percentages"),
        (
            "a PyTorch client under 50 %",
            f"sees {client['sms_at_50']} SMs; listed: {_yes(client['listed'] == [client['pid']])},"
            f" after its end: {_yes(bool(client['listed_after']))}",
        ),
        ("`stop` beside a client", "refused" if client["stop_refused"]["code"] else "not refused"),
        (
            "a daemon of somebody else",
            f"`start` and `stop` refused: {_yes(foreign['refused'])}; still there:"
            f" {_yes(bool(foreign['still_there']['processes']))}",
        ),
        *(
            (f"its process gets {name}", f"daemon gone {found['gone_after_s']} s after it")
            for name, found in result["killed"].items()
            if name.startswith("SIG")
        ),
        (
            "two threads capture CUDA graphs at once",
            f"equal to eager: {_yes(graphs['as_client'])} as a client,"
            f" {_yes(graphs['without_mps'])} without MPS",
        ),
        (
            "SM activity of a client, 1 kHz for 1.5 s",
            f"{rates['outside']} from outside of MPS; {rates['as_client']} from a client",
        ),
        (
            "EGL image",
            f"right: {_yes(egl['without_mps']['right'])} without MPS,"
            f" {_yes(egl['with_cuda']['right'])} in a client with CUDA,"
            f" {_yes(egl['beside']['right'])} in a process that only draws, which is a client:"
            f" {_yes(egl['clients']['pid'] in egl['clients']['with_egl'])}",
        ),
    ]  # fmt: skip
    head = f"{_machine(result['machine'])}.\n\n| what | came of it |\n|---|---|\n"
    return head + "\n".join(f"| {what} | {found} |" for what, found in rows)


def _ways(step: Facts) -> list[tuple[str, Facts]]:
    return [(name, found) for name, found in step.items() if isinstance(found, dict)]


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def quota_table(result: Facts) -> str:
    """What two commands take alone, together and under the levels that were tried."""
    alone, ready = result["alone"], result["ready"]
    rows = [(f"{name} alone", _ms(found)) for name, found in alone.items()]
    rows.append(("one after the other", f"{1e3 * sum(f['median_s'] for f in alone.values()):.1f}"))
    if "unavailable" not in result["unmanaged"]:
        rows.append(("together without MPS (time-sliced)", _ms(result["unmanaged"])))
    rows.append(("together under MPS, all SMs each (q0)", _ms(result["together"])))
    rows += [(f"of these, {name} ready", _ms(found)) for name, found in ready.items()]
    out = [
        f"{_machine(result['machine'])}.",
        "",
        "| run | ms: median (quartiles) |",
        "|---|---:|",
        *(f"| {what} | {found} |" for what, found in rows),
    ]
    pair, search = result["pair"], result["search"]
    if "unavailable" not in pair:
        out += ["", f"Slack: {1e3 * pair['slack_s']:.1f} ms of {pair['earlier']}, in {pair['agreeing']} of"]
        out[-1] += f" {len(pair['meetings'])} rounds."
    if "unavailable" not in search:
        out += [
            "",
            f"| level tried for {pair['earlier']} | gain against q0, ms (interval) | |",
            "|---|---:|---|",
        ]
        for trial in search["trials"]:
            found = trial.get("comparison")
            if found is not None:
                ends = ", ".join(f"{1e3 * found[end]:.1f}" for end in ("low_s", "high_s"))
                gain = f"{1e3 * found['gain_s']:.1f} ({ends})"
                level = f"{trial['amount']} {result['unit']} ({trial['setting']} {result['setting']})"
                out.append(f"| {level} | {gain} | {found['decision']} |")
        out += ["", f"Search: {search['reason']}. Decision: {_decision(result)}."]
    return "\n".join(out)


def _decision(result: Facts) -> str:
    given = [
        f"{name} gets {level['amount']} {result['unit']}, {result['reason']}"
        for name, level in result["quotas"].items()
    ]
    return "; ".join(given) or f"q0 is kept ({result['reason']})"


def _ms(found: Facts) -> str:
    return f"{1e3 * found['median_s']:.1f} ({1e3 * found['low_s']:.1f}..{1e3 * found['high_s']:.1f})"


if __name__ == "__main__":
    print(*keep(Path(sys.argv[1])), sep="\n")
