"""Fields that say what they are: help text, flags and unit travel with the class, for files, flags and docs alike.

Standard library only.
"""

from __future__ import annotations

from dataclasses import field
from typing import Any

__all__ = ["described"]


def described(default: Any, text: str, *flags: str, factory: Any = None, unit: str = "") -> Any:
    """A field with its help text, its flag spellings (the first is the one that docs use) and how flag values are read.

    unit: "bytes" reads `16GB`, "seconds" reads `90m`; "" takes the value as it is.
    """
    metadata = {"help": text, "flags": flags, "unit": unit}
    if factory is not None:
        return field(default_factory=factory, metadata=metadata)
    return field(default=default, metadata=metadata)
