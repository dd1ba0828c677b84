"""Arrow arrays from plain values, without what pyarrow would import for it.

`pyarrow.array` of a list, an array or even a scalar imports pandas where it is installed: half a second and
40 MB in the recorded program, and impossible while it is ending. So arrays are made of buffers.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: Type codes of `array.array` and names of numpy's types for Arrow's fixed-width types, by their name.
#: (Arrow's own `to_pandas_dtype` imports pandas too.)
_CODES = {"int64": "q", "int32": "i", "uint32": "I", "double": "d", "float": "f", "uint64": "Q"}
_DTYPES = {"double": "float64", "float": "float32"}


def arrow_array(values: Any, kind: pa.DataType) -> pa.Array:
    """An Arrow array.

    Parameters
    ----------
    values : sequence, ndarray or pyarrow.Array
        Values; None is null. An ndarray of the right type is used in place.
    kind : pyarrow.DataType
        Integer, floating, boolean, string, or a dictionary of strings.

    Returns
    -------
    pyarrow.Array

    Raises
    ------
    TypeError, OverflowError, ValueError
        If a value does not fit `kind`.
    """
    import pyarrow as pa

    if isinstance(values, pa.Array):
        return values if values.type == kind else values.cast(kind)
    if pa.types.is_dictionary(kind):
        codes = {v: i for i, v in enumerate(dict.fromkeys(v for v in values if v is not None))}
        places = arrow_array([None if v is None else codes[v] for v in values], kind.index_type)
        return pa.DictionaryArray.from_arrays(places, arrow_array(list(codes), kind.value_type))
    if pa.types.is_string(kind):
        return _texts(values)
    if pa.types.is_boolean(kind):
        valid, flags = _validity(values), [bool(v) for v in values]
        return pa.Array.from_buffers(kind, len(flags), [valid, pa.py_buffer(_bits(flags))])
    data = values
    if not hasattr(values, "__array_interface__"):
        data = array(_CODES[str(kind)], [0 if v is None else v for v in values])
    elif str(values.dtype) != (dtype := _DTYPES.get(str(kind), str(kind))):
        data = values.astype(dtype)
    elif not values.flags["C_CONTIGUOUS"]:
        data = values.copy()  # one column of several: a buffer holds no gaps
    valid = None if hasattr(values, "__array_interface__") else _validity(values)
    return pa.Array.from_buffers(kind, len(data), [valid, pa.py_buffer(data)])


def constant(text: str, size: int) -> pa.Array:
    """`text`, `size` times, as a dictionary of strings."""
    import pyarrow as pa

    places = arrow_array(array("i", bytes(4 * size)), pa.int32())
    return pa.DictionaryArray.from_arrays(places, _texts([text]))


def _texts(values: Sequence[str | None]) -> pa.Array:
    import pyarrow as pa

    encoded = [b"" if v is None else v.encode("utf-8", "replace") for v in values]
    offsets = array("i", [0])
    at = 0
    for text in encoded:
        at += len(text)
        offsets.append(at)
    buffers = [_validity(values), pa.py_buffer(offsets), pa.py_buffer(b"".join(encoded))]
    return pa.Array.from_buffers(pa.string(), len(encoded), buffers)


def _validity(values: Sequence[Any]) -> pa.Buffer | None:
    """Which values are there; None if all are."""
    import pyarrow as pa

    there = [v is not None for v in values]
    return None if all(there) else pa.py_buffer(_bits(there))


def _bits(flags: Sequence[bool]) -> bytes:
    """Flags as bits, the first one lowest."""
    number = int("".join("1" if f else "0" for f in reversed(flags)) or "0", 2)
    return number.to_bytes((len(flags) + 7) // 8, "little")
