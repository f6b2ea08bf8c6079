"""Whatever a user can meet by name has a place in the documentation."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

import click
import pytest

from gangline.agent.result import EXIT_CODES
from gangline.cli.main import cli
from gangline.control.facts import EXIT_CODES as OF_THE_SERVER
from gangline.domain.errors import GanglineError
from gangline.domain.phase import Phase, Reason
from gangline.domain.spec import (
    CheckpointPolicy,
    Environment,
    LogPolicy,
    Resources,
    RestartPolicy,
    RunSpec,
    StopPolicy,
    Strategy,
)

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
REFERENCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((DOCS / "reference").rglob("*.md")))
EVERYTHING = "\n".join(path.read_text(encoding="utf-8") for path in sorted(DOCS.rglob("*.md")))
SOURCE = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src").rglob("*.py")))


def error_classes(cls: type[GanglineError] = GanglineError) -> list[type[GanglineError]]:
    return [cls, *(found for sub in cls.__subclasses__() for found in error_classes(sub))]


@pytest.mark.parametrize("cls", error_classes(), ids=lambda cls: cls.code)
def test_error_codes_are_documented_with_their_exit_codes(cls: type[GanglineError]):
    row = re.search(rf"^\|.*`{cls.code}`.*$", REFERENCE, re.MULTILINE)
    assert row, f"no table of docs/reference/ has a row for `{cls.code}`"
    numbers = {int(number) for number in re.findall(r"\b\d+\b", row.group())}
    assert {cls.exit_code, cls.http_status} <= numbers


@pytest.mark.parametrize("word", [*Phase, *Reason], ids=str)
def test_phases_and_reasons_are_documented(word: str):
    assert f"`{word}`" in REFERENCE


@pytest.mark.parametrize("name", sorted(set(re.findall(r"\bGANGLINE_[A-Z]+(?:_[A-Z]+)*\b", SOURCE))))
def test_variables_are_documented(name: str):
    assert re.search(rf"\b{name}\b|\bGANGLINE_\S*/{name.removeprefix('GANGLINE_')}\b", EVERYTHING)


@pytest.mark.parametrize("name", list(cli.entries))
def test_commands_are_documented(name: str):
    context = click.Context(cli)
    command = cli.get_command(context, name)
    assert command.help
    assert f"gangline {name}" in EVERYTHING
    if isinstance(command, click.Group):
        inner = click.Context(command, parent=context)
        assert [sub for sub in command.list_commands(inner) if f"gangline {name} {sub}" not in EVERYTHING] == []


SPEC_PARTS = (RunSpec, Resources, Environment, CheckpointPolicy, RestartPolicy, StopPolicy, LogPolicy)
FLAGS = [flag for part in SPEC_PARTS for field in fields(part) for flag in field.metadata.get("flags", ())]


@pytest.mark.parametrize("flag", FLAGS)
def test_flags_of_the_spec_are_documented(flag: str):
    assert flag.partition("/")[0] in REFERENCE


@pytest.mark.parametrize("strategy", Strategy, ids=str)
def test_strategies_are_documented(strategy: Strategy):
    assert f"`{strategy}`" in REFERENCE


ARCHITECTURE = (DOCS / "contributing" / "architecture.md").read_text(encoding="utf-8")
AGENT = "\n".join(path.read_text(encoding="utf-8") for path in sorted((ROOT / "src/gangline/agent").rglob("*.py")))


def test_event_kinds_are_documented():
    written = set(re.findall(r"journal\.write\(\s*\"([a-z_]+)\"", AGENT))
    assert written, "the pattern of this test finds no event any more"
    assert {kind for kind in written if f"`{kind}`" not in ARCHITECTURE} == set()


@pytest.mark.parametrize("index", sorted(DOCS.glob("*/index.md")), ids=lambda path: path.parent.name)
def test_the_index_of_a_chapter_leads_to_each_of_its_pages(index: Path):
    linked = set(re.findall(r"\]\(([\w.-]+\.md)", index.read_text(encoding="utf-8")))
    assert {page.name for page in index.parent.glob("*.md")} - {"index.md"} <= linked


def test_codes_of_runs_without_a_code_of_a_rank_are_documented():
    text = (DOCS / "reference/exit-codes.md").read_text(encoding="utf-8")
    paragraph = next(part for part in text.split("\n\n") if part.startswith("Where no rank has left a code"))
    for reason, code in [*EXIT_CODES.items(), *OF_THE_SERVER.items()]:
        if reason is not Reason.STOPPED_BY_USER:
            words = rf"\b{code} for\s+(everything else, such as )?`{reason}`"
            assert re.search(words, paragraph), f"{code} for {reason}"


def test_no_table_of_a_reference_page_has_the_same_row_twice():
    for page in sorted((DOCS / "reference").glob("*.md")):
        for section in page.read_text(encoding="utf-8").split("\n#"):
            rows = re.findall(r"^\| (`[a-z_]+`) \|", section, re.MULTILINE)
            assert sorted(set(rows)) == sorted(rows), page.name
