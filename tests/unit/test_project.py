"""The limits of the house style that no linter checks."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "gangline"
MAX_FILE_LINES = 600
MAX_FUNCTION_LINES = 60
MAX_POSITIONAL = 6
BAD_NAMES = {"utils", "util", "helpers", "helper", "manager", "common", "misc"}
CHECKED = ("src", "tests", "benchmarks", "examples", "tools")


def python_files(*folders: str) -> list[Path]:
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    return [path for path in found if "migrations" not in path.parts]


def functions(path: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


def test_no_file_is_longer_than_the_limit():
    sizes = {
        path.relative_to(ROOT): len(path.read_text(encoding="utf-8").splitlines()) for path in python_files(*CHECKED)
    }
    assert {path: lines for path, lines in sizes.items() if lines > MAX_FILE_LINES} == {}


def test_no_function_is_longer_than_the_limit():
    too_long = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name} has {node.end_lineno - node.lineno + 1} lines"
        for path in python_files(*CHECKED)
        for node in functions(path)
        if node.end_lineno - node.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert too_long == []


def test_most_functions_are_short():
    lengths = sorted(node.end_lineno - node.lineno + 1 for path in python_files("src") for node in functions(path))
    assert lengths[len(lengths) // 2] <= 10
    assert lengths[len(lengths) * 9 // 10] <= 30


def test_functions_have_few_parameters():
    too_many = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
        for path in python_files("src")
        for node in functions(path)
        if len(node.args.posonlyargs) + len(node.args.args) > MAX_POSITIONAL + 1  # one more for self
    ]
    assert too_many == []


def test_no_module_has_an_empty_name():
    assert [path for path in python_files("src") if BAD_NAMES & {path.stem, path.parent.name}] == []


def test_every_module_says_what_it_is():
    bare = [
        path
        for path in python_files("src")
        if path.read_text().strip() and not ast.get_docstring(ast.parse(path.read_text()))
    ]
    assert bare == []


@pytest.mark.parametrize("mark", ["TO" + "DO", "FIX" + "ME", "X" * 3])
def test_nothing_is_left_for_later(mark: str):
    word = re.compile(rf"\b{mark}\b")
    assert [path for path in python_files(*CHECKED) if word.search(path.read_text(encoding="utf-8"))] == []


def test_import_of_training_code_loads_no_third_party():
    """`import gangline` is what every rank pays for: the standard library alone, and no platform behind it."""
    probe = "import sys, gangline; print('\\n'.join(sys.modules))"
    env = {key: value for key, value in os.environ.items() if not key.startswith("COV")}
    done = subprocess.run([sys.executable, "-c", probe], env=env, text=True, capture_output=True, check=True)
    # What site-packages starts by itself (editable finders and the like) is there without us too.
    before = subprocess.run(
        [sys.executable, "-c", "import sys; print('\\n'.join(sys.modules))"],
        env=env,
        text=True,
        capture_output=True,
        check=True,
    )
    loaded = {name.partition(".")[0] for name in set(done.stdout.split()) - set(before.stdout.split())}
    assert loaded <= set(sys.stdlib_module_names) | {"gangline"}


def test_no_file_names_this_checkout():
    """What is written down works elsewhere too."""
    pages = [ROOT / "Makefile", ROOT / "README.md", ROOT / "pyproject.toml", *sorted((ROOT / "docs").rglob("*.md"))]
    files = [*python_files(*CHECKED), *pages]
    assert [path for path in files if str(ROOT) in path.read_text(encoding="utf-8")] == []
