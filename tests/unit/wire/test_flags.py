from __future__ import annotations

from typing import Any

import pytest

from gangline.domain.errors import SpecInvalid
from gangline.wire.flags import apply_flags, defaults_from_project, spec_flags
from gangline.wire.spec import merge_layers, spec_from_mapping


def test_the_flags_people_know_are_there():
    names = {name for flag in spec_flags() for name in flag.names}
    assert {"--num-nodes", "--nnodes", "--nproc-per-node", "--run-name", "--venv", "--unbuffered/--buffered"} <= names


def test_flags_say_what_they_take():
    flags = {flag.path: flag for flag in spec_flags()}
    assert (flags["resources.memory_bytes"].unit, flags["resources.memory_bytes"].metavar) == ("bytes", "SIZE")
    assert flags["environment.env"].multiple
    assert flags["environment.unbuffered"].is_bool
    assert "ddp" in flags["strategy"].choices
    assert all(flag.help for flag in flags.values())


def test_texts_are_read_by_kind_and_unit():
    values = {
        "resources.nodes": "2",
        "resources.memory_bytes": "1.5GB",
        "stop.time_limit_s": "1h30m",
        "environment.env": ("A=b=c", "EMPTY=", "HERE", "_x9= '\"$HOME\n`=\t\\"),
        "environment.unbuffered": False,
        "labels": ("team=nlp",),
        "outputs": ("a", "b"),
        "name": None,
        "environment.secrets": (),
        "entry": "train.py",
        "args": ["--x"],
    }
    assert apply_flags({}, values, environ={"HERE": "shell"}) == {
        "resources": {"nodes": 2, "min_nodes": None, "memory_bytes": 1_500_000_000},
        "stop": {"time_limit_s": 5400.0},
        "environment": {
            "env": {"A": "b=c", "EMPTY": "", "HERE": "shell", "_x9": " '\"$HOME\n`=\t\\"},
            "unbuffered": False,
        },
        "labels": {"team": "nlp"},
        "outputs": ["a", "b"],
        "entry": "train.py",
        "args": ["--x"],
    }


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"resources.nodes": "two"}, "`--nodes` is `two`. It takes a whole number above 0"),
        ({"resources.nodes": "0"}, "above 0"),
        ({"resources.memory_bytes": "lots"}, "`--memory` is `lots`"),
        ({"stop.time_limit_s": "soon"}, "`--time-limit` is `soon`"),
        ({"strategy": "dpp"}, "Did you mean `ddp`?"),
        ({"environment.env": ("NOT_SET",)}, "this shell does not have"),
        ({"environment.env": ("=x",)}, "`--env` names a variable without a name"),
        ({"environment.env": ("A B=1",)}, "`--env` names the variable `A B`. A name is made of letters, digits and"),
        ({"environment.env": ("1X=2",)}, "does not begin with a digit"),
        ({"environment.env": ("A-B",)}, "names the variable `A-B`"),
        ({"environment.env": ("A\nB=1",)}, "the variable `A�B`"),
        ({"environment.env": ("É=1",)}, "letters, digits and underscores"),
        ({"labels": ("=x",)}, "It takes K=V"),
        ({"environment.env": ("RANK=1",)}, "its own value"),
        ({"labels": ("team",)}, "It takes K=V"),
        ({"name": "  "}, "is empty"),
    ],
)
def test_a_wrong_value_names_its_option(values, says):
    with pytest.raises(SpecInvalid) as raised:
        apply_flags({}, values, environ={})
    assert says in str(raised.value)


def test_flags_win_over_the_file_and_the_file_over_the_project(tmp_path):
    (tmp_path / "gangline.yaml").write_text("script: a.py\npool: p\nresources: {nodes: 2, procs_per_node: 2}\n")
    file = {"resources": {"nodes": 3}, "priority": 1}
    merged = apply_flags(merge_layers(defaults_from_project(tmp_path), file), {"priority": "5"})
    spec = spec_from_mapping(merged)
    assert (spec.pool, spec.resources.nodes, spec.resources.procs_per_node, spec.priority) == ("p", 3, 2, 5)


def test_a_project_without_defaults_has_none(tmp_path):
    assert defaults_from_project(tmp_path) == {}


@pytest.mark.parametrize("text", ["", "# the project's root\n"])
def test_a_file_that_only_marks_the_root_sets_nothing(tmp_path, text):
    (tmp_path / "gangline.yaml").write_text(text)
    assert defaults_from_project(tmp_path) == {}


@pytest.mark.parametrize(
    ("below", "given", "sizes"),
    [
        ({}, {"resources.nodes": "2:4"}, (2, 4)),
        ({}, {"resources.nodes": "4", "resources.min_nodes": "3"}, (3, 4)),
        ({"resources": {"nodes": 4, "min_nodes": 2}}, {"resources.nodes": "3"}, (None, 3)),
        ({"resources": {"nodes": 4}}, {"resources.min_nodes": "2"}, (2, 4)),
    ],
)
def test_a_gang_may_have_a_smallest_size(
    below: dict[str, Any], given: dict[str, str], sizes: tuple[int | None, int]
) -> None:
    resources = apply_flags(below, given)["resources"]
    assert (resources.get("min_nodes"), resources["nodes"]) == sizes


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"resources.nodes": "2:4", "resources.min_nodes": "2"}, "Keep one of them"),
        ({"resources.nodes": ":4"}, "`--nodes` is `:4`. It takes a whole number"),
        ({"resources.nodes": "2:"}, "`--nodes` is `2:`. It takes a whole number"),
        ({"resources.nodes": "0:2"}, "above 0"),
        ({"resources.nodes": "1:2:3"}, "whole number"),
    ],
)
def test_a_wrong_range_of_sizes_is_named(given: dict[str, str], told: str) -> None:
    with pytest.raises(SpecInvalid, match=told):
        apply_flags({}, given)


def test_all_that_is_wrong_with_the_options_is_said_at_once():
    values = {"resources.nodes": "some", "resources.gpus_per_node": "2", "strategy": "dpd", "stop.time_limit_s": "soon"}
    with pytest.raises(SpecInvalid) as caught:
        apply_flags({}, values)
    assert caught.value.what == "The command line has 3 faults"
    assert [fault.what.split()[0] for fault in caught.value.faults] == ["`--strategy`", "`--time-limit`", "`--nodes`"]
