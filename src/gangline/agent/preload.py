"""What the warm helper imports: found by reading the training code, never by running it.

The entry file and the local modules that it reaches are parsed, within bounds of number and size. Torch is imported
only if one of them names it. Pure but for reading files; standard library only.
"""

from __future__ import annotations

import ast
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

__all__ = ["START_PREFIXES", "Scan", "decide_preload", "is_read_at_start", "path_start", "scan_entry"]

_MOST_FILES = 300
_LARGEST_FILE_BYTES = 1_000_000
_TORCH_USERS = frozenset(
    {
        "accelerate",
        "deepspeed",
        "diffusers",
        "fairscale",
        "lightning",
        "lightning_fabric",
        "peft",
        "pytorch_lightning",
        "sentence_transformers",
        "timm",
        "torch",
        "torchaudio",
        "torchdata",
        "torchmetrics",
        "torchtitan",
        "torchvision",
        "trl",
    }
)
"""Packages that import torch whenever they are imported."""
_NAMES_OF_TRAINING = frozenset(
    {
        "Accelerator",
        "DDP",
        "DistributedDataParallel",
        "FSDP",
        "FullyShardedDataParallel",
        "LightningModule",
        "Trainer",
        "ZeroRedundancyOptimizer",
        "compile",
        "fully_shard",
        "optim",
    }
)
_SLOW_PARTS: dict[str, frozenset[str]] = {
    # Building an optimizer or a DistributedDataParallel imports torch._dynamo, which takes as long as torch itself.
    "torch._dynamo": _NAMES_OF_TRAINING,
}
"""Parts of torch that are imported late, by names in the code that lead to them."""
START_PREFIXES = (
    *("PYTHON", "LD_", "GLIBC_", "MALLOC_", "LC_", "LANG", "TZ"),
    *("OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "BLIS_", "NPY_", "NUMPY_"),
    *("ATEN_", "DNNL_", "ONEDNN_", "TORCH_", "TORCHINDUCTOR_", "TORCHDYNAMO_", "PYTORCH_"),
)
"""Variables that an interpreter, a loader or a library reads once, when it starts or is imported."""
_LATE = (
    *("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"),
    *("TORCH_NCCL_", "TORCH_DISTRIBUTED_", "TORCH_HOME", "TORCH_SHOW_CPP_STACKTRACES", "TORCH_CPP_LOG_LEVEL"),
    "TORCHELASTIC_",
)
"""Of those, what torch reads when it is used."""


@dataclass(slots=True)
class Scan:
    """What the code of a run names."""

    imports: set[str] = field(default_factory=set)
    """Modules, with dots, that any scanned file imports."""
    names: set[str] = field(default_factory=set)
    """Names and attributes that occur in files which use torch."""
    early_variables: set[str] = field(default_factory=set)
    """Environment variables that the code sets before it imports torch, and that are read when torch is imported."""
    early_defaults: set[str] = field(default_factory=set)
    """The same by `setdefault`, which matters only where they are not set already."""

    @property
    def uses_torch(self) -> bool:
        return any(name.partition(".")[0] in _TORCH_USERS for name in self.imports)


def is_read_at_start(variable: str) -> bool:
    """Whether changing this variable after the imports would come too late."""
    return variable.startswith(START_PREFIXES) and not variable.startswith(_LATE)


def decide_preload(scan: Scan, extra: Sequence[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(what has to be imported, what else is imported if it is there); the first is empty if nothing is heavy. Pure.

    Args:
        extra: modules that the spec lists.
    """
    if not scan.uses_torch:
        return tuple(extra), ()
    words = scan.names | {part for name in scan.imports for part in name.split(".")}
    parts = tuple(module for module, names in _SLOW_PARTS.items() if names & words)
    return ("torch", *extra), ("torch.distributed", "numpy.random", *parts)


def path_start(entry_kind: str, entry: str, cwd: str) -> str:
    """What the interpreter puts in front of `sys.path`: a script's folder, links followed; for -m the current one."""
    if entry_kind == "module":
        return os.path.realpath(cwd)
    return os.path.dirname(os.path.realpath(os.path.join(cwd, entry)))


def scan_entry(entry_kind: str, entry: str, cwd: str, *, search: Iterable[str] = ()) -> Scan:
    """Read the entry file and, transitively, what it imports from its own folder, but for what cannot be parsed.

    Args:
        search: further folders in which local modules are looked for (entries of PYTHONPATH).
    """
    folders = [path_start(entry_kind, entry, cwd), *(os.path.join(cwd, folder) for folder in search if folder)]
    waiting = list(_locate(entry, folders)) if entry_kind == "module" else [os.path.join(cwd, entry)]
    if entry_kind == "module":
        waiting += _locate(f"{entry}.__main__", folders)
    scan, seen = Scan(), set(waiting)
    while waiting and len(seen) <= _MOST_FILES:
        path = waiting.pop()
        tree = _parse(path)
        if tree is None:
            continue
        found = set(_imports(tree, _package_of(path, folders)))
        _take(scan, tree, found)
        new = {file for name in found for file in _locate(name, folders)} - seen
        seen |= new
        waiting.extend(sorted(new))
    return scan


def _take(scan: Scan, tree: ast.Module, imports: set[str]) -> None:
    scan.imports |= imports
    if any(name.partition(".")[0] in _TORCH_USERS | {"numpy"} for name in imports):
        scan.names |= {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
        scan.names |= {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    early = [(name, default) for name, default in _early_variables(tree) if is_read_at_start(name)]
    scan.early_variables |= {name for name, default in early if not default}
    scan.early_defaults |= {name for name, default in early if default}


def _parse(path: str) -> ast.Module | None:
    try:
        with open(path, "rb") as file:
            text = file.read(_LARGEST_FILE_BYTES + 1)
        return ast.parse(text) if len(text) <= _LARGEST_FILE_BYTES else None
    except (OSError, SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Modules that are imported anywhere in a file; `from a import b` may mean the module a.b, so both are named."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = _base(node, package)
            if base:
                yield base
                yield from (f"{base}.{alias.name}" for alias in node.names if alias.name != "*")


def _base(node: ast.ImportFrom, package: str) -> str:
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    kept = parts[: len(parts) - node.level + 1]
    return ".".join(part for part in (*kept, node.module) if part)


def _package_of(path: str, folders: Sequence[str]) -> str:
    """`a.b` for <folder>/a/b/c.py."""
    for folder in folders:
        if path.startswith(folder + os.sep):
            return os.path.dirname(os.path.relpath(path, folder)).replace(os.sep, ".")
    return ""


def _locate(name: str, folders: Sequence[str]) -> Iterator[str]:
    """Files that importing a module runs: those of its packages, and its own."""
    parts = name.split(".")
    for folder in folders:
        for count in range(1, len(parts) + 1):
            base = os.path.join(folder, *parts[:count])
            yield from (file for file in (f"{base}.py", os.path.join(base, "__init__.py")) if os.path.isfile(file))


def _early_variables(tree: ast.Module) -> Iterator[tuple[str, bool]]:
    """Variables that top-level statements set before the file's first import of torch, and whether by `setdefault`."""
    for statement in tree.body:
        if isinstance(statement, ast.Import | ast.ImportFrom) and _imports_torch(statement):
            return
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            continue
        for node in ast.walk(statement):
            yield from ((name, False) for name in _variables_assigned(node))
            yield from _variables_called(node)


def _imports_torch(statement: ast.Import | ast.ImportFrom) -> bool:
    names = (
        [statement.module or ""] if isinstance(statement, ast.ImportFrom) else [alias.name for alias in statement.names]
    )
    return any(name.partition(".")[0] in _TORCH_USERS for name in names)


def _variables_assigned(node: ast.AST) -> Iterator[str]:
    """`os.environ["K"] = …`, `del os.environ["K"]`."""
    if not isinstance(node, ast.Assign | ast.AugAssign | ast.Delete):
        return
    for target in [node.target] if isinstance(node, ast.AugAssign) else node.targets:
        if isinstance(target, ast.Subscript) and _is_environ(target.value):
            yield from _constants([target.slice])


def _variables_called(node: ast.AST) -> Iterator[tuple[str, bool]]:
    """`os.environ.setdefault("K", …)`, `os.environ.update(K=…)`, `os.putenv("K", …)` and their like."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    method = node.func.attr
    if method in {"putenv", "unsetenv"} or (method in {"setdefault", "pop", "update"} and _is_environ(node.func.value)):
        default = method == "setdefault"
        yield from ((name, default) for name in _constants(node.args[:1]))
        yield from ((keyword.arg, default) for keyword in node.keywords if keyword.arg)
        yield from ((name, default) for one in node.args if isinstance(one, ast.Dict) for name in _constants(one.keys))


def _is_environ(node: ast.AST) -> bool:
    return (isinstance(node, ast.Attribute) and node.attr == "environ") or (
        isinstance(node, ast.Name) and node.id == "environ"
    )


def _constants(nodes: Iterable[ast.AST | None]) -> Iterator[str]:
    return (node.value for node in nodes if isinstance(node, ast.Constant) and isinstance(node.value, str))
