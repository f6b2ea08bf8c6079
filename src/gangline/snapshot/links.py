"""What becomes of a symbolic link: kept, rewritten, or replaced by what it points to."""

from __future__ import annotations

import os
import posixpath
import stat
from dataclasses import dataclass

__all__ = ["LinkFate", "decide_link"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkFate:
    """Exactly one of `target` and `copy` is set."""

    target: str | None = None
    """The link stays, and points here."""
    copy: str | None = None
    """Absolute path of the regular file whose content takes the link's place."""
    warning: str = ""
    """For people; "" where the link stays as it is."""


def decide_link(root: str, path: str) -> LinkFate:
    """Decide about the link at `path` in `root`.

    Links inside the tree stay. Where they go by an absolute path, or out of the tree and in again, they are rewritten
    to lead into the copy, not into the working tree. A regular file outside of the tree is copied. A folder or anything
    else outside stays outside: the link becomes absolute, and its content is no part of the snapshot.

    Args:
        root: absolute and without links in it.
        path: relative to it.
    """
    where = posixpath.join(root, path)
    target = os.readlink(where)  # noqa: PTH115 - Path() would tidy it
    real = os.path.realpath(where)
    if real == root or real.startswith(f"{root}/"):
        if not target.startswith("/") and not _leaves(path, target):
            return LinkFate(target=target)
        inner = posixpath.relpath(real, os.path.realpath(posixpath.dirname(where)))
        return LinkFate(target=inner, warning=f"the link was rewritten from {target} to {inner}")
    try:
        is_file = stat.S_ISREG(os.stat(where).st_mode)  # noqa: PTH116 - text paths on purpose, there can be many
    except OSError:
        is_file = False
    if is_file:
        return LinkFate(copy=real, warning=f"it is a link out of the project, to {real}, whose content was copied")
    return LinkFate(
        target=real, warning=f"it is a link out of the project; what lies in {real} is not part of the snapshot"
    )


def _leaves(path: str, target: str) -> bool:
    joined = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    return joined == ".." or joined.startswith("../")
