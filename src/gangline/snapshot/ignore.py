"""Which rule leaves a path out, or brings it in: the built-in list, `.ganglineignore`, `.gitignore`, `--include`."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Collection, Iterable, Sequence
from pathlib import Path

from pathspec import GitIgnoreSpec

from gangline.domain.errors import SnapshotRefused
from gangline.rundir.checkpoints import LATEST, MANIFEST, parse_folder_name

__all__ = [
    "BUILT_IN",
    "CHECKPOINTS",
    "GANGLINEIGNORE",
    "GITIGNORE",
    "LOGS",
    "REPORTS",
    "IgnoreFiles",
    "Include",
    "built_in_rule",
    "checkpoint_names",
    "is_report",
    "log_names",
]

GITIGNORE = ".gitignore"
GANGLINEIGNORE = ".ganglineignore"
BUILT_IN = frozenset(
    {
        ".DS_Store",
        ".eggs",
        ".hg",
        ".hypothesis",
        ".ipynb_checkpoints",
        ".jj",
        ".metaflow",
        ".mypy_cache",
        ".nox",
        ".pytest_cache",
        ".ruff_cache",
        ".svn",
        ".tox",
        ".venv",
        "__pycache__",
        "node_modules",
    }
)
"""Names that are left out everywhere, unless an include names them. `.git` is left out always."""
CHECKPOINTS = "built-in list: checkpoints of Gangline"
"""The words for what `checkpoint_names` finds."""
REPORTS = "built-in list: reports of Gangline"
LOGS = "built-in list: logs that Gangline has downloaded"
_REPORT = re.compile(r"gangline-report-.+\.(html?|zip)")
"""What it calls one that nobody has named."""
_REPORT_FORMS = (".html", ".htm", ".zip")
_REPORT_MARKS = (b'<meta name="generator" content="gangline report">', b"gangline-report-")
"""Stand near the beginning of what `gangline report` writes: in the page's head, and as the archive's first name."""
_LOOKED_AT_BYTES = 512
_LOGS_NOTE = "gangline-logs.json"
"""What `gangline logs --download` leaves beside the logs."""
_LOG = re.compile(r"rank-\d+\.attempt-\d+\.log")
_WILD = re.compile(r"[*?\[\\]")


def built_in_rule(name: str) -> str | None:
    """The words for a name of the built-in list."""
    if _REPORT.fullmatch(name):
        return REPORTS
    return f"built-in list: {name}" if name in BUILT_IN else None


def is_report(path: str) -> bool:
    """Whether a file was written by `gangline report`, whatever it is called."""
    if not path.lower().endswith(_REPORT_FORMS):
        return False
    with open(path, "rb") as file:  # noqa: PTH123 - there may be many
        head = file.read(_LOOKED_AT_BYTES)
    return any(mark in head for mark in _REPORT_MARKS)


def log_names(names: Collection[str]) -> frozenset[str]:
    """What of a folder `gangline logs --download` has written there."""
    if _LOGS_NOTE not in names:
        return frozenset()
    return frozenset(name for name in names if name == _LOGS_NOTE or _LOG.fullmatch(name))


def checkpoint_names(folder: Path, names: Collection[str]) -> frozenset[str]:
    """What in a folder are checkpoints of Gangline and what belongs to them: known by what is there, not by its name.

    A script that runs alone saves into the project itself, and its checkpoints are no source code.

    Args:
        names: everything that is in the folder.
    """
    saves = {name for name in names if parse_folder_name(name) is not None}
    notes = {name for name in (".saving", ".removed") if name in names}
    link = {LATEST} if LATEST in names and (folder / LATEST).is_symlink() else set()
    if saves and (notes or any(os.path.lexists(folder / name / MANIFEST) for name in saves)):
        return frozenset(saves | notes | link)
    return frozenset(notes) if ".saving" in notes and set(names) <= notes else frozenset()


class IgnoreFiles:
    """All ignore files of one name in a tree, each counting for its own folder and below.

    The deepest one that says something decides, in it the last line that matches.

    Args:
        name: `.gitignore` or `.ganglineignore`.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self._specs: dict[str, tuple[GitIgnoreSpec, list[str]]] = {}

    def load(self, folder: str, path: Path) -> None:
        """Read the ignore file of a folder ("" is the root).

        Raises:
            SnapshotRefused: it cannot be read, or a pattern in it is not legal.
        """
        try:
            lines = path.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
            self._specs[folder] = (GitIgnoreSpec.from_lines(lines), lines)
        except (OSError, ValueError) as error:
            raise SnapshotRefused(f"{path} cannot be read", why=str(error), fix="Correct it.") from error

    def decide(self, path: str, *, is_dir: bool) -> str | bool | None:
        """The rule that leaves the path out; False: a line with `!` brings it back; None: nothing is said of it."""
        if not self._specs:
            return None
        folder = path
        while folder:
            folder = posixpath.dirname(folder)
            if folder not in self._specs:
                continue
            spec, lines = self._specs[folder]
            inner = path[len(folder) + 1 :] if folder else path
            found = spec.check_file(f"{inner}/" if is_dir else inner)
            if found.include is not None and found.index is not None:
                where = posixpath.join(folder, self.name)
                return f"{where}:{found.index + 1}: {lines[found.index].strip()}" if found.include else False
        return None


class Include:
    """Patterns that win over every rule, in the syntax of `.gitignore`, seen from the root.

    Raises:
        SnapshotRefused: a pattern is not legal.
    """

    def __init__(self, patterns: Sequence[str]) -> None:
        self.patterns = tuple(pattern.removeprefix("./") for pattern in patterns)
        try:
            self._spec = GitIgnoreSpec.from_lines(self.patterns)
        except ValueError as error:
            raise SnapshotRefused("An --include pattern is not legal", why=str(error)) from error

    def matches(self, path: str, *, is_dir: bool = False) -> bool:
        """Whether the path, or a folder that it lies in, is included."""
        return bool(self.patterns) and self._spec.match_file(f"{path}/" if is_dir else path)

    def may_lie_in(self, folder: str, *, built_in: bool) -> bool:
        """Whether something in a folder that was left out could match.

        Args:
            folder: the path of the folder.
            built_in: it is of the built-in list, which only a pattern that begins with its path reaches into.
        """
        parts = folder.split("/")
        return any(_reaches(pattern, parts, literal_only=built_in) for pattern in self.patterns)

    def unmatched(self, paths: Iterable[str]) -> list[str]:
        """Patterns that none of the paths match."""
        known = list(paths)
        single = [(pattern, GitIgnoreSpec.from_lines([pattern])) for pattern in self.patterns]
        return [pattern for pattern, spec in single if not any(map(spec.match_file, known))]


def _reaches(pattern: str, folder: Sequence[str], *, literal_only: bool) -> bool:
    if "/" not in pattern.rstrip("/"):
        return not literal_only
    literal: list[str] = []
    for part in pattern.strip("/").split("/"):
        if _WILD.search(part):
            break
        literal.append(part)
    if literal_only and len(literal) < len(folder):
        return False
    shared = min(len(literal), len(folder))
    return literal[:shared] == list(folder[:shared])
