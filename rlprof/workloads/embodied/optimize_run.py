"""The whole of `rlprof optimize embodied`: files in a folder, from the first iteration to the report."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rlprof
from rlprof.errors import OutputError, RlprofError
from rlprof.interrupts import noted
from rlprof.overlap.optimize.cost import OTHER
from rlprof.overlap.optimize.cost import QUOTAS as QUOTA_SEARCH
from rlprof.overlap.optimize.decisions import each_once, read_entries
from rlprof.overlap.optimize.graph_file import GraphFile, write_json
from rlprof.overlap.optimize.log import DecisionLog, setting, text
from rlprof.overlap.optimize.options import Options
from rlprof.overlap.optimize.outcome import Optimization
from rlprof.overlap.optimize.result import document
from rlprof.overlap.optimize.store import Store
from rlprof.trace.output import atomic_path, check_kind
from rlprof.unavailable import Unavailable
from rlprof.workloads.embodied import checkpoint
from rlprof.workloads.embodied.conditions import hardware, source_digest
from rlprof.workloads.embodied.earlier_graph import EarlierGraph, asked
from rlprof.workloads.embodied.earlier_graph import kept as kept_levers
from rlprof.workloads.embodied.folder import RUN, claimed, refuse_other
from rlprof.workloads.embodied.levers import LEVER_FIELDS, settled_by_levers
from rlprof.workloads.embodied.optimize import embodied
from rlprof.workloads.embodied.optimize_search import Request, Search
from rlprof.workloads.embodied.quota_file import QuotaFile
from rlprof.workloads.embodied.quotas import INTERRUPTED, Quotas, failed, find_quotas

__all__ = ["Optimized", "Request", "find_quotas", "optimize_embodied", "summary"]

GRAPH, QUOTAS, RESULT, REPORT = "graph.json", "quotas.json", "result.json", "report.html"
DECISIONS, DECISIONS_TEXT, MEASUREMENTS = "decisions.jsonl", "decisions.txt", "measurements.jsonl"
NOTEBOOK, CONFIG = "report.ipynb", "config.json"
FILES = (GRAPH, QUOTAS, RESULT, REPORT, NOTEBOOK, DECISIONS, DECISIONS_TEXT, MEASUREMENTS, checkpoint.NAME)

#: Reason in `QUOTAS` while those of a graph are searched that takes the place of another one.
NOT_SEARCHED = "quotas of this graph were not searched by then; --resume goes on"
ANOTHER_OUT = "move it to another folder, or use another --out"


@dataclass(frozen=True)
class Optimized:
    """What was done.

    Parameters
    ----------
    result : Optimization
        Of the algorithm.
    document : dict
        As in ``result.json``.
    summary : str
        A few lines for people.
    interrupted : bool
        It was ended before all was searched, the quotas included: what there is, is the best so far.
    """

    result: Optimization
    document: dict[str, Any]
    summary: str
    interrupted: bool = False


def optimize_embodied(request: Request, *, say: Callable[[str], None] = lambda _: None) -> Optimized:
    """Optimise and write the folder.

    Parameters
    ----------
    request : Request
        What.
    say : callable, optional
        Told what is going on, and every decision.

    Returns
    -------
    Optimized

    Raises
    ------
    OutputError
        If the folder holds an optimisation and neither `resume` nor `force` is set, or a run and `resume` is
        not; if it holds a graph that was found with other options of the search; if another process is at
        work in it, or it cannot be written.
    WorkloadError
        If a part cannot be made.
    OverlapError
        If the program cannot be recorded.
    """
    out = request.out
    options = request.options  # refused, if they are, before anything is started
    with claimed(out), ExitStack() as writing:
        return _optimize(request, options, say, writing)


def _optimize(
    request: Request, options: Options, say: Callable[[str], None], writing: ExitStack
) -> Optimized:
    out = request.out
    for name in (*FILES, CONFIG):  # said now, not when there is something to write
        check_kind(out / name)
        if (out / name).is_dir():
            raise OutputError("is a folder, a file is to be written", where=out / name, hint=ANOTHER_OUT)
    there = any((out / name).exists() for name in FILES)
    kept = (out / checkpoint.NAME) if request.resume and (out / checkpoint.NAME).exists() else None
    if kept is not None:  # said now, not when simulators and policy are there
        checkpoint.check(kept, request.config.to_dict(), may_differ=LEVER_FIELDS)
    before = EarlierGraph.read(out / GRAPH, out / QUOTAS) if request.resume else None
    if before is not None:
        before.check(request, out)
    if request.resume and not there:
        say(f"there is nothing to resume in {out}: it begins anew")
    elif request.resume and kept is None:
        say(f"there is no checkpoint in {out}: training begins anew, what was measured counts")
    _prepare(request)
    store = Store(out / MEASUREMENTS)
    earlier = read_entries(out / DECISIONS)
    # time from here on is counted: that of no other part as OTHER, which the end of the simulators is too
    with store.spending(OTHER), embodied(
        request.config, out, spares=request.spares, activity=request.activity, say=say, store=store,
        resume=kept,
    ) as here:  # fmt: skip
        # only now: the checkpoint of an earlier one may be of another configuration
        write_json(out / CONFIG, json.loads(json.dumps(request.config.to_dict())))
        log = DecisionLog(out / DECISIONS, listen=say)
        search = Search(request, here, log, store, say)
        found = search.run()
        with noted() as told:  # what was found is written, and there is no search for quotas then
            facts = {
                "config": here.config.to_dict(),
                "hardware": hardware(here.config),
                "spares": request.spares,
                "levers": settled_by_levers(request.config, here.config, found.levers),
                "chosen": dict(request.chosen),
                "stream_priorities": search.streams,
                "rlprof": rlprof.__version__,
                "source": source_digest(),
                "date": None if store.session is None else store.session.date,
                "options": options.to_dict(),
                "asked": asked(request),
                "kept": kept_levers(found.levers),
            }
            write_json(out / CONFIG, json.loads(json.dumps(here.config.to_dict())))
            stays, aside = before is not None and before.outlives(found), None
            if not stays:
                graph = GraphFile.of(found.native, found.graph, found.steps, **facts)
                if before is not None:
                    same = before.quotas_are_of(graph)
                    if not before.goes_on_in(graph) or (before.quotas and not same):
                        aside = before.set_aside(out)
                    if not same:  # if this process is killed they are not those of the graph that is there
                        QuotaFile({}, NOT_SEARCHED).write(out / QUOTAS)
                graph.write(out / GRAPH)
        # what fails from now on is told once all that was found is written
        failures: list[RlprofError] = []
        try:
            quotas = Quotas(None, INTERRUPTED, stopped=True) if told() else find_quotas(search, found)
        except RlprofError as error:
            failures.append(error)
            quotas = failed(error)
        told_late = writing.enter_context(noted())
        if not stays or not (out / QUOTAS).exists():  # shares are of the graph that they were found for
            if before is not None and aside is None and before.quotas not in ({}, quotas.quotas):
                aside = before.set_aside(out)
            QuotaFile(quotas.quotas, quotas.reason).write(out / QUOTAS)
        if found.intact and quotas.intact and here.counter.whole:
            try:
                checkpoint.save(out / checkpoint.NAME, here.trainer, here.config.to_dict(), here.iterations)
            except RlprofError as error:
                failures.append(error)
                store.lose()
        else:
            store.lose()
            say("no checkpoint: it was interrupted inside of an iteration, or a trial")
        trained = here.iterations
    found = found.up_to(store)
    decisions = each_once([*earlier, *log.entries])
    made = document(found, decisions, {**facts, "iterations": trained})
    made |= {"quota": quotas.to_dict(), "earlier_graph": None}
    made["unfinished"] += unfinished(quotas)
    earlier_at = out / GRAPH if stays else None if aside is None else aside / GRAPH
    if before is not None and earlier_at is not None:
        made["earlier_graph"] = before.to_dict(earlier_at.relative_to(out).as_posix())
    try:
        write_json(out / RESULT, made)
        with atomic_path(out / DECISIONS_TEXT, force=True) as temporary:
            temporary.write_text(text(decisions), encoding="utf-8")
        with store.spending(OTHER):  # a later session knows what this took
            _report(made, out / REPORT, say)
    except RlprofError as error:  # a checkpoint that there is not is worse
        failures.append(error)
    if failures:
        raise failures[0]
    stopped = found.ended.startswith("interrupted") or quotas.reason == INTERRUPTED or told_late()
    lines = summary(found, out, trained, quotas)
    if before is not None and earlier_at is not None:
        lines += f"\n{earlier_at}: {before.line(stays=stays)}"
    return Optimized(found, made, lines, stopped)


def unfinished(quotas: Quotas | None) -> list[str]:
    """What of the search for quotas ``--resume`` goes on with."""
    return ["quotas were not searched to the end"] if quotas is not None and quotas.stopped else []


def summary(found: Optimization, out: Path, trained: int, quotas: Quotas | None = None) -> str:
    """The result in a few lines."""
    lines = [f"{out}: {found.ended}"]
    for row in found.levers:
        if row.outcome == "kept" and row.result is not None:
            change = f"{setting(row.before)} -> {setting(row.value)}"
            lines.append(f"  lever {row.lever}, {change}: {row.result.gain_frac:+.1%}")
    if not found.steps and found.stopped:
        lines.append("no overlap was found to pay by then: the native order is kept")
    elif not found.steps:
        lines.append("no overlap pays: the native order is kept")
    for one in found.steps:
        lines.append(f"  {one}")
    total = found.total
    if total is not None and found.steps:
        lines.append(
            f"an iteration takes {total.candidate.median_s:.3g} s, natively {total.reference.median_s:.3g} s:"
            f" {total.reference.median_s / total.candidate.median_s:.3f}x by medians; pair by pair"
            f" {total.gain_frac:+.1%} ({len(total.pairs)} pairs: {total.decision})"
        )
        lines += [f"  doubtful: {said}" for said in total.doubts]
    paid = found.paid_back_after
    if not isinstance(paid, Unavailable):
        back = f"paid back after {paid:.0f} iterations"
    elif any(row.outcome == "kept" for row in found.levers):  # payback is of the graph's gain alone
        back = "not paid back by overlap (what levers gain is not counted)"
    else:
        back = "never paid back"
    lines.append(
        f"{found.total_s:.0f} s, {found.retained_s:.0f} s of it training that counts ({trained} iterations);"
        f" net {found.net_overhead_s:.0f} s, {back}"
    )
    cost = found.cost
    told = ", ".join(f"{p.name} {p.total_s:.0f} s" for p in cost.parts)
    sessions = f"{len(cost.sessions)} sessions: " if len(cost.sessions) > 1 else ""
    lines.append(f"  {sessions}{told}" + (" (quotas apart)" if cost.part(QUOTA_SEARCH).total_s else ""))
    if quotas is not None and (quotas.cost is not None or quotas.stopped):
        kept = "all SMs" if quotas.level is None else f"{quotas.level.setting} % of the SMs"
        lines.append(f"{quotas.component} on {kept}: {quotas.reason}")
        if quotas.cost is not None:
            took = f"{quotas.cost.total_s:.0f} s, {quotas.cost.retained_s:.0f} s of it training that counts"
            lines.append(f"  apart from that, quotas took {took}")
    if left := [*found.unfinished, *unfinished(quotas)]:
        lines.append(f"not finished: {'; '.join(left)}; --resume goes on")
    return "\n".join(lines)


def _prepare(request: Request) -> None:
    out = request.out
    if not request.resume and not (out / DECISIONS).exists():
        refuse_other(out, RUN)
    present = [name for name in FILES if (out / name).exists()]
    if present and not (request.resume or request.force):
        raise OutputError(
            "an optimisation is there already", where=out, hint="use --resume, --force or another --out"
        )
    try:
        out.mkdir(parents=True, exist_ok=True)
        if not request.resume:
            for name in present:
                (out / name).unlink()
    except OSError as error:
        raise OutputError(f"the folder cannot be written ({error.strerror})", where=out) from error


def _report(made: dict[str, Any], path: Path, say: Callable[[str], None]) -> None:
    from importlib.util import find_spec

    if find_spec("polars") is None or find_spec("altair") is None:
        say(f"no report: it needs polars and altair; {RESULT} has what it shows")
        return
    from rlprof.report.optimize import write_optimization_report
    from rlprof.report.optimize_notebook import write_optimization_notebook

    write_optimization_report(made, path)
    write_optimization_notebook(path.with_name(RESULT), path.with_name(NOTEBOOK))
