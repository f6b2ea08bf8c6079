"""Pickles of plain values: numbers, texts, lists and mappings. The rest is refused, as a pickle may call anything.

Standard library only.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Sequence
from typing import Any

__all__ = ["LARGEST_BYTES", "Refused", "read_plain_pickle"]

LARGEST_BYTES = 64 << 20


class Refused(ValueError):
    """A pickle holds something else than plain values."""


class _Plain(pickle.Unpickler):
    """Loads numbers, texts, lists and mappings; TorchScript's typed lists are lists."""

    def find_class(self, module: str, name: str) -> Any:  # noqa: ANN401 - as in the base class
        if module == "torch.jit._pickle" and name in _LISTS:
            return _list
        raise Refused(f"it names {module}.{name}")

    def persistent_load(self, pid: Any) -> Any:  # noqa: ANN401 - as in the base class
        raise Refused(f"it refers to {pid!r} outside of it")


_LISTS = frozenset({"build_intlist", "build_doublelist", "build_boollist"})


def _list(values: Sequence[Any]) -> list[Any]:
    return list(values)


def read_plain_pickle(data: bytes) -> object:
    """The value in a pickle of plain values.

    Raises:
        Refused: it holds, or is, something else.
    """
    if len(data) > LARGEST_BYTES:
        raise Refused(f"it has {len(data)} bytes")
    try:
        return _Plain(io.BytesIO(data)).load()
    except Refused:
        raise
    except Exception as error:
        raise Refused(f"{type(error).__name__}: {error}") from error
