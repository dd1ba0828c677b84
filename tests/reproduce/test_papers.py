"""Papers' numbers: the shipped files, and files with one fault each."""

from __future__ import annotations

from pathlib import Path

import pytest

from rlprof.errors import UnreadableError
from rlprof.reproduce.errors import PaperError
from rlprof.reproduce.papers import COLUMNS, read_paper
from rlprof.unavailable import Unavailable
from tests.conftest import ROOT

HEAD = ",".join(COLUMNS)
GOOD = "fig06,gain,least,5,%,Section VIII,text"


def written(folder: Path, *lines: str, head: str = HEAD) -> Path:
    path = folder / "paper.csv"
    path.write_text("\n".join([head, *lines]) + "\n")
    return path


@pytest.mark.parametrize("name", ["rpeg", "rose"])
def test_the_shipped_numbers_can_be_read(name: str) -> None:
    paper = read_paper(ROOT / "datasets" / "papers" / f"{name}.csv")
    assert len(paper.numbers) > 50
    assert all((n.value is None) == (n.read == "unreadable") for n in paper.numbers)


def test_numbers_are_found_by_figure_series_and_point(tmp_path: Path) -> None:
    paper = read_paper(written(tmp_path, GOOD, "fig06,gain,most,,%,Fig. 6,unreadable"))
    assert paper.value("fig06", "gain", "least") == 5.0
    unreadable = paper.value("fig06", "gain", "most")
    assert isinstance(unreadable, Unavailable)
    assert "Fig. 6" in unreadable.reason
    assert [n.x for n in paper.of("fig06")] == ["least", "most"]
    with pytest.raises(PaperError, match="'gain' 'median' of fig06"):
        paper.number("fig06", "gain", "median")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("fig06,gain,least,five,%,Section VIII,text", "value is 'five'"),
        ("fig06,gain,least,nan,%,Section VIII,text", "value is 'nan'"),
        ("fig06,gain,least,,%,Section VIII,text", "value is ''"),
        ("fig06,gain,least,5,%,,text", "source is empty"),
        ("fig06,,least,5,%,Section VIII,text", "series or source is empty"),
        ("fig06,gain,least,5,%,Section VIII,guessed", "read is 'guessed'"),
        ("fig06,gain,least,5,%,Section VIII,unreadable", "an unreadable number has a value"),
        ("fig06,gain,least,5,%,Section VIII", "too many or too few fields"),
        ("fig06,gain,least,5,%,Section VIII,text,more", "too many or too few fields"),
        (GOOD, "is there twice"),
    ],
)
def test_a_fault_is_named_with_its_line(tmp_path: Path, line: str, said: str) -> None:
    with pytest.raises(PaperError, match=said) as caught:
        read_paper(written(tmp_path, GOOD, line))
    assert "paper.csv" in str(caught.value)


def test_a_file_that_is_none(tmp_path: Path) -> None:
    with pytest.raises(UnreadableError):
        read_paper(tmp_path / "absent.csv")
    with pytest.raises(PaperError, match="columns"):
        read_paper(written(tmp_path, GOOD, head="figure,value"))
    (tmp_path / "binary.csv").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(PaperError, match="UTF-8"):
        read_paper(tmp_path / "binary.csv")
