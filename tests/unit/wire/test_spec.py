from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import pytest

from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import EntryKind, Resources, RunSpec, Strategy
from gangline.wire.schema import keys
from gangline.wire.spec import (
    json_schema,
    merge_layers,
    partial_from_yaml,
    spec_from_mapping,
    spec_from_yaml,
    spec_to_mapping,
)
from gangline.wire.yaml_file import read_yaml


def write(tmp_path: Path, text: str | bytes) -> Path:
    path = tmp_path / "run.yaml"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return path


def failure(raw) -> str:
    with pytest.raises(SpecInvalid) as raised:
        spec_from_mapping(raw, source="run.yaml")
    return str(raised.value)


def test_a_whole_file(tmp_path):
    path = write(
        tmp_path,
        """
        name: llama fine-tune
        script: train.py
        args: [--lr, 3e-4, --flag, yes, --n, 1]
        strategy: fsdp
        resources: {nodes: 2, procs_per_node: 4, memory: 16GB}
        environment:
          python: .venv
          env: {PORT: 8080, DEBUG: yes, VERSION: 1.10, OCTAL: 012, EMPTY: "", WHEN: 2024-01-01, T: true}
          unbuffered: false
        checkpoint: {keep_last: 5, resume: required}
        restarts: {max_restarts: 3, backoff: 10s}
        stop: {time_limit: 1:30:00, grace: 90}
        labels: {team: nlp}
        outputs: [model.pt]
        """,
    )
    spec = spec_from_yaml(path)
    assert (spec.name, spec.entry, spec.entry_kind) == ("llama fine-tune", "train.py", EntryKind.SCRIPT)
    assert spec.args == ("--lr", "3e-4", "--flag", "yes", "--n", "1")
    assert spec.resources == Resources(nodes=2, procs_per_node=4, memory_bytes=16_000_000_000)
    assert spec.environment.env == {
        "PORT": "8080",
        "DEBUG": "yes",
        "VERSION": "1.10",
        "OCTAL": "012",
        "EMPTY": "",
        "WHEN": "2024-01-01",
        "T": "true",
    }
    assert spec.environment.unbuffered is False
    assert (spec.stop.time_limit_s, spec.stop.grace_s, spec.restarts.backoff_s) == (5400.0, 90.0, 10.0)
    assert spec.strategy is Strategy.FSDP


@pytest.mark.parametrize(
    ("raw", "kind", "entry", "args"),
    [
        ({"entry": "a.py"}, "script", "a.py", ()),
        ({"entry": "bin/train"}, "script", "bin/train", ()),
        ({"entry": "a.ipynb"}, "notebook", "a.ipynb", ()),
        ({"entry": "run.sh", "entry_kind": "script"}, "script", "run.sh", ()),
        ({"module": "pkg.train", "args": ["x"]}, "module", "pkg.train", ("x",)),
        ({"notebook": "n.ipynb"}, "notebook", "n.ipynb", ()),
        ({"command": ["bash", "a b.sh"], "args": ["c"]}, "command", "bash", ("a b.sh", "c")),
        ({"command": "a | b"}, "command", "bash", ("-eo", "pipefail", "-c", "a | b")),
    ],
)
def test_entries(raw, kind, entry, args):
    spec = spec_from_mapping(raw)
    assert (spec.entry_kind.value, spec.entry, spec.args) == (kind, entry, args)


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({}, "nothing to run"),
        ({"script": ""}, "nothing to run"),
        ({"script": "a.py", "module": "b"}, "`module` (run.yaml) comes on top of `script`"),
        ({"entry": "run.sh"}, "command: [bash, run.sh]"),
        ({"command": []}, "It takes a list of words"),
        ({"command": " "}, "It takes a list of words"),
        ({"command": ["a", 1.5]}, "word 2"),
        ({"script": "a.py", "resorces": {}}, "Did you mean `resources`?"),
        ({"script": "a.py", "resources": {"nods": 2}}, "`resources.nods` (run.yaml) is not a key"),
        ({"script": "a.py", "memory": "1GB"}, "It belongs under `resources:`"),
        ({"script": "a.py", "resources": {"pool": "x"}}, "It belongs to the top level"),
        ({"script": "a.py", "resources": 3}, "It takes keys with values"),
        ({"script": "a.py", "resources": {"nodes": 0}}, "whole number above 0"),
        ({"script": "a.py", "resources": {"nodes": True}}, "whole number above 0"),
        ({"script": "a.py", "resources": {"nodes": 1.5}}, "is `1.5`"),
        ({"script": "a.py", "resources": {"nodes": "two"}}, "is `two`"),
        ({"script": "a.py", "resources": {"nodes": None}}, "is empty"),
        ({"script": "a.py", "resources": {"nodes": 10**20}}, "whole number"),
        ({"script": "a.py", "resources": {"memory": "16"}}, "not a size"),
        ({"script": "a.py", "resources": {"memory": 16}}, "not a size"),
        ({"script": "a.py", "resources": {"memory": "1GB", "memory_bytes": 1}}, "given twice"),
        ({"script": "a.py", "checkpoint": {"keep_last": -1}}, "0 or more"),
        ({"script": "a.py", "checkpoint": {"resume": "always"}}, "auto, never, required"),
        ({"script": "a.py", "strategy": "dpp"}, "Did you mean `ddp`?"),
        ({"script": "a.py", "stop": {"time_limit": "soon"}}, "not a duration"),
        ({"script": "a.py", "stop": {"time_limit": 0}}, "above 0"),
        ({"script": "a.py", "stop": {"grace_s": float("nan")}}, "a number"),
        ({"script": "a.py", "stop": {"grace_s": "90m"}}, "For example: grace: 90m"),
        ({"script": "a.py", "name": ""}, "is empty"),
        ({"script": "a.py", "name": "x" * 201}, "200 are allowed"),
        ({"script": "a.py", "name": "a\nb"}, "control characters"),
        ({"script": "a.py", "args": "text"}, "It takes a list of texts"),
        ({"script": "a.py", "args": "--lr 1e-4"}, "Write args: [--lr, 1e-4]"),
        ({"script": "a.py", "args": "--lr {x: 1}"}, "For example: args: [a, b]"),
        ({"script": "a.py", "args": "x" * 100}, "For example: args: [a, b]"),
        ({"script": "a.py", "args": ["a", None]}, "item 2 is empty"),
        ({"script": "a.py", "args": ["a\0b"]}, "NUL"),
        ({"script": "a.py", "environment": {"env": ["A=1"]}}, "names with values"),
        ({"script": "a.py", "environment": {"env": {"A": True}}}, "in quotes"),
        ({"script": "a.py", "environment": {"env": {"A": 1.1}}}, "in quotes"),
        ({"script": "a.py", "environment": {"env": {"A": {}}}}, "`A` is a table"),
        ({"script": "a.py", "environment": {"env": {"A=B": "1"}}}, "variable `A=B`"),
        ({"script": "a.py", "environment": {"env": {"": "1"}}}, "a variable without a name"),
        ({"script": "a.py", "environment": {"env": {"A B": "1"}}}, "letters, digits and underscores"),
        ({"script": "a.py", "environment": {"env": {"1X": "1"}}}, "does not begin with a digit"),
        ({"script": "a.py", "labels": {"a=b": "1"}}, "ends at the first `=`"),
        ({"script": "a.py", "labels": {" ": "1"}}, "empty name"),
        ({"script": "a.py", "environment": {"env": {"RANK": "1"}}}, "its own value"),
        ({"script": "a.py", "environment": {"env": {"GANGLINE_HOME": "1"}}}, "its own value"),
        ({"script": "a.py", "environment": {"unbuffered": "yes"}}, "true or false"),
        ({"script": "a.py", "labels": {" ": "x"}}, "empty name"),
        ({"script": "a.py", "snapshot": {}}, "`snapshot.digest` is missing"),
        ({"script": "a.py", 3: 4}, "`3` (run.yaml) is not a key"),
        ({"entry": ["a.py"]}, "is a list"),
    ],
)
def test_every_slip_is_named_with_what_is_valid(raw, says):
    assert says in failure(raw)


def test_errors_stay_short_whatever_the_value_is():
    assert len(failure({"script": "a.py", "resources": {"nodes": "x" * 100_000}})) < 300


@pytest.mark.parametrize("value", ["=", "a=b", "'", '"', "$HOME", "a\nb", "`x`", "\\", "\t", "é", "\udcff", "", " "])
def test_values_of_variables_and_arguments_stay_as_they_are(value):
    raw = {"script": "a.py", "args": [value], "environment": {"env": {"A": value}}}
    spec = spec_from_mapping(raw)
    assert (spec.args, spec.environment.env) == ((value,), {"A": value})


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "is empty"),
        ("# only a comment\n", "is empty"),
        ("- a\n", "holds a list"),
        ("train.py\n", "holds one value"),
        (b"script: \xff\n", "line 1 is not UTF-8"),
        ("script: a.py\n\tname: b\n", "line 2 is not YAML. It is indented with a tab"),
        ("script: a.py\nresources:\n\tnodes: 2\n", "indented with a tab"),
        ("script: a.py\nscript: b.py\n", "line 2 names `script` again. It has a value in line 1"),
        ("script: a.py\nresources:\n  nodes: 1\n  nodes: 2\n", "line 4 names `nodes` again"),
        ("script: a.py\n---\nscript: b.py\n", "second document"),
        ("script: !!python/object/apply:os.system [ls]\n", "has the tag"),
        ("script: a.py\nresources:\n  nodes: two\n", "`resources.nodes` (run.yaml, line 3) is `two`"),
        ("script: a.py\nresorces: 1\n", "`resorces` (run.yaml, line 2) is not a key"),
        ("script: [a.py\n", "is not YAML"),
        ("script: a: b\n", "Quote texts"),
        ("? [a, b]\n: c\n", "has a list for a key"),
        ("a: &x {b: *x}\n", "nested without end"),
        ("script: a.py\nsnapshot: {digest: x}\n", "filled in at submit"),
        ("script: a.py\ninherited_env: {A: b}\n", "filled in at submit"),
    ],
)
def test_a_file_with_a_slip_is_one_error_with_its_line(tmp_path, text, says):
    with pytest.raises(SpecInvalid) as raised:
        spec_from_yaml(write(tmp_path, text))
    assert says in str(raised.value)


def test_a_key_that_is_named_twice_hides_no_other_fault(tmp_path):
    text = "script: a.py\nscript: b.py\nresorces: 1\nresources:\n  nodes: two\n  nodes: !x 3\n? [a]\n: b\n"
    with pytest.raises(SpecInvalid) as raised:
        spec_from_yaml(write(tmp_path, text))
    said = [str(fault) for fault in raised.value.faults]
    wanted = ("line 2 names", "line 6 names", "line 7 has a list", "`resorces`", "is `two`")
    assert len(said) == len(wanted), said
    assert all(any(words in one for one in said) for words in wanted), said


def test_tables_in_a_list_may_have_the_same_keys(tmp_path):
    path = tmp_path / "list.yaml"
    path.write_text("a:\n- b: 1\n- b: 2\n")
    assert read_yaml(path)[0] == {"a": [{"b": "1"}, {"b": "2"}]}


def test_a_file_that_is_not_there_is_named(tmp_path):
    with pytest.raises(SpecInvalid, match=r"none\.yaml cannot be read\. No such file"):
        spec_from_yaml(tmp_path / "none.yaml")


def test_a_section_without_keys_is_no_mistake(tmp_path):
    assert spec_from_yaml(write(tmp_path, "script: a.py\nresources:\n")) == RunSpec(entry="a.py")


def test_a_byte_order_mark_is_no_part_of_the_first_key(tmp_path):
    assert spec_from_yaml(write(tmp_path, b"\xef\xbb\xbfscript: a.py\n")).entry == "a.py"


def test_a_file_may_be_partial(tmp_path):
    path = write(tmp_path, "resources: {memory: 1GiB}\n")
    assert partial_from_yaml(path) == {"resources": {"memory_bytes": 1024**3}}
    with pytest.raises(SpecInvalid, match=r"nothing to run in run\.yaml"):
        spec_from_yaml(path)


# layers


def test_later_layers_win_tables_are_merged_lists_replaced():
    below = {"labels": {"a": "1", "b": "1"}, "outputs": ["x"], "resources": {"nodes": 2, "gpus_per_node": 1}}
    above = {"labels": {"b": "2"}, "outputs": ["y"], "resources": {"nodes": 3}}
    assert merge_layers(below, above) == {
        "labels": {"a": "1", "b": "2"},
        "outputs": ["y"],
        "resources": {"nodes": 3, "gpus_per_node": 1},
    }


def test_another_entry_brings_its_own_arguments():
    below = {"entry": "a.py", "entry_kind": "module", "args": ["x"], "pool": "p"}
    assert merge_layers(below, {"entry": "b.py"}) == {"entry": "b.py", "pool": "p"}
    assert merge_layers(below, {"pool": "q"}) == {**below, "pool": "q"}
    assert merge_layers(below, {"entry": "a.py", "args": ["y"]}) == {**below, "args": ["y"]}


# schema


def test_every_field_of_the_spec_is_a_key():
    def leaves(value, prefix=()):
        for field in dataclasses.fields(value):
            inner = getattr(value, field.name)
            path = (*prefix, field.name)
            yield from leaves(inner, path) if dataclasses.is_dataclass(inner) else [path]

    expected = {path for path in leaves(RunSpec()) if path != ("snapshot",)}
    assert expected <= set(keys())


def test_every_flag_belongs_to_one_key():
    flags = [flag for key in keys().values() for flag in key.flags]
    assert len(flags) == len(set(flags))


def test_the_json_schema_has_every_key_with_its_help():
    schema = json_schema()
    assert schema["additionalProperties"] is False
    for key in keys().values():
        target = schema["properties"]
        for section in () if key.filled_in else key.path[:-1]:
            assert target[section]["additionalProperties"] is False
            target = target[section]["properties"]
        if not key.filled_in:
            assert target[key.spelling]["description"] == key.help
    assert "snapshot" not in schema["properties"]


def test_a_complete_mapping_reads_back():
    spec = RunSpec(entry="train.py", name="ü", priority=-3)
    assert spec_from_mapping(spec_to_mapping(spec)) == spec


# numbers without measure, keys in the wrong place, aliases without end


@pytest.mark.parametrize("value", [99999999999999999999, "99999999999999999999", "9" * 300, 100_001])
def test_a_number_that_is_too_large_says_how_large_it_may_be(value):
    assert "up to 100,000" in failure({"script": "t.py", "resources": {"nodes": value}})


@pytest.mark.parametrize(
    ("path", "says"),
    [
        (("priority",), "from -1,000,000,000 up to 1,000,000,000"),
        (("restarts", "max_restarts"), "up to 1,000,000"),
        (("checkpoint", "keep_last"), "up to 1,000,000"),
    ],
)
def test_every_number_has_a_bound(path, says):
    raw = {"script": "t.py"}
    value = "99999999999999999999"
    assert says in failure({**raw, path[0]: value if len(path) == 1 else {path[1]: value}})


@pytest.mark.parametrize(
    ("written", "says"),
    [
        ("nodse", "Did you mean `nodes` under `resources:`?"),
        ("time_limt", "Did you mean `time_limit` under `stop:`?"),
        ("keep_lst", "Did you mean `keep_last` under `checkpoint:`?"),
        ("priorty", "Did you mean `priority`?"),
        ("zzz", "Valid: "),
    ],
)
def test_a_slip_at_the_top_finds_the_key_of_a_section(written, says):
    assert says in failure({"script": "t.py", written: 2})


def test_a_slip_in_a_section_finds_the_key_of_another():
    assert "Did you mean `nodes` under `resources:`?" in failure({"script": "t.py", "stop": {"nodse": 2}})
    assert "Did you mean `priority`, at the top level?" in failure({"script": "t.py", "stop": {"priorty": 2}})


@pytest.mark.parametrize(
    ("raw", "says"),
    [
        ({"restarts": {"max_infra_restarts": 3}}, "It is spelled `max_infrastructure_restarts` here."),
        ({"max_infra_restarts": 3}, "It is spelled `max_infrastructure_restarts` under `restarts:`."),
        ({"resources": {"num-nodes": 2}}, "It is spelled `nodes` here."),
        ({"label": {"a": "b"}}, "It is spelled `labels` here."),
        ({"stop": {"run_name": "x"}}, "It is spelled `name` at the top level."),
        ({"buffered": True}, "It is spelled `unbuffered` under `environment:`, with the opposite value."),
    ],
)
def test_the_spelling_of_an_option_is_known_in_files(raw, says):
    assert says in failure({"script": "t.py", **raw})


def test_every_option_is_known_in_files():
    for key in keys().values():
        for flag in "/".join(key.flags).split("/") if key.flags else ():
            assert f"It is spelled `{key.spelling}`" in failure({"script": "t.py", flag: "1"})


@pytest.mark.parametrize("shape", ["list", "table", "text"])
def test_aliases_that_multiply_are_refused_at_once(tmp_path, shape):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    if shape == "text":
        lines = [f"a0: &a0 {'x' * 100_000}"]
    for level in range(1, 40):
        names = ", ".join(f"*a{level - 1}" if shape != "table" else f"k{n}: *a{level - 1}" for n in range(9))
        lines.append(f"a{level}: &a{level} " + (f"{{{names}}}" if shape == "table" else f"[{names}]"))
    with pytest.raises(SpecInvalid, match=r"line \d+ stands for more than 10,000 values"):
        partial_from_yaml(write(tmp_path, "\n".join(lines)))


def test_aliases_in_measure_and_long_lists_are_read(tmp_path):
    text = "script: t.py\nlabels: &l {a: b}\nenvironment: {env: *l}\nargs: [" + "x, " * 20_000 + "x]\n"
    found = partial_from_yaml(write(tmp_path, text))
    assert found["environment"]["env"] == found["labels"] == {"a": "b"}
    assert len(found["args"]) == 20_001


FAULTY = """\
script: train.py
nodes: 2
strategy: dpd
resources:
  nodez: 3
  gpus_per_node: many
  memory: 16 apples
stop: {time_limit: soon}
command: [bash, run.sh]
"""


def test_all_that_is_wrong_with_a_file_is_said_at_once(tmp_path):
    (tmp_path / "run.yaml").write_text(FAULTY)
    with pytest.raises(SpecInvalid) as caught:
        spec_from_yaml(tmp_path / "run.yaml")
    error = caught.value
    assert (error.what, len(error.faults)) == ("run.yaml has 7 faults", 7)
    said = error.why.split("\n")
    assert [re.search(r"line (\d+)", line)[1] for line in said] == ["2", "3", "5", "6", "7", "8", "9"]
    assert "belongs under `resources:`" in said[0]
    assert "`ddp`" in said[1]
    assert "`nodes`" in said[2]


def test_one_fault_is_said_as_ever(tmp_path):
    (tmp_path / "run.yaml").write_text("script: train.py\nresources: {nodez: 3}\n")
    with pytest.raises(
        SpecInvalid, match=r"^`resources\.nodez` \(run\.yaml, line 2\) is not a key of the spec\. "
    ) as caught:
        spec_from_yaml(tmp_path / "run.yaml")
    assert caught.value.faults == ()
