"""What a rank executes: from its entry point to an argument vector. Pure, except that files are asked for.

Standard library only.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path

from gangline.agent.starter import RankStart

__all__ = ["needs_shell", "render_argv", "render_script", "script_word", "write_notebook_script"]

_SHELL_SYNTAX = re.compile(r"[\s|&;<>()$`\"'*?\[\]{}~#!]")
_CELL_MAGICS_THAT_RUN_PYTHON = ("%%time", "%%timeit", "%%capture", "%%prun")


def render_argv(rank: RankStart, *, exists: Callable[[str], bool]) -> list[str]:
    """The argument vector of a rank.

    A command that is one string with shell syntax runs under `bash -o pipefail`, so that the exit code of whatever
    fails in a pipe is the rank's own.

    Args:
        exists: whether a program of exactly this name is there, relative to the rank's folder.
    """
    if rank.entry_kind == "module":
        return [rank.python, "-m", rank.entry, *rank.args]
    if rank.entry_kind in {"script", "notebook"}:
        return [rank.python, script_word(rank.entry), *rank.args]
    if not rank.args and needs_shell(rank.entry, exists=exists):
        return ["bash", "-o", "pipefail", "-c", rank.entry]
    return [rank.entry, *rank.args]


def script_word(entry: str) -> str:
    """A script as an interpreter takes it: never for an option."""
    return f"./{entry}" if entry.startswith("-") else entry


def needs_shell(command: str, *, exists: Callable[[str], bool]) -> bool:
    """Whether a command that came as one string is meant for a shell."""
    return bool(_SHELL_SYNTAX.search(command)) and not exists(command)


def render_script(notebook: str) -> str:
    """The code cells of a notebook as one script; what only a notebook understands is commented out.

    Raises:
        ValueError: it is not a notebook.
    """
    raw = json.loads(notebook)
    if not isinstance(raw, dict) or not isinstance(raw.get("cells"), list):
        raise ValueError("it has no cells")  # noqa: TRY004 - what is wrong is the text
    cells = [cell for cell in raw["cells"] if cell.get("cell_type") == "code"]
    parts = [f"# Cell {number}\n{_cell(_source(cell))}" for number, cell in enumerate(cells, 1)]
    return "\n\n".join(parts) + "\n"


def write_notebook_script(folder: Path, entry: str) -> str:
    """Write the script of a notebook next to it; the script's path relative to `folder`.

    Every agent of a gang may do so at the same time: the file appears by rename.

    Raises:
        OSError, ValueError: the notebook cannot be read, or is none.
    """
    notebook = folder / entry
    script = notebook.with_suffix(".notebook.py")
    text = render_script(notebook.read_text(encoding="utf-8"))
    temporary = script.with_name(f".{script.name}.{os.getpid()}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(script)
    return str(Path(entry).with_suffix(".notebook.py"))


def _source(cell: dict[str, object]) -> str:
    source = cell.get("source", "")
    return "".join(source) if isinstance(source, list) else str(source)


def _cell(source: str) -> str:
    first, _, _rest = source.lstrip().partition("\n")
    if first.startswith("%%") and not first.startswith(_CELL_MAGICS_THAT_RUN_PYTHON):
        return "\n".join(f"# {line}" for line in source.splitlines())
    return "\n".join(_line(line) for line in source.splitlines())


def _line(line: str) -> str:
    bare = line.lstrip()
    if not bare.startswith(("%", "!")):
        return line
    indent = line[: len(line) - len(bare)]
    return f"{indent}pass  # {bare}"
