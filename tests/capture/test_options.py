"""What a capture may be asked to record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rlprof.capture.session import capture
from rlprof.errors import UsageError


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"backend": "magic"}, "no back end 'magic'.*one of auto, cupti"),
        ({"backend": "nsys"}, "no back end 'nsys'.*rlprof capture --backend nsys"),
        ({"rate_hz": "10kHz"}, "rate_hz='10kHz' is no number"),
        ({"rate_hz": True}, "rate_hz=True is no number"),
        ({"devices": 0}, r"devices=0 is no tuple. Next: write devices=\(0, 1\)"),
        ({"devices": "0,1"}, "devices='0,1' is no tuple"),
        ({"devices": ("0",)}, "holds what is no int"),
        # text in place of a tuple would be a counter for each letter
        ({"metrics": "sm__cycles_active.avg"}, r"metrics='sm__.* is no tuple"),
        ({"metrics": (1,)}, "holds what is no str"),
    ],
)
def test_a_wrong_option_is_named_and_leaves_nothing_behind(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    with pytest.raises(UsageError, match=says), capture(tmp_path / "run.rlprof", **options):
        pass
    assert list(tmp_path.iterdir()) == []
