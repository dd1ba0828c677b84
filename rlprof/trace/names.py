"""Labels of ranges: what is an id inside them, and what must not be shown."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import polars as pl

#: Shown for a range that has no name.
UNNAMED = "(unnamed)"

# `, op_id = 990346`, `seq=45328`, `id: 7`: a key with an integer value
_KEY_VALUE = re.compile(r"[,;]?\s*\b([A-Za-z_][\w.]*)\s*[=:]\s*(?:0x[0-9a-fA-F]+|\d+)(?![\w.])")
# `step 17`, `ProfilerStep#551`, `epoch (3)`, `step [2/10]`: a number that stands apart at the end
_APART = re.compile(r"(?<=\w)\s*[ #(\[<:]\s*#?\d+(?:\s*(?:/|of)\s*\d+)?\s*[)\]>]?$")
# `step_11`, `iter-3`: glued with _ - . /, which also number layers and stages: only after loop words
_LOOP_WORD = re.compile(
    r"^(.*?(?:steps?|iter|iters|iterations?|epochs?|batch|batches|minibatch|microbatch|micro_batch|mini_batch"
    r"|chunks?|episodes?|rollouts?|rounds?|requests?|req|samples?|trajectory|tokens?|frames?|updates?|turns?))"
    r"[_\-./]\d+$",
    re.IGNORECASE,
)
_DIGIT = re.compile("[0-9]")
# the part of an absolute path that names a user
_HOME = re.compile(r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s:]+|(?<![\w/])/root(?=/)")


def normalise(label: str) -> str:
    """A label without the ids inside it, so that all calls of one thing share one name.

    Removed are integer ``key=value`` pairs, numbers that stand apart at the end, and numbers glued with
    ``_ - . /`` to a word that names a loop (``step_11``). Numbers that belong to a name stay: ``layer1``,
    ``layer_3``, ``conv2d``, ``Identity_12``.

    >>> normalise("aten::mul, seq = 45328, op_id = 990726"), normalise("step 17")
    ('aten::mul', 'step')
    >>> normalise("step_11"), normalise("layer_3"), normalise("17")
    ('step', 'layer_3', '17')
    """
    out = _KEY_VALUE.sub("", label)
    if not out.strip(" ,;") and (key := _KEY_VALUE.match(label)):
        out = key[1]  # `epoch: 4` is called epoch
    previous = None
    while out != previous:
        previous = out
        out = _APART.sub("", out.strip(" ,;"))
    if m := _LOOP_WORD.match(out):
        out = m[1]
    # a label that is nothing but ids keeps them: an empty name would say less
    return out.strip(" ,;") or label


def normalised(labels: pl.Series) -> pl.Series:
    """`normalise` of each label of a String or Categorical column; null stays null.

    Labels that differ in nothing but their numbers are looked at once, if no number is kept: a trace of
    operators may hold millions of them.
    """
    import polars as pl  # not above: `normalise` serves captures on machines without polars

    text = pl.String()
    frame = pl.DataFrame({"label": labels.cast(text)}).with_columns(
        pl.col("label").str.replace_all("[0-9]+", "1").alias("shape")
    )
    plain = {shape: normalise(shape) for shape in frame["shape"].unique().drop_nulls()}
    alike = [(shape, out) for shape, out in plain.items() if not _DIGIT.search(out)]
    of_shape = pl.DataFrame(alike, schema={"shape": text, "plain": text}, orient="row")
    found = frame.join(of_shape, on="shape", how="left", maintain_order="left")
    rest = found.filter(pl.col("plain").is_null())["label"].unique().drop_nulls()
    of_label = pl.DataFrame({"label": rest, "own": pl.Series([normalise(t) for t in rest], dtype=text)})
    joined = found.join(of_label, on="label", how="left", maintain_order="left")
    return joined.select(pl.coalesce("plain", "own").alias(labels.name)).to_series()


def scrub_home(labels: pl.Series) -> pl.Series:
    """A Categorical column with user names taken out of paths (``/home/NAME`` becomes ``~``)."""
    import polars as pl

    distinct = labels.unique().drop_nulls()
    text = distinct.cast(pl.String)
    touched = text.str.contains("/home/|/Users/|/root/|\\\\Users\\\\")
    if not touched.any():
        return labels
    table = pl.DataFrame(
        {
            "from": distinct.filter(touched),
            "to": pl.Series([_HOME.sub("~", s) for s in text.filter(touched)]).cast(pl.Categorical()),
        }
    )
    frame = pl.DataFrame({"from": labels})
    joined = frame.join(table, on="from", how="left", maintain_order="left")
    return joined.select(pl.coalesce("to", "from"))["to"]
