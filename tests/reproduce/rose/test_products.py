"""What was found of products counts by number of SMs, whoever looked."""

from pathlib import Path

from rlprof.reproduce.rose.products import labelled, looked_at, wrong_shares
from tests.reproduce.rose import made


def test_a_number_of_sms_is_right_only_if_nothing_was_wrong_with_it(tmp_path: Path) -> None:
    first = {
        "rows": [
            {"percent": 76, "way": "w", "sms": 100, "wrong": {"a": 1}},
            {"percent": 92, "way": "w", "sms": 120, "wrong": {}},
        ]
    }
    second = {
        "rows": [
            {"percent": 76, "way": "w", "sms": 100, "wrong": []},
            {"percent": 64, "way": "w", "sms": 84, "wrong": [1]},
        ]
    }
    found = looked_at(made.checkout(tmp_path, a=first, b=second, c={"rows": []}, d={"rows": [{"other": 1}]}))
    assert found == {"84": "wrong", "100": "wrong", "120": "right"}
    assert wrong_shares(found) == "matrix products are wrong with 100, 84 SMs"
    assert wrong_shares({"120": "right"}) is None
    assert looked_at(made.checkout(tmp_path / "none")) == {}


def test_green_contexts_are_told_apart_from_clients_of_as_many_sms(tmp_path: Path) -> None:
    right, wrong = {"tried": 36, "wrong": []}, {"tried": 36, "wrong": [1]}
    parts = [
        {"percent": 75, "sms": 104, "plain": right, "captured": right},
        {"percent": 66, "sms": 88, "plain": right, "captured": wrong},
        {"percent": 60, "sms": 80, "plain": right, "failed": "RuntimeError: the capture failed"},
        {"percent": 6, "sms": 8, "failed": "RuntimeError: no memory"},
    ]
    rows = [
        {"percent": 80, "way": "w", "sms": 104, "wrong": [1]},
        {"percent": 100, "way": "green contexts", "parts": parts},
    ]
    found = looked_at(made.checkout(tmp_path, a={"rows": rows}))
    assert found == {"104": "wrong", "green 80": "right", "green 88": "wrong", "green 104": "right"}
    assert wrong_shares(found) == "matrix products are wrong with 104 SMs"
    trial = {"unit": "SMs", "amount": 104}
    kinds = [{**trial, "mechanism": "mps"}, {**trial, "mechanism": "green contexts"}]
    assert [row["products"] for row in labelled(kinds, found)] == ["wrong", "right"]
