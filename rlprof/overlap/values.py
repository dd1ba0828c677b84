"""Nested values taken apart, and what arrays are in memory.

Tuples, lists, dicts with keys of text or whole numbers, named tuples and dataclasses are containers;
everything else is a leaf. torch is never imported here: a tensor can only exist if the program imported it.
"""

from __future__ import annotations

import ctypes
import sys
import zlib
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from operator import is_
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from rlprof.overlap.bindings import Path, View
from rlprof.overlap.specs import Key
from rlprof.overlap.structures import is_tensor

#: Nesting beyond which a value counts as a leaf: something that contains itself.
DEEPEST = 50


#: Arrays up to this size are compared as they are, larger ones by a checksum, in bytes.
SMALL_BYTES = 4096
#: Tensors in the host's memory up to this size are compared by a checksum besides their version, in bytes.
SUMMED_BYTES = 1 << 20
#: What `stamp` returns.
Stamp: TypeAlias = "int | bytes | tuple[int | None, int] | Items"


class Items:
    """Objects in an array, the same as others if each is the same object."""

    __slots__ = ("items",)

    def __init__(self, items: tuple[Any, ...]) -> None:
        self.items = items  # kept alive, so that no other takes the place of one

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Items):
            return NotImplemented
        return len(self.items) == len(other.items) and all(map(is_, self.items, other.items))

    __hash__ = None  # type: ignore[assignment]


class Parts(NamedTuple):
    """A container taken apart, one level.

    Parameters
    ----------
    kind : str or type
        ``"tuple"``, ``"list"``, ``"dict"``, or the class of a named tuple or dataclass.
    keys : tuple of int or str
        Positions, keys or field names.
    items : tuple
        One for each key.
    """

    kind: str | type
    keys: tuple[Key, ...]
    items: tuple[Any, ...]


#: Faster than a call of the class.
_new = tuple.__new__
_SIMPLE = frozenset({int, float, bool, str, bytes, complex, type(None), np.ndarray})
_KEYS = frozenset({str, int})
_FIELDS: dict[type, tuple[str, ...] | None] = {}


def take_apart(value: Any) -> Parts | None:
    """Return the parts of a container, None for a leaf."""
    cls = type(value)
    if cls in _SIMPLE:
        return None
    if cls is dict:
        keys = tuple(value)
        try:
            "".join(keys)  # texts, in one step
        except TypeError:
            if not _KEYS.issuperset(map(type, keys)):
                return None
        return _new(Parts, ("dict", keys, tuple(value.values())))
    if cls is tuple or cls is list:
        return _new(Parts, ("tuple" if cls is tuple else "list", tuple(range(len(value))), tuple(value)))
    try:
        names = _FIELDS[cls]
    except KeyError:
        names = _FIELDS[cls] = _field_names(cls)
    if names is None:
        return None
    if isinstance(value, tuple):
        return Parts(cls, names, tuple(value))
    try:
        items = tuple(getattr(value, name) for name in names)
    except AttributeError:
        return None
    extra = getattr(value, "__dict__", {}).keys() - set(names)
    return None if extra else Parts(cls, names, items)


def _field_names(cls: type) -> tuple[str, ...] | None:
    names = getattr(cls, "_fields", None)
    if issubclass(cls, tuple) and isinstance(names, tuple):
        return names
    if is_dataclass(cls):
        return tuple(field.name for field in fields(cls))
    return None


def flatten(value: Any) -> Iterator[tuple[Path, Any]]:
    """Yield the leaves of a nested value with their paths, left to right."""
    stack: list[tuple[Path, Any]] = [((), value)]
    while stack:
        path, top = stack.pop()
        parts = take_apart(top) if len(path) < DEEPEST else None
        if parts is None:
            yield path, top
        else:
            stack.extend(
                ((*path, key), item)
                for key, item in zip(reversed(parts.keys), reversed(parts.items), strict=True)
            )


def at_path(value: Any, path: Path) -> Any:
    """Return what lies at `path` of a nested value; None if nothing does."""
    for key in path:
        parts = take_apart(value)
        if parts is None or key not in parts.keys:
            return None
        value = parts.items[parts.keys.index(key)]
    return value


def torch_module() -> Any:
    """Return torch if the program has imported it, else None."""
    return sys.modules.get("torch")


def is_array(value: Any) -> bool:
    """Whether a value is an array with memory of its own to follow: numpy or strided torch."""
    if type(value) is np.ndarray or isinstance(value, np.ndarray):
        return True
    torch = sys.modules.get("torch")
    # while torch is being imported it has no Tensor yet
    tensor = None if torch is None else getattr(torch, "Tensor", None)
    return tensor is not None and isinstance(value, tensor) and bool(value.layout is torch.strided)  # type: ignore[union-attr]


#: Tells the memory of living arrays apart; arrays that share memory have one key.
MemoryKey = tuple[str, int]


def memory_key(array: Any) -> MemoryKey:
    """Return what tells the memory that an array lies in from all other."""
    if isinstance(array, np.ndarray):
        if array.base is None:
            return ("numpy", id(array))
        owner: Any = array
        while (base := _base(owner)) is not None:
            owner = base
        if not is_tensor(owner):
            return ("numpy", id(owner))
        array = owner  # of Tensor.numpy()
    storage = array.untyped_storage()
    if array.is_cpu and (address := storage.data_ptr()):
        return ("memory", address)  # two that were made of one array of numpy differ in all else
    return ("torch", storage._cdata)


def is_borrowed(array: Any) -> bool:
    """Whether an array is a tensor whose memory may be another object's, as of ``torch.from_numpy``."""
    if isinstance(array, np.ndarray):
        return False
    return bool(array.is_cpu and not array.untyped_storage().resizable())


def memory_range(array: Any) -> tuple[int, int]:
    """Return the first byte, and the one after the last, of all memory that an array is a part of."""
    if not isinstance(array, np.ndarray):
        storage = array.untyped_storage()
        return storage.data_ptr(), storage.data_ptr() + storage.nbytes()
    while isinstance(array.base, np.ndarray):
        array = array.base
    extent = extent_of(array)
    return extent.low, extent.high


def _base(owner: Any) -> Any:
    """What an array or a buffer gets its memory from; `as_strided` puts an object of its own in between."""
    return owner.obj if isinstance(owner, memoryview) else getattr(owner, "base", None)


class Extent(NamedTuple):
    """Where an array lies.

    Parameters
    ----------
    address : int
        Of its first element, in bytes.
    low, high : int
        First byte, and the one after the last, that its elements touch.
    """

    address: int
    low: int
    high: int


def extent_of(array: Any) -> Extent:
    """Return where an array lies."""
    if isinstance(array, np.ndarray):
        address, size, strides = array.ctypes.data, array.itemsize, array.strides
    else:
        address, size = array.data_ptr(), array.element_size()
        strides = tuple(s * size for s in array.stride())
    if 0 in array.shape:
        return Extent(address, address, address)
    reach = [(n - 1) * s for n, s in zip(array.shape, strides, strict=True)]
    low = address + sum(r for r in reach if r < 0)
    return Extent(address, low, address + sum(r for r in reach if r > 0) + size)


def view_of(part: Any, whole: Any) -> View | None:
    """Return `part` as a view of `whole`, None if it is none that `take_view` could take."""
    if isinstance(part, np.ndarray) != isinstance(whole, np.ndarray):
        return None
    if memory_key(part) != memory_key(whole):
        return None
    if isinstance(part, np.ndarray):
        if type(part) not in (np.ndarray, np.memmap):
            return None  # a masked array is more than its memory
    elif part.is_conj() != whole.is_conj() or part.is_neg() != whole.is_neg():
        return None  # as is a tensor whose conjugation is put off
    inner, outer = extent_of(part), extent_of(whole)
    if inner.low < outer.low or inner.high > outer.high:
        return None
    whole_strides: tuple[int, ...] | None
    if isinstance(part, np.ndarray):
        size = part.itemsize
        if any(s % size for s in part.strides) or (part.dtype != whole.dtype and part.dtype.names):
            return None
        strides = tuple(s // size for s in part.strides)
        whole_strides = tuple(s // size for s in whole.strides)
        exact = not any(s % size for s in whole.strides)
    else:
        size = part.element_size()
        if part.requires_grad != whole.requires_grad:
            return None
        strides, whole_strides, exact = tuple(part.stride()), tuple(whole.stride()), True
    offset, rest = divmod(inner.address - outer.address, size)
    if rest:
        return None
    dtype = str(part.dtype)
    if part.dtype != whole.dtype or not exact:
        return View(offset, tuple(part.shape), strides, dtype)
    return View(offset, tuple(part.shape), strides, dtype, tuple(whole.shape), whole_strides)


def stamp(array: Any) -> Stamp | None:
    """Return what changes when an array's contents are written in place; None: it cannot be told.

    Notes
    -----
    Of a small numpy array these are the contents, of a large one a checksum: a write that puts back what was
    there is none. Of a torch tensor it is the version counter, which all its views share, and a checksum if
    it lies in the host's memory and is no more than `SUMMED_BYTES`, or its memory is another's, or it has no
    counter. Other writes past the counter (through ``.data``, or by kernels that torch knows nothing of) are
    not seen.
    """
    if type(array) is np.ndarray or isinstance(array, np.ndarray):
        if array.dtype == object:
            return Items(tuple(array.flat))
        if array.nbytes <= SMALL_BYTES:
            return None if array.dtype.hasobject else array.tobytes()
        if array.dtype.kind in "biufc":
            return zlib.crc32(array.data if array.flags.c_contiguous else np.ascontiguousarray(array).data)
        return None if array.dtype.hasobject else zlib.crc32(array.tobytes())
    version = _torch_version(array)
    if array.device.type != "cpu":
        return version
    if array.nbytes <= SUMMED_BYTES or version is None or is_borrowed(array):
        return version, _checksum(array)
    return version


def copy_of(array: np.ndarray[Any, Any]) -> bytearray | None:
    """Return the contents of an array without objects, to be compared with it by ``copy == array``.

    ``bytearray`` compares memory with memory, without another copy: ten times as fast as a checksum. The
    arrays are the same if the result ``is True``. None: this array cannot be compared so.
    """
    if not array.flags.c_contiguous or array.dtype.kind in "mM":  # dates are no plain memory
        return None
    # a view of a small array takes longer than copying it twice
    return bytearray(array.tobytes() if array.nbytes <= SMALL_BYTES else array.data)


def bytes_of(tensor: Any) -> Any:
    """Return the contents of a tensor as one row of bytes; it may share memory."""
    torch = sys.modules["torch"]
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def _checksum(tensor: Any) -> int:
    if not tensor.numel():
        return 0
    flat = bytes_of(tensor)
    # not by way of numpy, after which the program could not resize its tensor any more
    return zlib.crc32((ctypes.c_char * flat.numel()).from_address(flat.data_ptr()))


def _torch_version(array: Any) -> int | None:
    try:
        return int(array._version)
    except (RuntimeError, AttributeError):  # inference tensors keep no count
        return None


def same_bits(a: Any, b: Any) -> bool:
    """Whether two arrays have equal type, shape and bits."""
    if type(a) is not type(b) or a.dtype != b.dtype or tuple(a.shape) != tuple(b.shape):
        return False
    if isinstance(a, np.ndarray):
        if a.dtype.hasobject:
            return False
        return bool(a.tobytes() == b.tobytes())
    if a.device != b.device or a.requires_grad != b.requires_grad:
        return False
    return bool(bytes_of(a).equal(bytes_of(b)))


def describe(value: Any) -> str:
    """Type, and shape of arrays, for people."""
    if is_array(value):
        kind = "array" if isinstance(value, np.ndarray) else "tensor"
        return f"{kind} {value.dtype} {tuple(value.shape)}"
    if isinstance(value, (int, float, bool, str, bytes)):
        text = repr(value)
        return f"{type(value).__name__} {text if len(text) <= 40 else text[:37] + '...'}"
    return type(value).__name__
