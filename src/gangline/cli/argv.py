"""The command line of `gangline submit`, cut in two: Gangline's options, and what runs with its own arguments.

    gangline submit [options] train.py [args]       a script (or notebook.ipynb)
    gangline submit [options] -m package.module [args]
    gangline submit [options] -- command [args]
    gangline submit [options] -f run.yaml [-- args]

Everything after the script belongs to the script; one `--` right after it is dropped. Slips are refused here, before
anything is packed. Reads the file system (is it there? what is near?), writes nothing.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from gangline.domain.errors import InvalidRequest
from gangline.domain.launched import find_launched, render_instead
from gangline.domain.spec import EntryKind
from gangline.snapshot.root import find_root

__all__ = ["Entry", "SubmitLine", "file_args", "parse_entry", "split_line"]

_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")
_PYTHON = re.compile(r"python(3(\.\d+)?)?")
_SUFFIXES = {".py": EntryKind.SCRIPT, ".ipynb": EntryKind.NOTEBOOK}
_NO_RUN = frozenset({"--dry-run", "--help"})
"""Options of ours with which nobody wants a run to start."""
_MOST_FILES_SEEN = 5_000
_SKIPPED_FOLDERS = frozenset({"__pycache__", "node_modules", "site-packages", "venv"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What the ranks execute, as the command line said it."""

    kind: EntryKind
    entry: str
    args: tuple[str, ...] = ()
    python: str | None = None
    """The interpreter that was named before the script, resolved; None: none was."""
    notes: tuple[str, ...] = ()
    """What may not be what was meant; said, then done as it was written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SubmitLine:
    """The command line, cut."""

    options: tuple[str, ...]
    separated: bool
    """The rest was behind `--`: a command."""
    rest: tuple[str, ...]
    """From the script, `-m`, or the command on; empty where there is only `-f`."""


def split_line(argv: Sequence[str], flags: Mapping[str, bool]) -> SubmitLine:
    """Cut where Gangline's own options end.

    Args:
        flags: every spelling of every option, and whether it takes a value.
    Raises:
        InvalidRequest: an unknown option, or one without its value.
    """
    position = 0
    while position < len(argv):
        word = argv[position]
        if word == "--":
            return _line(argv, position, separated=True)
        if word in {"-m", "-"} or not word.startswith("-"):
            return _line(argv, position, separated=False)
        position += _option_length(argv, position, flags)
    return SubmitLine(options=tuple(argv), separated=False, rest=())


def parse_entry(line: SubmitLine, *, flags: Mapping[str, bool], folder: Path) -> Entry | None:
    """What runs; None where the line names nothing.

    Args:
        flags: as for `split_line`; used to tell options that stand behind the script.
        folder: where the command was typed.
    Raises:
        InvalidRequest: something stands where the script should be that is none, with the likely meaning.
    """
    rest = line.rest
    if not rest:
        if line.separated:
            raise InvalidRequest(
                "There is no command after `--`", fix="For example: gangline submit -- ./train.sh --fast"
            )
        return None
    python = _parse_python(rest, folder)
    if python is not None:
        return _with_notes(python, rest, flags) if not line.separated else python
    if line.separated:
        return _parse_command(rest)
    if rest[0] == "-m":
        return _with_notes(_parse_module(rest), rest, flags)
    return _with_notes(_parse_script(line, folder), rest, flags)


def file_args(line: SubmitLine, file: str, layers: Mapping[str, object]) -> tuple[str, ...] | None:
    """What stands behind `--` beside `-f` and takes the place of the file's `args`; None: the line names what runs.

    Args:
        file: name of the file of `-f`.
        layers: what it and the project's defaults say.
    Raises:
        InvalidRequest: the file runs a command, whose arguments cannot be told from the command.
    """
    if not line.separated or not layers.get("entry"):
        return None
    if layers.get("entry_kind") != EntryKind.COMMAND.value:
        return line.rest
    if line.rest and line.rest[0].startswith("-"):
        raise InvalidRequest(
            f"{file} runs a command, which is replaced as a whole",
            fix=f"Write all of it: gangline submit -f {file} -- {layers['entry']} … {' '.join(line.rest)}",
        )
    return None


def _line(argv: Sequence[str], position: int, *, separated: bool) -> SubmitLine:
    rest = argv[position + 1 :] if separated else argv[position:]
    return SubmitLine(options=tuple(argv[:position]), separated=separated, rest=tuple(rest))


def _option_length(argv: Sequence[str], position: int, flags: Mapping[str, bool]) -> int:
    """How many words the option at `position` takes: 1 or 2."""
    name, equals, _ = argv[position].partition("=")
    if name not in flags:
        if not name.startswith("--") and name[:2] in flags:  # -fFILE, or flags in one word
            return 1
        fix = _nearest_option(name, flags)
        if file := _file_of(argv[:position]):
            fix += f"\nFor what {file} runs: gangline submit -f {file} -- {name} …"
        raise InvalidRequest(f"`gangline submit` has no option `{name}`", fix=fix)
    if equals or not flags[name]:
        return 1
    value = argv[position + 1] if position + 1 < len(argv) else None
    if value is None or value == "--" or value.partition("=")[0] in flags:
        found = f"`{value}` is an option itself" if value else "the line ends there"
        raise InvalidRequest(
            f"`{name}` needs a value", why=f"After it, {found}.", fix=f"Write {name}=VALUE or {name} VALUE."
        )
    return 2


def _file_of(words: Sequence[str]) -> str:
    """The file of `-f` among options; "" without one."""
    for position, word in enumerate(words):
        if word in {"-f", "--file"}:
            return words[position + 1] if position + 1 < len(words) else ""
        if word.startswith("--file="):
            return word.partition("=")[2]
    return ""


def _nearest_option(name: str, flags: Mapping[str, bool]) -> str:
    close = get_close_matches(name, [flag for flag in flags if flag.startswith("--")], n=2, cutoff=0.6)
    listed = "`gangline submit --help` lists the options; those of the script stand after the script."
    return f"Did you mean {' or '.join(f'`{flag}`' for flag in close)}?" if close else listed


def _parse_python(rest: Sequence[str], folder: Path) -> Entry | None:
    """`python [-u] train.py args` and `python -m module args` are that script and module; all else is a command."""
    if not _PYTHON.fullmatch(rest[0]) or (folder / rest[0]).exists():
        return None
    words = list(rest[1:])
    if words[:1] == ["-u"]:
        del words[0]
    python = shutil.which(rest[0])
    if words[:1] == ["-m"] and len(words) > 1:
        return Entry(kind=EntryKind.MODULE, entry=words[1], args=tuple(words[2:]), python=python)
    if words and words[0].endswith(".py") and not words[0].startswith("-"):
        _check_script(words[0], folder)
        return Entry(kind=EntryKind.SCRIPT, entry=words[0], args=tuple(words[1:]), python=python)
    return None


def _parse_command(rest: Sequence[str]) -> Entry:
    """A program and its words; one text with spaces is a line for a shell, where any failing part of a pipe counts."""
    if len(rest) == 1 and any(char.isspace() for char in rest[0]):
        return Entry(kind=EntryKind.COMMAND, entry="bash", args=("-eo", "pipefail", "-c", rest[0]))
    if not rest[0]:
        raise InvalidRequest("The command after `--` is empty", fix="For example: gangline submit -- ./train.sh --fast")
    return Entry(kind=EntryKind.COMMAND, entry=rest[0], args=tuple(rest[1:]))


def _parse_module(rest: Sequence[str]) -> Entry:
    if len(rest) < 2 or rest[1].startswith("-"):  # noqa: PLR2004 - -m and a name
        raise InvalidRequest("`-m` needs a module", fix="For example: gangline submit -m package.train --lr 3e-4")
    module = rest[1]
    if module.endswith(".py") or "/" in module:
        raise InvalidRequest(
            f"`-m {module}` is a file, not a module",
            fix=f"Write {module} without -m, or -m {module.removesuffix('.py').replace('/', '.')}",
        )
    return Entry(kind=EntryKind.MODULE, entry=module, args=_own_args(rest[2:]))


def _parse_script(line: SubmitLine, folder: Path) -> Entry:
    word = line.rest[0]
    path = folder / word
    kind = _SUFFIXES.get(path.suffix)
    if kind is None and not _is_file(path):
        raise _not_a_script(line, folder)
    if kind is None:
        raise _other_file(word, folder)
    _check_script(word, folder, later=line.rest[1:])
    return Entry(kind=kind, entry=word, args=_own_args(line.rest[1:]))


def _own_args(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(words[1:] if words and words[0] == "--" else words)


def _check_script(word: str, folder: Path, *, later: Sequence[str] = ()) -> None:
    path = folder / word
    if _is_file(path):
        return
    if _is_dir(path):
        raise _a_folder(word, path)
    script = next((other for other in later if other.endswith(".py") and _is_file(folder / other)), None)
    if script:
        raise InvalidRequest(
            f"There is no file `{word}`", why=f"But `{script}` after it is one.", fix=f"Remove `{word}`?"
        )
    raise _no_such_file(word, folder)


def _not_a_script(line: SubmitLine, folder: Path) -> InvalidRequest:
    """What a first word that is no file may have been meant as."""
    word, option = line.rest[0], _last_option(line.options)
    if _ASSIGNMENT.match(word):
        flag = option if option in {"--env", "--label"} else "--env"
        return InvalidRequest(
            f"`{word}` stands where the script should be",
            why=f"{flag} takes one K=V.",
            fix=f"Write {flag} once for each: {flag} {word}",
        )
    launched = find_launched(line.rest)
    if launched and launched[0].spreads:
        return InvalidRequest(
            f"`{launched[0].program}` is a launcher, and Gangline is one itself",
            fix=f"Write {render_instead(launched[0], line.options)}",
        )
    script = next(
        (other for other in line.rest[1:] if Path(other).suffix in _SUFFIXES and _is_file(folder / other)), None
    )
    if script:
        why = f"`{script}` comes only after it."
        after = f"; {option} takes one value" if option else ""
        return InvalidRequest(f"`{word}` stands where the script should be", why=why, fix=f"Remove `{word}`{after}.")
    if _is_dir(folder / word):
        return _a_folder(word, folder / word)
    if shutil.which(word, path=os.environ.get("PATH")):
        return InvalidRequest(
            f"`{word}` is a program, not a script", fix=f"Write gangline submit -- {' '.join(line.rest)}"
        )
    return _no_such_file(word, folder)


def _no_such_file(word: str, folder: Path) -> InvalidRequest:
    fix = _nearest_file(word, folder)
    if " " in word.strip():
        fix = f"Without quotes: gangline submit {word}\nA line for a shell: gangline submit -- {shlex.quote(word)}"
    return InvalidRequest(f"There is no file `{word}` in {folder}", fix=fix)


def _a_folder(word: str, path: Path) -> InvalidRequest:
    """A folder is no script; name those that it holds."""
    scripts = sorted(entry.name for entry in _scan(path) if Path(entry.name).suffix in _SUFFIXES)
    if "__main__.py" in scripts:
        fix = f"As a module: gangline submit -m {word.strip('./').replace('/', '.')}"
    elif named := [name for name in scripts if name != "__init__.py"]:
        best = "train.py" if "train.py" in named else named[0]
        fix = f"Name the script in it, such as {(Path(word) / best).as_posix()}."
    elif below := next(_walk(path), None):
        fix = f"Name the script in it, such as {(Path(word) / below.relative_to(path)).as_posix()}."
    else:
        fix = "There is no Python script in it."
    return InvalidRequest(f"`{word}` is a folder", fix=fix)


def _other_file(word: str, folder: Path) -> InvalidRequest:
    if word.endswith((".yaml", ".yml")):
        return InvalidRequest(f"`{word}` is no script", fix=f"A run file is given with -f: gangline submit -f {word}")
    if not word.endswith(".sh") and not os.access(folder / word, os.X_OK):
        return InvalidRequest(
            f"`{word}` is neither a Python script nor a notebook, and cannot be executed",
            fix=_nearest_file(word, folder),
        )
    shell = "bash " if word.endswith(".sh") else ("" if "/" in word else "./")
    return InvalidRequest(
        f"`{word}` is neither a Python script nor a notebook", fix=f"As a command: gangline submit -- {shell}{word}"
    )


def _with_notes(entry: Entry, rest: Sequence[str], flags: Mapping[str, bool]) -> Entry:
    """Say which options of Gangline stand behind the script and so go to it; behind `--` none is meant for us."""
    if "--" in rest:
        return entry
    ours = [word for word in entry.args if word.startswith("--") and word.partition("=")[0] in flags]
    if not ours:
        return entry
    harmless = next((word for word in ours if word in _NO_RUN), None)
    if harmless:
        raise InvalidRequest(
            f"`{harmless}` stands after `{entry.entry}`, so that it would go to the script and a run would start",
            fix=f"For Gangline: gangline submit {harmless} {entry.entry}\n"
            f"For the script: gangline submit {entry.entry} -- {harmless}",
        )
    note = (
        f"note: {', '.join(ours)} after {entry.entry} {'goes' if len(ours) == 1 else 'go'} to the script; "
        f"options of gangline stand before it"
    )
    return Entry(kind=entry.kind, entry=entry.entry, args=entry.args, python=entry.python, notes=(*entry.notes, note))


def _last_option(options: Sequence[str]) -> str:
    return next((word.partition("=")[0] for word in reversed(options) if word.startswith("-")), "")


def _nearest_file(word: str, folder: Path) -> str:
    """The file that was probably meant: nearest by name in that folder, else anywhere below."""
    here = folder / Path(word).parent
    base = Path(word).name
    siblings = [entry.name for entry in _scan(here) if _is_file(entry.path)]
    if base in siblings:  # it is there, and cannot be run
        siblings = [name for name in siblings if Path(name).suffix in _SUFFIXES]
    same_stem = [name for name in siblings if name in {f"{base}{suffix}" for suffix in _SUFFIXES}]
    close = same_stem or get_close_matches(base, siblings, n=1, cutoff=0.6)
    if close:
        return f"Did you mean `{(Path(word).parent / close[0]).as_posix()}`?"
    below = {path.name: path for path in _walk(folder)}
    close = get_close_matches(base, below, n=1, cutoff=0.75)
    if close:
        return f"Did you mean `{below[close[0]].relative_to(folder).as_posix()}`?"
    if (above := _above(word, folder)) is not None:
        return f"Did you mean `{above}`?"
    scripts = sorted(name for name in siblings if Path(name).suffix in _SUFFIXES)[:8]
    return (
        f"Scripts in that folder: {', '.join(scripts)}."
        if scripts
        else "There is no Python script in that folder; `gangline init` writes one."
    )


def _above(word: str, folder: Path) -> str | None:
    """The same file in a parent folder of the project, as it is named from here."""
    root = find_root(folder)
    above = [parent for parent in folder.parents if parent.is_relative_to(root) and _is_file(parent / word)]
    return os.path.relpath(above[0] / word, folder) if above and not Path(word).is_absolute() else None


def _walk(folder: Path) -> Iterator[Path]:
    """Scripts and notebooks below a folder, as far as a few thousand entries reach."""
    waiting, seen = [folder], 0
    while waiting:
        for entry in _scan(waiting.pop()):
            seen += 1
            if seen > _MOST_FILES_SEEN:
                return
            if entry.is_dir(follow_symlinks=False):
                if not entry.name.startswith(".") and entry.name not in _SKIPPED_FOLDERS:
                    waiting.append(Path(entry.path))
            elif Path(entry.name).suffix in _SUFFIXES:
                yield Path(entry.path)


def _scan(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _is_file(path: str | Path) -> bool:
    """Whether a file is there; no for what the system cannot look up: links in a circle, names that are too long."""
    return os.path.isfile(path)  # noqa: PTH113 - Path.is_file() raises for those


def _is_dir(path: Path) -> bool:
    """The same, for a folder."""
    return os.path.isdir(path)  # noqa: PTH112 - as above
