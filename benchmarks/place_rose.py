"""Put what runs of `benchmarks/gpu` left where the reproductions of Rose look, and draw its figures again.

    python -m benchmarks.place_rose OUT... [--draw DIR] [--check]

Each OUT is a folder that `embodied.sh`, `optimize.sh`, `levers.sh` or `mps.sh` wrote, or one that holds such.
Results are known by what they hold: `embodied_*.json`, `optimize_*.json` and `levers_*.json` go to
`benchmarks/results/gpu`, an optimisation on a processor to `benchmarks/results/optimize`, `mps.json` in two
parts as `benchmarks.gpu.mps_report` keeps it. They lose what names the card, the user or folders; one that
still tells of a machine or a person is not placed, nor is one in which nothing was measured. Every decision
of a search goes to `benchmarks/results/searches`, under the name of its run; so does a result of `rlprof
optimize` itself on a GPU, as `cli_SIMULATOR.json`. Then the raw tables in `datasets/runs/rose` and the tables
of `benchmarks/README.md` are made again.

With ``--draw DIR`` all figures of Rose are drawn into DIR, with ours beside the paper's. ``--check`` says
what would be done and writes nothing.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import searches
from benchmarks.gpu import mps_report, private
from benchmarks.gpu.common import ROOT, save
from rlprof.errors import RlprofError
from rlprof.reproduce.driver import run_notebook
from rlprof.reproduce.registry import FIGURES
from rlprof.reproduce.rose.quota import trial_rows
from rlprof.reproduce.rose.reported import is_report
from rlprof.reproduce.rose.results import FOLDER, PROCESSOR_FOLDER, is_optimisation, on_gpu
from rlprof.reproduce.session import begin
from rlprof.reproduce.study import obtain

Document = dict[str, Any]
#: A path says where things were; its last part says what they are.
ABSOLUTE = re.compile(
    r"(?<![\w.:/\]])/(?:[\w.@+-]+/)+([\w.@+-]*)"
)  # ids of calls are none: epoch[0]/chunk[1]/step
#: What tells one card or machine from another of its kind, besides what `private` looks for.
SUSPECTS = {
    "card": re.compile(r"GPU-(?!x\b)[0-9a-f]{6,}|MIG-[0-9a-f]{6,}"),
    "bus": re.compile(r"\b[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7]\b"),
    "network card": re.compile(r"\b(?:[0-9a-f]{2}:){5}[0-9a-f]{2}\b"),
}
#: Files that a run leaves beside its result: parts of it, or for the next run.
BESIDE = re.compile(r"^(optimisation|graph|quotas|quota|decisions|measurements)[^/]*\.jsonl?$")


@dataclass
class Placed:
    """What was done.

    Parameters
    ----------
    files : list of pathlib.Path
        Written, in a checkout.
    refused : dict of str to str
        Results that were not placed, and why.
    """

    files: list[Path] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)


def results(folders: Sequence[Path]) -> Iterator[tuple[Path, Document]]:
    """Give the JSON results below some folders, those packed in archives too, with their paths there.

    What cannot be read is ``{"unreadable": why}``.
    """
    for folder in folders:
        with tempfile.TemporaryDirectory() as scratch:
            for archive in sorted(folder.rglob("*.tar.gz")):
                unpacked = Path(scratch) / archive.name
                try:
                    with tarfile.open(archive) as packed:
                        packed.extractall(unpacked, filter="data")
                except (OSError, EOFError, tarfile.TarError, zlib.error) as error:
                    yield archive, {"unreadable": f"no archive: {type(error).__name__}: {error}"}
            for root in (folder, Path(scratch)):
                for path in sorted(root.rglob("*.json")):
                    if BESIDE.match(path.name):
                        continue
                    try:
                        document = json.loads(path.read_text(encoding="utf-8"))
                    except (OSError, ValueError, RecursionError) as error:
                        document = {"unreadable": f"no JSON: {error}"}
                    if isinstance(document, dict):
                        yield path, document


def public(value: Any) -> Any:
    """A result without what is of one machine or person: as `mps_report.public`, and folders of paths."""
    if isinstance(value, dict):
        return {name: public(found) for name, found in mps_report.public(value).items()}
    if isinstance(value, list):
        return [public(found) for found in value]
    if isinstance(value, str):
        return ABSOLUTE.sub(r"\1", mps_report.public(value))
    return value


def tells(document: Document) -> list[str]:
    """What in a result still tells of a machine or a person."""
    text = json.dumps(document, indent=0, ensure_ascii=False)
    own = private.own_words()
    words = {kind: own[kind] for kind in ("host name", "user", "home folder", "machine")}
    found = [*private.told(text.encode(), words), *private.suspicious(text.encode())]
    return found + [f"{kind}: {m.group(0)}" for kind, p in SUSPECTS.items() if (m := p.search(text))]


def nothing_measured(document: Document) -> str:
    """Why a result is worth nothing; empty if it is worth something."""
    if "unreadable" in document:
        return str(document["unreadable"])
    steps = document.get("steps", {})
    counted = [i for i in document.get("iterations", ()) if not (i["warm_up"] or i.get("short"))]
    alone = [name for name, step in steps.items() if step.get("ok") and name.startswith("solo_")]
    if counted or alone or document.get("optimisation") or document.get("quotas"):
        return ""
    if document.get("command") in ("selftest", "levers") and any(step.get("ok") for step in steps.values()):
        return ""
    failed = [f"{name}: {step.get('error', '')}"[:120] for name, step in steps.items() if not step.get("ok")]
    return f"nothing was measured ({'; '.join(failed) or 'it did not get that far'})"


def target(path: Path, document: Document) -> str | None:
    """Folder of a checkout that a result belongs to; None if it is none of Rose's."""
    if path.name == "mps.json" and "probe" in document:
        return FOLDER
    if document.get("command") == "selftest" and str(document["config"].get("device", "")).startswith("cuda"):
        return FOLDER
    if on_gpu(document) or (document.get("command") == "levers" and document["machine"].get("gpu")):
        return FOLDER
    return PROCESSOR_FOLDER if is_optimisation(document) else None


def place(folders: Sequence[Path], checkout: Path, *, check: bool = False) -> Placed:
    """Write the results of runs into a checkout.

    Parameters
    ----------
    folders : sequence of pathlib.Path
        Runs. Results of one name from several folders are kept beside each other: ``NAME_2.json``.
    checkout : pathlib.Path
        Where to.
    check : bool
        Write nothing.
    """
    done = Placed()
    found: dict[Path, Document] = {}
    for folder in folders:
        known = len(found) + len(done.refused)
        for path, document in results([folder]):
            try:
                judged = _judged(path, document)
            except (AttributeError, LookupError, TypeError, ValueError) as error:
                judged = f"it is not complete: {type(error).__name__}: {error}"
            if isinstance(judged, str):
                done.refused[str(path)] = judged
                continue
            if "optimisation" in document:
                judged |= _search(path, document, done.refused)
            number, files = 1, [checkout / name for name in judged]
            while set(files) & set(found):  # all files of a result have the same number
                number += 1
                files = [checkout / name.with_stem(f"{name.stem}_{number}") for name in judged]
            found |= dict(zip(files, judged.values(), strict=True))
        if known == len(found) + len(done.refused):
            done.refused[str(folder)] = "no result of a run is in it"
    done.files += found
    for file, kept in found.items() if not check else ():
        if file.parent == checkout / searches.FOLDER:
            searches.save(file, kept)
        else:
            save(file, kept)
    return done


def _judged(path: Path, document: Document) -> dict[Path, Document] | str:
    """What of a result is kept, by its path in a checkout; or why it is refused."""
    if is_report(document) and str(document["facts"]["config"].get("device", "")).startswith("cuda"):
        beside = path.with_name("machine.json")  # of `benchmarks/gpu/optimize_cli.sh`
        if beside.exists():
            document = searches.with_machine(document, json.loads(beside.read_text(encoding="utf-8")))
        searches.search_table(document)  # what has no table is not complete
        name = f"cli_{document['facts']['config']['simulator']}.json"
        return _untold({Path(searches.FOLDER) / name: searches.compact(public(document))})
    where = target(path, document)
    if where is None:
        other = "command" in document or "unreadable" in document
        return nothing_measured(document) or "no run on a GPU, and no optimisation" if other else {}
    if path.name == "mps.json":
        kept = {Path(where) / name: part for name, part in _mps(path).items()}
    elif why := nothing_measured(document):
        return why
    else:
        kept = {Path(where) / path.name: public(document)}
        for row in trial_rows(path.name, document):  # what makes no table of quotas is not complete
            if not row["seconds"] > 0:
                raise ValueError(f"{row['kind']} of {row['what']} took {row['seconds']} s")
    return _untold(kept)


def _search(path: Path, document: Document, refused: dict[str, str]) -> dict[Path, Document]:
    """Every decision of a run's search, by its path in a checkout; what is refused costs the run nothing."""
    try:
        if (search := searches.search_of(path, document)) is None:
            return {}
        searches.search_table(search)
        kept = _untold({Path(searches.FOLDER) / path.name: searches.compact(public(search))})
    except (AttributeError, LookupError, OSError, TypeError, ValueError) as error:
        kept = f"it is not complete: {type(error).__name__}: {error}"
    if isinstance(kept, str):
        refused[f"{path}, every decision"] = kept
        return {}
    return kept


def _untold(kept: dict[Path, Document]) -> dict[Path, Document] | str:
    """What is kept, or why not, if it tells of a machine or a person."""
    if told := [line for part in kept.values() for line in tells(part)]:
        return f"it tells of a machine or a person: {'; '.join(told)}"
    return kept


def _mps(path: Path) -> dict[str, Document]:
    """The two parts of a result of `benchmarks.gpu.mps`, by file name."""
    with tempfile.TemporaryDirectory() as scratch:
        files = mps_report.keep(path.parent, Path(scratch))
        kept = {file.name: public(json.loads(file.read_text())) for file in files}
    shown = {"mps.json": mps_report.mps_table, "mps_quota.json": mps_report.quota_table}
    for name, document in kept.items():
        shown[name](document)  # what has no table is not complete
    return kept


def make_tables(checkout: Path, *, fresh: bool = False) -> list[Path]:
    """Make the raw tables of Rose in `datasets/runs/rose` again from the results that are stored.

    Parameters
    ----------
    checkout : pathlib.Path
        Where they are.
    fresh : bool
        Also those whose results are the same.
    """
    where = checkout / "datasets" / "runs" / "rose"
    written: dict[str, Path] = {}
    for figure in FIGURES:
        if figure.paper != "rose":
            continue
        for preset in figure.presets:
            for study in figure.make_studies(preset, 0, checkout).values():
                # others are small: of one capture, or of runs that a reproduction makes itself
                kept = study.measured and (preset == figure.presets[-1] or "files" in study.parameters)
                if kept and study.file not in written:
                    got = obtain(study, where, fresh=fresh)
                    if got.computed:
                        written[study.file] = where / study.file
    return list(written.values())


def draw(checkout: Path, folder: Path) -> list[str]:
    """Draw all figures of Rose at both presets that are stored; return what failed, one line each."""
    failed = []
    for figure in FIGURES:
        if figure.paper != "rose":
            continue
        for preset in figure.presets:
            try:
                if not all(s.reads for s in figure.make_studies(preset, 0, checkout).values()):
                    continue  # it would be measured, not drawn
                out = folder / figure.name / preset
                session = begin(figure.name, preset=preset, out=out, repository=checkout)
                print(
                    f"\n{figure.name}, {preset}: {figure.title}\n{session.origins}\n\n{session.comparison()}"
                )
                notebook = out / f"{figure.short}.ipynb"
                parameters = {"preset": preset, "out_dir": str(out.resolve()), "repository": str(checkout)}
                run_notebook(figure.notebook(checkout), notebook, parameters, checkout)
            except RlprofError as error:
                failed.append(f"{figure.name}, {preset}: {error}")
    return failed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("folders", nargs="*", type=Path, metavar="OUT")
    parser.add_argument("--draw", type=Path, metavar="DIR", help="draw all figures of Rose into it")
    parser.add_argument("--check", action="store_true", help="write nothing")
    parser.add_argument("--fresh", action="store_true", help="make all raw tables anew")
    given = parser.parse_args()
    if absent := [str(f) for f in given.folders if not f.is_dir()]:
        parser.error(f"no such folder: {', '.join(absent)}")
    done = place(given.folders, ROOT, check=given.check)
    for file in done.files:
        print(f"{'would be placed' if given.check else 'placed'}: {file.relative_to(ROOT)}")
    for path, why in done.refused.items():
        print(f"NOT placed: {path}: {why}")
    if given.check:
        return int(bool(done.refused))
    for file in make_tables(ROOT, fresh=given.fresh):
        print(f"raw table: {file.relative_to(ROOT)}")
    subprocess.run([sys.executable, "-m", "benchmarks.readme_tables"], cwd=ROOT, check=True)
    failed = draw(ROOT, given.draw) if given.draw else []
    for line in failed:
        print(f"NOT drawn: {line}")
    return int(bool(done.refused or failed))


if __name__ == "__main__":
    sys.exit(main())
