"""Run ids and the names that people give to runs.

Standard library only.
"""

from __future__ import annotations

import re
import unicodedata

from gangline.domain.errors import SpecInvalid

__all__ = [
    "ID_ALPHABET",
    "LOCAL",
    "MAX_NAME_CHARS",
    "check_name",
    "check_variable",
    "name_from",
    "printable",
    "run_id_from",
    "slug_from",
]

LOCAL = "local"
"""The pool that is always there: the server's own machine."""
MAX_NAME_CHARS = 200
ID_ALPHABET = "23456789abcdefghjkmnpqrstuvwxyz"
"""Letters and digits that nobody confuses with one another."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_RESERVED = frozenset(
    "RANK LOCAL_RANK WORLD_SIZE LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK NNODES MASTER_ADDR MASTER_PORT".split()  # noqa: SIM905
)
_UNNAMEABLE = frozenset({"Cc", "Cs"})
"""Categories of Unicode that a name must not hold: control characters, and bytes that were no text."""
_SUFFIX_CHARS = 4
_SLUG_CHARS = 40


def check_name(name: str) -> str:
    """The name as it will be shown.

    Raises:
        SpecInvalid: it is empty, longer than `MAX_NAME_CHARS`, or holds control characters.
    """
    if not name.strip():
        raise SpecInvalid("The run's name is empty", fix="Give --name a word, or leave it out.")
    if len(name) > MAX_NAME_CHARS:
        raise SpecInvalid(
            f"The run's name has {len(name)} characters, {MAX_NAME_CHARS} are allowed", fix="Shorten --name."
        )
    if any(unicodedata.category(char) in _UNNAMEABLE for char in name):
        raise SpecInvalid("The run's name holds control characters", fix="Remove line breaks and the like from --name.")
    return name


def check_variable(name: str, place: str) -> None:
    """Refuse a variable that no shell could set, or that the platform sets.

    Args:
        place: what names it, as the error should say it.
    Raises:
        SpecInvalid
    """
    if not _VARIABLE.fullmatch(name):
        raise SpecInvalid(
            f"{place} names the variable `{printable(name)}`" if name else f"{place} names a variable without a name",
            why="A name is made of letters, digits and underscores, and does not begin with a digit",
            fix="Write NAME=VALUE; the value may hold anything.",
        )
    if name in _RESERVED or name.startswith("GANGLINE_"):
        raise SpecInvalid(
            f"{place} sets `{name}`",
            why="Gangline gives every rank its own value of it",
            fix="Choose another name, or leave it out.",
        )


def printable(text: str) -> str:
    """Text on one line that any terminal and JSON reader takes."""
    return "".join("�" if unicodedata.category(char) in _UNNAMEABLE else char for char in text)


def name_from(text: str) -> str:
    """A name that `check_name` takes, near to a text that nobody gave for a name, such as that of a file."""
    legal = "".join("_" if unicodedata.category(char) in _UNNAMEABLE else char for char in text)[:MAX_NAME_CHARS]
    return legal if legal.strip() else "run"


def slug_from(name: str) -> str:
    """The part of a run id that comes from its name: [a-z0-9-], 1 to 40 characters, no dash at either end."""
    plain = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    slug = re.sub(r"[^a-z0-9]+", "-", plain).strip("-")[:_SLUG_CHARS].strip("-")
    return slug or "run"


def run_id_from(name: str, entropy: bytes) -> str:
    """`llama-ft-7k3q`: the slug of the name and four characters drawn from `entropy` (at least 4 bytes)."""
    suffix = "".join(ID_ALPHABET[byte % len(ID_ALPHABET)] for byte in entropy[:_SUFFIX_CHARS])
    return f"{slug_from(name)}-{suffix}"
