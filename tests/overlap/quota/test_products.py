"""Products of matrices that a process gets wrong are found, whatever is wrong with them."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from rlprof.overlap.quota import products
from rlprof.overlap.quota.products import Products, WrongProduct, ask_client, check_products
from rlprof.unavailable import Unavailable

Tensor = torch.Tensor


def unwritten(a: Tensor, b: Tensor, out: Tensor) -> None:
    """The last rows keep what was in memory, as of a cluster of blocks that never ran."""
    out[:-2].copy_((a @ b)[:-2])


def half_summed(a: Tensor, b: Tensor, out: Tensor) -> None:
    """A part of the sum is missing; every number is written."""
    out.copy_(a[:, ::2] @ b[::2])


def not_a_number(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a @ b)
    out[0, 0] = float("nan")


def unwritten_where_sums_alone_look(a: Tensor, b: Tensor, out: Tensor) -> None:
    """One number that is probably no entry that is computed again."""
    out.copy_(a @ b)
    out[-1, -1] = float("nan")


def infinite(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a @ b)
    out[0, 0] = float("inf")


def block_left_out(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Four by eight numbers of some hundred thousand are 0."""
    out.copy_(a @ b)
    out[:4, :8] = 0


def added_in_parts(a: Tensor, b: Tensor, out: Tensor) -> None:
    """Sixteen parts of each sum, added up in 16 bits: a kernel may do so."""
    out.zero_()
    for some, others in zip(a.chunk(16, dim=1), b.chunk(16), strict=True):
        out += (some.float() @ others.float()).to(out.dtype)


class RightAtFirst:
    """The first products of a row are right."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        self.calls += 1
        (half_summed if self.calls % products.IN_A_ROW == 0 else right)(a, b, out)


def right(a: Tensor, b: Tensor, out: Tensor) -> None:
    out.copy_(a @ b)


def test_products_of_this_process_are_right() -> None:
    found = check_products("cpu")
    assert found == Products(None, 3 * len(products.SMALL), ())
    assert found.told() == "none of 6 kinds of matrix products is wrong"


@pytest.mark.parametrize(
    ("product", "entries"), [(unwritten, 2 * 7), (half_summed, 0), (not_a_number, 1), (RightAtFirst(), 0)]
)
def test_what_is_wrong_is_found(product: Any, entries: int) -> None:
    found = check_products("cpu", sizes=[(5, 16, 7)], product=product)
    assert found.tried == len(found.wrong) == 3
    first = found.wrong[0]
    assert (first.rows, first.inner, first.columns, first.kind) == (5, 16, 7, "forward")
    assert first.unwritten == entries
    assert first.wrong == (1 if isinstance(product, RightAtFirst) else products.IN_A_ROW)
    assert (first.error_frac is None) == bool(entries)
    assert found.told().startswith("3 of 3 kinds of matrix products are wrong (of ")
    assert Products.from_dict(json.loads(json.dumps(found.to_dict()))) == found


@pytest.mark.parametrize("product", [unwritten_where_sums_alone_look, infinite])
def test_of_what_is_not_finite_no_difference_is_told(product: Any) -> None:
    for one in check_products("cpu", sizes=[(64, 128, 96)], product=product).wrong:
        assert (one.unwritten, one.error_frac) == (1, None)
        json.dumps(one.error_frac, allow_nan=False)


def test_numbers_that_are_added_up_in_16_bits_are_not_wrong() -> None:
    assert check_products("cpu", sizes=[(4096, 64, 32)], product=added_in_parts).wrong == ()


@pytest.mark.parametrize("columns", [512, 4096])
def test_a_small_block_that_is_wrong_and_finite_is_found(columns: int) -> None:
    found = check_products("cpu", sizes=[(256, 64, columns)], product=block_left_out)
    assert [one.kind for one in found.wrong] == ["forward", "gradient of inputs", "gradient of weights"]
    assert all(one.unwritten == 0 and one.error_frac for one in found.wrong)


@pytest.mark.parametrize("size", [(816, 256, 2048), (3, 2000, 5), (900, 8, 64)])
def test_right_products_of_any_shape_are_right(size: tuple[int, int, int]) -> None:
    assert check_products("cpu", sizes=[size]).wrong == ()


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
def test_rounding_to_16_bits_is_no_error(kind: torch.dtype) -> None:
    def rounded(a: Tensor, b: Tensor, out: Tensor) -> None:
        out.copy_((a.to(kind).float() @ b.to(kind).float()).to(torch.bfloat16))

    assert not check_products("cpu", sizes=[(64, 512, 64)], product=rounded).wrong


def test_sms_are_told_where_there_are_any() -> None:
    wrong = WrongProduct(176, 1024, 256, "forward", 3, 0, 0.5)
    told = Products(100, 36, (wrong,)).told()
    assert told.startswith("with 100 SMs 1 of 36 kinds of matrix products are wrong")
    assert "numbers differ by 50 %" in told


def test_of_wrong_products_the_worst_is_told() -> None:
    wrong = [WrongProduct(5, 16, 7, "forward", 8, 0, error) for error in (0.05, 0.4, 0.06)]
    assert "numbers differ by 40 %" in Products(None, 6, tuple(wrong)).told()


def answering(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str) -> None:
    """Clients run some code in place of the check."""
    script = tmp_path / "client.py"
    script.write_text(code)
    interpreter = tmp_path / "python"
    interpreter.write_text(f"#!/bin/sh\nexec {sys.executable} {script}\n")
    interpreter.chmod(0o755)
    monkeypatch.setattr(products.sys, "executable", str(interpreter))


def test_a_client_answers_with_what_it_found(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    wrong = Products(100, 36, (WrongProduct(1, 2, 3, "forward", 8, 3, None),))
    answer = json.dumps(wrong.to_dict())
    answering(
        monkeypatch,
        tmp_path,
        f"import os; assert os.environ['SHARE'] == '76'; print('warning'); print({answer!r})",
    )
    assert ask_client({"SHARE": "76"}) == wrong


@pytest.mark.parametrize(
    "code",
    [
        "import os; print({answer!r}); os.write(1, b'\\xff\\xfe')",
        "print({answer!r}); print('[]'); print('{{')",
    ],
)
def test_what_a_library_prints_beside_the_answer_is_passed_over(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str
) -> None:
    right = Products(100, 36, ())
    answering(monkeypatch, tmp_path, code.format(answer=json.dumps(right.to_dict())))
    assert ask_client({}) == right


def test_a_python_that_is_gone_cannot_tell(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(products.sys, "executable", str(tmp_path / "none"))
    found = ask_client({})
    assert isinstance(found, Unavailable)
    assert found.reason == "a client cannot be started (No such file or directory)"


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise SystemExit(3)", "ended with 3"),
        ("raise OSError('libcublas.so.13 is damaged')", "ended with 1: OSError: libcublas.so.13 is damaged"),
        ("import os; os.write(1, b'\\xff')", "ended with 0"),
        ("print('{\"sms\": 1}')", "ended with 0"),
        ("print('[]')", "ended with 0"),
        ("import os; os.kill(os.getpid(), 9)", "ended with -9"),
        ("import time; time.sleep(60)", "no answer within 0.5 s"),
    ],
)
def test_a_client_that_cannot_tell(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, code: str, reason: str
) -> None:
    answering(monkeypatch, tmp_path, code)
    found = ask_client({}, limit_s=0.5 if "sleep" in code else 60.0)
    assert isinstance(found, Unavailable)
    assert reason in found.reason


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_client_without_a_gpu_cannot_tell() -> None:
    found = ask_client({})
    assert isinstance(found, Unavailable)
    assert "finds no CUDA device" in found.reason


def test_whatever_keeps_a_client_from_computing_is_its_answer(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def damaged() -> bool:
        raise OSError("libcuda.so.1 is damaged\nfor these reasons")

    monkeypatch.setattr(torch.cuda, "is_available", damaged)
    monkeypatch.setattr(products.signal, "alarm", lambda _s: None)
    products._main()
    assert json.loads(capsys.readouterr().out) == {"failed": "OSError: libcuda.so.1 is damaged"}


def test_a_client_that_nobody_waits_for_ends_by_itself() -> None:
    """As of a process that was killed while it asked."""
    code = (
        "import sys, time, types\n"
        "from rlprof.overlap.quota import products\n"
        "slow = types.SimpleNamespace(is_available=lambda: time.sleep(60))\n"
        "sys.modules['torch'] = types.SimpleNamespace(cuda=slow)\n"
        "products.LIMIT_S = 0.1\n"
        "products._main()"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, timeout=50, check=False)
    assert ended.returncode == -signal.SIGALRM
