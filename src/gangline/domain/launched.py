"""What a command runs behind its first word: the script of `bash x.sh`, `torchrun x.py`, `sh -c "python x.py"`.

Pure; standard library only. It reads only what it is sure to understand, and says where it is not.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile, zip_longest

from gangline.domain.spec import EntryKind, RunSpec

__all__ = ["Launched", "find_launched", "render_instead", "words_of"]

_SUFFIXES = {"python": (".py",), "shell": (".sh", ".bash")}
_PYTHON = re.compile(r"python[0-9.]*")
_SHELLS = frozenset({"bash", "sh", "dash", "zsh", "ksh"})
_WRAPPERS = frozenset(
    "env exec time nice nohup timeout stdbuf numactl taskset ionice setsid command chrt catchsegv".split()  # noqa: SIM905
)
"""Programs that start what stands behind them, once."""
_RUNNERS = frozenset({"uv", "poetry", "pipenv", "pdm", "hatch", "conda", "mamba", "micromamba"})
"""Programs that do so behind the word `run`."""
_SPREADERS = frozenset({"mpirun", "mpiexec", "horovodrun", "srun"})
"""Programs that start what stands behind them several times."""
_LAUNCHERS = frozenset({"torchrun", "accelerate launch", "deepspeed"})
"""Programs that start a Python script several times."""
_MODULES: Mapping[str, str] = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launch": "torchrun",
    "accelerate.commands.launch": "accelerate launch",
    "deepspeed.launcher.runner": "deepspeed",
}
_SWITCHES = frozenset(
    """
    standalone no_python run_path use_env no_local_rank multi_gpu cpu mps use_deepspeed use_fsdp use_megatron_lm tpu
    debug quiet enable_cpu_affinity dynamo_use_dynamic dynamo_use_fullgraph no_ssh no_ssh_check force_multi save_pid
    module q m same_network
    """.split()  # noqa: SIM905
)
"""Options of `_LAUNCHERS` that take no value."""
_PER_NODE = frozenset({"nproc_per_node", "num_gpus"})
_IN_ALL = frozenset({"num_processes", "np", "n", "ntasks"})
_NODES = frozenset({"nnodes", "num_nodes", "num_machines", "N", "nodes"})
_MOVES = re.compile(r"-C|-D|-wdir|--(chdir|wdir|directory|project|workdir|working-dir|cwd)(=.*)?")
"""Options after which a relative path starts from elsewhere."""
_UNREADABLE = re.compile(r"<<|`|\$\(|\beval\b")
_HARMLESS = frozenset({"set", "export", "ulimit", "echo", "true", ":", "sleep", "date", "hostname", "unset", "umask"})
"""Words of a shell that make no file."""
_KEYWORDS = frozenset({"if", "then", "elif", "else", "while", "until", "do", "!", "{"})
_ASSIGNMENT = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=.*", re.DOTALL)
_OPERATOR = re.compile(r"[();<>|&\n]+")
_DEEPEST = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Launched:
    """A script that a command runs."""

    program: str
    """What runs it, as people call it: `bash`, `torchrun`, `accelerate launch`."""
    script: str
    """As it was written."""
    args: tuple[str, ...] = ()
    sure: bool = True
    """The command begins with it; False: something before it may make the file, or it may be a value of an option."""
    spreads: bool = False
    """The program starts several processes of it by itself."""
    procs_per_node: int | None = None
    """How many on each node, where that is written."""
    nodes: int | None = None


def words_of(spec: RunSpec) -> list[str]:
    """The words of a spec in which a launched script can stand; [] for one whose entry is the script."""
    if spec.entry_kind is EntryKind.COMMAND:
        return [spec.entry, *spec.args]
    return ["python", "-m", spec.entry, *spec.args] if spec.entry_kind is EntryKind.MODULE else []


def find_launched(words: Sequence[str]) -> list[Launched]:
    """Scripts that a command runs, in order; none where that is not clear.

    Args:
        words: the program and its arguments.
    """
    return list(_found(list(words), _DEEPEST))


def render_instead(found: Launched, options: Sequence[str] = ()) -> str:
    """The command line with which Gangline itself starts what a launcher would.

    Args:
        options: of `gangline submit`, given already.
    """
    words = ["gangline", "submit", *options]
    if (found.nodes or 1) > 1 and "--nodes" not in words:
        words += ["--nodes", str(found.nodes)]
    if found.procs_per_node and "--procs-per-node" not in words:
        words += ["--procs-per-node", str(found.procs_per_node)]
    strategy = {"accelerate launch": "accelerate", "deepspeed": "deepspeed"}.get(found.program)
    if strategy and "--strategy" not in words:
        words += ["--strategy", strategy]
    shell = [] if found.script.endswith(".py") else ["--", "bash"]
    return shlex.join([*words, *shell, found.script, *found.args])


def _found(words: list[str], depth: int) -> Iterator[Launched]:
    if not words or depth == 0:
        return
    name, rest = posixpath.basename(words[0]), words[1:]
    if name == "accelerate":
        name, rest = (f"accelerate {rest[0]}", rest[1:]) if rest else (name, rest)
    if name in _WRAPPERS or name in _SPREADERS or (name in _RUNNERS and "run" in rest):
        yield from _behind(name, rest, depth)
    elif _PYTHON.fullmatch(name):
        yield from _of_python(name, rest, depth)
    elif name in _SHELLS:
        yield from _of_shell(name, rest, depth)
    elif name in _LAUNCHERS:
        yield from _of_launcher(name, rest, depth)


def _behind(name: str, words: list[str], depth: int) -> Iterator[Launched]:
    """What stands behind `timeout 10`, `mpirun -np 4`: from the first word on that is a known program."""
    start = next((at for at, word in enumerate(words) if _is_program(word)), len(words))
    if any(_MOVES.fullmatch(word) for word in words[:start]):
        return
    inner = _found(words[start:], depth - 1)
    if name not in _SPREADERS:
        yield from inner
        return
    nodes, procs = _numbers(words[:start])
    for found in inner:
        yield replace(found, program=name, spreads=True, procs_per_node=procs, nodes=nodes)


def _is_program(word: str) -> bool:
    name = posixpath.basename(word)
    known = _WRAPPERS | _RUNNERS | _SHELLS | _LAUNCHERS | _SPREADERS | {"accelerate"}
    return name in known or _PYTHON.fullmatch(name) is not None


def _of_python(name: str, words: list[str], depth: int) -> Iterator[Launched]:
    at = 0
    while at < len(words) and words[at].startswith("-"):
        if re.fullmatch(r"-[bBdEiIOPqRsSuvx]*m", words[at]):
            launcher = _MODULES.get(words[at + 1] if at + 1 < len(words) else "")
            yield from _of_launcher(launcher, words[at + 2 :], depth) if launcher else ()
            return
        if words[at] in {"-W", "-X", "--check-hash-based-pycs"}:
            at += 2
        elif re.fullmatch(r"-([bBdEiIOPqRsSuvx]+|[WX].+)", words[at]):
            at += 1
        else:  # -c and -, and what we do not know
            return
    if at < len(words) and words[at].endswith(_SUFFIXES["python"]):
        yield Launched(program=name, script=words[at], args=tuple(words[at + 1 :]))


def _of_shell(name: str, words: list[str], depth: int) -> Iterator[Launched]:
    at, is_text = 0, False
    while at < len(words) and words[at][:1] in {"-", "+"}:
        if words[at] in {"-", "--"} or "s" in words[at] and not words[at].startswith("--"):  # noqa: RUF021
            return
        is_text = is_text or re.fullmatch(r"-[a-z]*c[a-z]*", words[at]) is not None
        takes_value = words[at] in {"--rcfile", "--init-file"} or re.fullmatch(r"[-+][a-zA-Z]*[oO]", words[at])
        at += 2 if takes_value else 1
    if at >= len(words):
        return
    if is_text:
        yield from _of_text(words[at], depth)
    elif words[at].endswith(_SUFFIXES["shell"]):
        yield Launched(program=name, script=words[at], args=tuple(words[at + 1 :]))


def _of_text(text: str, depth: int) -> Iterator[Launched]:
    """Simple commands of a line for a shell; up to the first that goes to another folder."""
    if _UNREADABLE.search(text):
        return
    sure = True
    for command, ended_by in _commands(text):
        while command and (command[0] in _KEYWORDS or _ASSIGNMENT.fullmatch(command[0])):
            sure = command.pop(0) not in _KEYWORDS and sure
        if command[:1] in (["cd"], ["pushd"]):
            return
        for found in _found(command, depth - 1):
            if not re.search(r"[$*?\[{~]", found.script):
                yield found if sure else replace(found, sure=False)
        harmless = not command or command[0] in _HARMLESS
        sure = sure and (harmless or ended_by == "|") and ended_by not in {"&&>", ">", ">>", "||"}


def _commands(text: str) -> Iterator[tuple[list[str], str]]:
    """(the words of a command, the operator that ends it)."""
    lexer = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    lexer.whitespace = " \t\r"
    command: list[str] = []
    try:
        for token in lexer:
            if _OPERATOR.fullmatch(token):
                yield command, token.strip("\n") or ";"
                command = []
            else:
                command.append(token)
    except ValueError:  # a quote that nobody closes; the shell will say so
        return
    yield command, ";"


def _of_launcher(name: str, words: list[str], depth: int) -> Iterator[Launched]:
    """The script of `torchrun --nproc-per-node 4 x.py`: the first word that is neither an option nor a value of one."""
    at, unsure, seen = 0, None, set()
    while at < len(words) and words[at].startswith("-"):
        option = _option(words[at])
        seen.add(option)
        takes_value = "=" not in words[at] and option not in _SWITCHES
        if takes_value and at + 1 < len(words) and words[at + 1].endswith(_SUFFIXES["python"]) and unsure is None:
            unsure = at + 1
        at += 2 if takes_value else 1
    nodes, procs = _numbers(words[:at])
    if "no_python" in seen:
        inner = list(_found(words[at:], depth - 1))
    elif seen & {"m", "module"}:
        return
    else:
        where = at if unsure is None else unsure
        ends_well = where < len(words) and words[where].endswith(_SUFFIXES["python"])
        script = words[where] if ends_well else ""
        args = tuple(words[where + 1 :])
        inner = [Launched(program=name, script=script, args=args, sure=unsure is None)] if script else []
    for found in inner:
        yield replace(found, program=name, spreads=True, procs_per_node=procs, nodes=nodes)


def _option(word: str) -> str:
    return word.lstrip("-").partition("=")[0].replace("-", "_")


def _numbers(words: Sequence[str]) -> tuple[int | None, int | None]:
    """(nodes, processes on each) as options say."""
    nodes = _value(words, _NODES)
    procs = _value(words, _PER_NODE)
    every = _value(words, _IN_ALL)
    if procs is None and every is not None:
        procs = max(1, every // (nodes or 1))
    return nodes, procs


def _value(words: Sequence[str], names: frozenset[str]) -> int | None:
    """The whole number that one of some options has."""
    for word, following in zip_longest(words, words[1:], fillvalue=""):
        if word.startswith("-") and _option(word) in names:
            text = word.partition("=")[2] or following
            digits = "".join(takewhile(str.isdigit, text))
            return int(digits[:6]) if digits == text and digits else None
    return None
