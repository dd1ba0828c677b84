"""Whether products of matrices are right with the SMs that this process may use.

A quota must change how long a computation takes and nothing else. On an H200 (driver 580, PyTorch 2.11) a
client of MPS with some shares of the SMs gets products of cuBLAS of which parts are not written: kernels
whose blocks work in clusters of four and more. They are found by looking: products of the sizes of a
policy's layers, forward and backward, several in a row, into memory that is full of NaN.

Run as ``python -m rlprof.overlap.quota.products`` it looks in its own process and prints a line of JSON.
"""

from __future__ import annotations

import importlib.util
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from rlprof.unavailable import Unavailable

if TYPE_CHECKING:
    from torch import Tensor

#: Rows, and width before and after, of layers of pi0: its action expert, and its backbone.
SIZES = (
    (96, 1024, 2048), (176, 1024, 2048), (816, 1024, 2048), (176, 1024, 256), (816, 1024, 256),
    (176, 2048, 1024), (816, 2048, 1024), (8960, 2048, 1024), (96, 1024, 4096), (176, 1024, 4096),
    (816, 2048, 2048), (8960, 2048, 2048),
)  # fmt: skip
#: The same for a processor, in milliseconds.
SMALL = ((6, 16, 32), (11, 32, 8))
#: Products of one kind in a row: the first ones may be right.
IN_A_ROW = 8
#: Longest time of a client that looks, in seconds; starting PyTorch takes most of it.
LIMIT_S = 120.0
#: Entries of a product that are computed again.
SAMPLED = 256
#: Largest difference from them, over their largest one. Rounding to 16 bits makes 0.004.
TOLERANCE_FRAC = 0.02
#: Largest difference of the sum of a row, over what is usual for one. Rounding the numbers to 16 bits makes
#: 0.009 in the rows of `SIZES`, adding them up in parts of 16 bits 0.02; eight wrong ones of 4096 make 0.044.
SUM_TOLERANCE_FRAC = 0.04

Product = Callable[["Tensor", "Tensor", "Tensor"], Any]


@dataclass(frozen=True)
class WrongProduct:
    """Products of one kind of which some are wrong.

    Parameters
    ----------
    rows, inner, columns : int
        Of (rows, inner) by (inner, columns).
    kind : str
        ``"forward"``, ``"gradient of inputs"`` or ``"gradient of weights"``: which matrices are transposed.
    wrong : int
        How many of `IN_A_ROW`.
    unwritten : int
        Numbers that are not finite, in the worst one.
    error_frac : float or None
        Largest difference of the entries that were computed again, over their largest one, or of sums of
        rows, over what is usual for them; None if some numbers are not finite.
    """

    rows: int
    inner: int
    columns: int
    kind: str
    wrong: int
    unwritten: int
    error_frac: float | None


@dataclass(frozen=True)
class Products:
    """What was found.

    Parameters
    ----------
    sms : int or None
        SMs that this process may use; None on a processor.
    tried : int
        Kinds of products.
    wrong : tuple of WrongProduct
        Those of which some are wrong.
    """

    sms: int | None
    tried: int
    wrong: tuple[WrongProduct, ...]

    def told(self) -> str:
        """What was found, for people."""
        of = f"with {self.sms} SMs " if self.sms is not None else ""
        if not self.wrong:
            return f"{of}none of {self.tried} kinds of matrix products is wrong"
        worst = max(self.wrong, key=lambda w: (w.unwritten, w.error_frac or 0))
        numbers = f"{worst.unwritten} of {worst.rows * worst.columns} numbers are not written"
        what = numbers if worst.unwritten else f"numbers differ by {100 * (worst.error_frac or 0):.0f} %"
        return (
            f"{of}{len(self.wrong)} of {self.tried} kinds of matrix products are wrong (of {worst.rows} x"
            f" {worst.inner} by {worst.inner} x {worst.columns} {what})"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return asdict(self)

    @classmethod
    def from_dict(cls, document: Mapping[str, Any]) -> Products:
        """Read what `to_dict` wrote."""
        wrong = tuple(WrongProduct(**one) for one in document["wrong"])
        return cls(document["sms"], int(document["tried"]), wrong)


def check_products(
    device: str = "cuda:0", *, sizes: Sequence[tuple[int, int, int]] = (), product: Product | None = None
) -> Products:
    """Look at products of this process: some 40 kinds, in about a second on a GPU.

    Parameters
    ----------
    device : str
        Where they are computed.
    sizes : sequence of (int, int, int)
        Rows, inner width and columns; by default `SIZES`, on a processor `SMALL`.
    product : callable, optional
        Writes the product of its first two arguments into the third; by default `torch.mm`.

    Returns
    -------
    Products
        What is wrong. That nothing is, is no proof: other sizes have other kernels.

    Notes
    -----
    Some entries, and the sum of each row, are computed again by elementwise products and sums, which no
    library of matrix products computes. All others have to be finite.
    """
    import torch

    def multiply(a: Tensor, b: Tensor, out: Tensor) -> None:
        torch.mm(a, b, out=out)

    on_gpu = device.startswith("cuda")
    draws = torch.Generator(device="cpu").manual_seed(0)
    found = []
    tried = 0
    with torch.no_grad():
        for rows, inner, columns in sizes or (SIZES if on_gpu else SMALL):
            x = torch.randn(rows, inner, generator=draws).to(device, torch.bfloat16)
            w = (torch.randn(columns, inner, generator=draws) * inner**-0.5).to(device, torch.bfloat16)
            g = torch.randn(rows, columns, generator=draws).to(device, torch.bfloat16)
            for kind, a, b in (
                ("forward", x, w.T),
                ("gradient of inputs", g, w),
                ("gradient of weights", g.T, x),
            ):
                tried += 1
                if (wrong := _looked_at(kind, a, b, product or multiply, draws)) is not None:
                    found.append(wrong)
    sms = None
    if on_gpu:
        sms = int(torch.cuda.get_device_properties(device).multi_processor_count)
    return Products(sms, tried, tuple(found))


def _looked_at(kind: str, a: Tensor, b: Tensor, product: Product, draws: Any) -> WrongProduct | None:
    """Compute a product several times in a row, and look at all of them."""
    import torch

    shape = (len(a), b.shape[1])
    outs = [torch.full(shape, float("nan"), device=a.device, dtype=a.dtype) for _ in range(IN_A_ROW)]
    for out in outs:  # nothing waits for anything between them
        product(a, b, out)
    rows, columns = (torch.randint(n, (SAMPLED,), generator=draws).to(a.device) for n in shape)
    expected = (a[rows].float() * b[:, columns].T.float()).sum(1)
    largest = expected.abs().max()
    # a block of wrong numbers changes sums of rows by more than rounding does, wherever it lies
    row_sums = (a.float() * b.float().sum(1)).sum(1)
    usual = math.sqrt(shape[1]) * expected.square().mean().sqrt()
    unwritten = [int((~torch.isfinite(out)).sum()) for out in outs]
    errors = [float((out[rows, columns].float() - expected).abs().max() / largest) for out in outs]
    of_sums = [float((out.float().sum(1) - row_sums).abs().max() / usual) for out in outs]
    # a difference that is not a number is none that is small
    bad = [
        bool(n) or not (e <= TOLERANCE_FRAC and s <= SUM_TOLERANCE_FRAC)
        for n, e, s in zip(unwritten, errors, of_sums, strict=True)
    ]
    if not any(bad):
        return None
    error = None if any(unwritten) else max(*errors, *of_sums)
    return WrongProduct(shape[0], a.shape[1], shape[1], kind, sum(bad), max(unwritten), error)


def ask_client(environment: Mapping[str, str], *, limit_s: float = LIMIT_S) -> Products | Unavailable:
    """Let a fresh process look, such as a client of MPS under a level; it needs PyTorch for CUDA.

    Parameters
    ----------
    environment : mapping of str to str
        What makes it a client, and its share (`rlprof.overlap.quota.daemons.Daemon.environment`).
    limit_s : float
        Longest time, in seconds.

    Returns
    -------
    Products or Unavailable
        What it found; why it could not look.
    """
    if importlib.util.find_spec("torch") is None:
        return Unavailable('PyTorch is not installed, which computes them: pip install "rlprof[workloads]"')
    command = [sys.executable, "-m", __name__]
    try:
        process = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",  # libraries print what they like
            timeout=limit_s,
            env={**os.environ, **environment},
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Unavailable(f"a client gave no answer within {limit_s:g} s")
    except OSError as error:
        return Unavailable(f"a client cannot be started ({error.strerror})")
    for line in reversed(process.stdout.splitlines()):
        if (answer := _answer(line)) is not None:
            return answer
    last = (process.stderr.strip().splitlines() or [""])[-1].strip()[:200]
    return Unavailable(f"a client that was to look ended with {process.returncode}{last and f': {last}'}")


def _answer(line: str) -> Products | Unavailable | None:
    """What a line of a client says; None: it is no answer."""
    try:
        said = json.loads(line)
        return Unavailable(str(said["failed"])) if "failed" in said else Products.from_dict(said)
    except (ValueError, KeyError, TypeError, RecursionError):
        return None


def _main() -> None:
    signal.alarm(math.ceil(LIMIT_S))  # who asked may be gone by then, and a client of MPS keeps the daemon
    try:
        import torch

        if torch.cuda.is_available():
            found: dict[str, Any] = check_products().to_dict()
        else:
            found = {"failed": f"torch {torch.__version__} finds no CUDA device"}
    except Exception as error:  # whatever keeps a client from computing
        found = {"failed": f"{type(error).__name__}: {(str(error).splitlines() or [''])[0][:200]}"}
    sys.stdout.write(json.dumps(found) + os.linesep)


if __name__ == "__main__":
    _main()
