"""Entry point of the command line: the verbs, and one place where errors become one line and a code."""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import time
from itertools import pairwise
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from rlprof import __version__
from rlprof.cli.analyze import analyze
from rlprof.cli.calibrate import calibrate
from rlprof.cli.capture import capture
from rlprof.cli.console import say
from rlprof.cli.doctor import doctor
from rlprof.cli.export import export
from rlprof.cli.mps import app as mps
from rlprof.cli.optimize import app as optimize
from rlprof.cli.plan import app as plan
from rlprof.cli.quota import quota
from rlprof.cli.reproduce import app as reproduce
from rlprof.cli.run import app as run_app
from rlprof.errors import RlprofError, UsageError, step_after
from rlprof.text import clean

EXIT_UNEXPECTED = 2
EXIT_INTERRUPTED = 130
#: `timeout` tells a process to end, and then its whole group: it is told twice within so many seconds.
TOLD_TWICE_S = 1.0


class _Verbs(TyperGroup):
    """Tells an interruption from an exit code of a verb, where typer makes a code of both."""

    def invoke(self, *given: Any, **named: Any) -> Any:
        try:
            return super().invoke(*given, **named)
        except KeyboardInterrupt as error:
            raise typer.Abort from error


app = typer.Typer(
    name="rlprof",
    cls=_Verbs,
    help="Where is the GPU idle during RL training, in which part of the program, and what may run there.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(analyze)
app.command()(calibrate)
app.command()(capture)
app.command()(doctor)
app.command()(export)
app.command()(quota)
app.add_typer(mps, name="mps")
app.add_typer(optimize, name="optimize")
app.add_typer(plan, name="plan")
app.add_typer(reproduce, name="reproduce")
app.add_typer(run_app, name="run")


def _version(wanted: bool) -> None:
    if wanted:
        print(f"rlprof {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Where is the GPU idle during RL training, in which part of the program, and what may run there."""


def run() -> None:
    """Run the command line and exit: 0 done, 2 an error (one line on standard error), 130 interrupted.

    Ended by another signal it is 128 and the signal's number: 143 after SIGTERM, 129 after SIGHUP.
    """
    ending = _Ending()
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # under nohup a hang-up is none of ours
            signal.signal(number, ending)
    sys.exit(_run(ending))


class _Ending:
    """Ends a job at a signal so that nothing is left half written: every `finally` runs.

    Attributes
    ----------
    number : int or None
        The first signal that came.
    """

    def __init__(self) -> None:
        self.number: int | None = None
        self._at_s = float("-inf")

    def __call__(self, number: int, _frame: object) -> None:
        if self.number is None:
            self.number = number
        now_s = time.monotonic()
        if now_s - self._at_s >= TOLD_TWICE_S:  # else it would interrupt what ends the job already
            self._at_s = now_s
            sys.exit(128 + self.number)


def _run(ending: _Ending) -> int:
    try:
        _refuse_empty_paths(sys.argv[1:])
        code = app(standalone_mode=False)
        if sys.stdout is not None:  # the caller may have closed it
            sys.stdout.flush()
        return code if isinstance(code, int) else 0
    except BaseException as error:
        if ending.number is not None:  # whatever else failed on the way out
            return _fail(f"interrupted by {signal.Signals(ending.number).name}", 128 + ending.number)
        return _told(error)


def _told(failure: BaseException) -> int:
    """Tell what went wrong in one line; return the exit code."""
    debug = os.environ.get("RLPROF_DEBUG", "") not in ("", "0")
    try:
        raise failure
    except RlprofError as error:
        if debug:
            raise
        return _fail(str(error), error.exit_code)
    except (KeyboardInterrupt, typer.Abort):
        return _fail("interrupted", EXIT_INTERRUPTED)
    except BrokenPipeError:
        return _reader_went_away()
    except OSError as error:
        if debug:
            raise
        return _refused(error)
    except MemoryError:
        return _fail(
            "not enough memory. Next: use a larger machine, a part of a capture (--window), fewer --envs",
            2,
        )
    except Exception as error:
        # usage errors of the argument parser: whichever click it is built on, they can format themselves
        if hasattr(error, "format_message"):
            return _usage(error)
        if debug:
            raise
        return _unexpected(error)


def _refuse_empty_paths(arguments: list[str]) -> None:
    """Refuse an output with an empty name, as of a variable that is not set: the working folder."""
    own = arguments[: arguments.index("--")] if "--" in arguments else arguments
    for option, value in pairwise([*own, "-"]):
        name, _, given = option.partition("=")
        if name in ("--out", "--output", "-o") and "" in ((given,) if "=" in option else (value,)):
            hint = "give a file or folder; a variable may not be set"
            raise UsageError(f"{name} is given an empty name", hint=hint)


def _refused(error: OSError) -> int:
    """What the operating system says about a file is no fault of rlprof, wherever it came up."""
    names = [os.fsdecode(n) for n in (error.filename, error.filename2) if isinstance(n, str | bytes)]
    # whether it was to be read or written is not known here
    step = step_after(error, writing=error.errno in (errno.EACCES, errno.EPERM))
    if step is None:
        return _unexpected(error)
    reason = error.strerror or str(error)
    return _fail(str(RlprofError(reason, where=" -> ".join(names) or None, hint=step)), EXIT_UNEXPECTED)


def _unexpected(error: Exception) -> int:
    return _fail(
        f"unexpected {type(error).__name__}: {error}. Next: report it with the traceback, which "
        "RLPROF_DEBUG=1 shows",
        EXIT_UNEXPECTED,
    )


def _usage(error: Exception) -> int:
    message = str(error.format_message()) if hasattr(error, "format_message") else str(error)
    context = getattr(error, "ctx", None)
    command = getattr(context, "command_path", "rlprof")
    if not message.strip() or type(error).__name__ == "NoArgsIsHelpError":
        print(context.get_help() if context is not None else message)
        return EXIT_UNEXPECTED
    return _fail(f"{message.rstrip('.')}. Next: {command} --help", EXIT_UNEXPECTED)


def _fail(message: str, code: int) -> int:
    line = " ".join(clean(message).split())  # names of ranges and files may hold any character
    with contextlib.suppress(OSError):
        say(f"rlprof: error: {line}")
    return code


def _reader_went_away() -> int:
    """`rlprof ... | head`: quiet, and nothing more to flush at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 128 + signal.SIGPIPE


if __name__ == "__main__":
    run()
