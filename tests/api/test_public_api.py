"""What users may rely on: the names, their types, and what an import costs and brings along."""

from __future__ import annotations

import importlib.metadata
import inspect
import subprocess
import sys

import pytest

import gangline
import gangline.training

NAMES = [
    "Checkpoint",
    "Context",
    "checkpoint",
    "current",
    "latest_checkpoint",
    "log",
    "phase",
    "progress",
    "should_stop",
]
SIGNATURES = {
    "checkpoint": "(step: 'int', *, rank0_only: 'bool' = False) -> 'contextlib.AbstractContextManager[Path]'",
    "current": "() -> 'Context'",
    "latest_checkpoint": "() -> 'Checkpoint | None'",
    "log": "(metrics: 'Mapping[str, SupportsFloat]', *, step: 'int | None' = None) -> 'None'",
    "phase": "(name: 'str', *, limit_s: 'float | None' = None) -> 'Iterator[None]'",
    "progress": "(step: 'int', total: 'int | None' = None) -> 'None'",
    "should_stop": "() -> 'bool'",
}
CONTEXT_FIELDS = [
    "rank",
    "local_rank",
    "world_size",
    "local_world_size",
    "node",
    "num_nodes",
    "attempt",
    "run_id",
    "run_name",
    "run_dir",
    "checkpoint_dir",
    "keep_last",
    "branch_attempt",
    "resume",
    "is_gangline",
]


def loaded_by(code: str) -> set[str]:
    """Modules that a fresh interpreter, without site packages, loads for a piece of code."""
    source = gangline.__file__.rsplit("/gangline/", 1)[0]
    before, after = (
        f"import sys; sys.path.insert(0, {source!r}); seen = set(sys.modules)",
        "print(*(set(sys.modules) - seen))",
    )
    script = f"{before}\n{code}\n{after}"
    done = subprocess.run([sys.executable, "-S", "-c", script], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_the_names_are_these() -> None:
    assert sorted(gangline.__all__) == sorted([*NAMES, "__version__"])
    assert sorted(gangline.training.__all__) == sorted(NAMES)
    assert set(gangline.__all__) <= set(dir(gangline))
    for name in NAMES:
        assert getattr(gangline, name) is getattr(gangline.training, name)
        assert getattr(gangline, name).__doc__


def test_the_signatures_are_these() -> None:
    assert {name: str(inspect.signature(getattr(gangline, name))) for name in SIGNATURES} == SIGNATURES
    assert list(inspect.signature(gangline.Context).parameters) == CONTEXT_FIELDS
    assert list(inspect.signature(gangline.Checkpoint).parameters) == ["step", "path"]


def test_an_unknown_name_is_named() -> None:
    for module in (gangline, gangline.training):
        with pytest.raises(AttributeError, match="lgo"):
            _ = module.lgo


def test_the_version_is_that_of_the_package() -> None:
    assert gangline.__version__ == importlib.metadata.version("gangline")


def test_an_import_loads_next_to_nothing() -> None:
    assert loaded_by("import gangline") == {"gangline", "__future__"}


def test_using_all_of_it_loads_the_standard_library_alone() -> None:
    use_all = "for name in gangline.__all__: getattr(gangline, name)"
    code = f"import gangline\n{use_all}\ngangline.log({{'x': 1}}); gangline.should_stop()"
    roots = {name.partition(".")[0] for name in loaded_by(code)}
    assert roots - {"gangline"} <= set(sys.stdlib_module_names)
