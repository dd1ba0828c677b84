"""What was found of products counts by number of SMs, whoever looked."""

from pathlib import Path

from rlprof.reproduce.rose.products import looked_at, wrong_shares
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
