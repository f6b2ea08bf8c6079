"""What the leader says of nodes that differ."""

from __future__ import annotations

from typing import Any

import pytest

from gangline.agent.sameness import decide_comparison, render_fingerprint

HOSTS = {node: f"host{node}" for node in range(6)}


def facts(**changes: Any) -> dict[str, Any]:
    packages = {"torch": "2.13.0", "nvidia-nccl-cu12": "2.27.5", "numpy": "2.1.0"}
    python = {
        "version": "3.11.2",
        "implementation": "cpython",
        "packages": packages,
        "torch": {"__version__": "2.13.0+cu128", "cuda": "12.8"},
    }
    return {
        "python": python,
        "driver": {"nvidia": "570.86"},
        "snapshot": "abc",
        "kernel": "Linux 6.1",
        "cpus": 8,
        "memory_bytes": 64 << 30,
        "device_models": ["H100"],
        "limits": {"nofile": 1024},
        "variables": {"NCCL_DEBUG": "INFO"},
        **changes,
    }


def with_python(**changes: Any) -> dict[str, Any]:
    return facts(python={**facts()["python"], **changes})


def compare(*nodes: dict[str, Any], packages: tuple[str, ...] = ()) -> Any:
    return decide_comparison({node: render_fingerprint(one, packages) for node, one in enumerate(nodes)}, HOSTS)


def test_equal_nodes_have_nothing_to_say():
    found = compare(facts(), facts(), packages=("numpy",))
    assert (found.mismatches, found.differences, found.unknown) == ((), (), ())


def test_a_mismatch_names_key_values_and_nodes():
    other = with_python(torch={"__version__": "2.12.1+cu128", "cuda": "12.8"})
    found = compare(facts(), facts(), facts(), other)
    assert found.mismatches == ("torch: 2.13.0+cu128 on nodes 0-2, 2.12.1+cu128 on node 3 (host3)",)
    assert found.differences == ()


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (
            with_python(version="3.12.1"),
            "interpreter: cpython 3.11.2 on node 0 (host0), cpython 3.12.1 on node 1 (host1)",
        ),
        (with_python(implementation="pypy"), "interpreter: cpython 3.11.2 on node 0 (host0), pypy 3.11.2 on"),
        (with_python(torch={"__version__": "2.13.0+cu128", "cuda": "12.6"}), "CUDA: 12.8 on node 0 (host0), 12.6 on"),
        (facts(driver={"nvidia": "550.1"}), "nvidia driver: 570.86 on node 0 (host0), 550.1 on node 1 (host1)"),
        (facts(driver={}), "nvidia driver: 570.86 on node 0 (host0), none on node 1 (host1)"),
        (facts(snapshot="def"), "snapshot: abc on node 0 (host0), def on node 1 (host1)"),
    ],
)
def test_what_must_be_equal(other: dict[str, Any], said: str):
    assert compare(facts(), other).mismatches[0].startswith(said)


def test_chosen_packages_must_be_equal_and_others_may_differ():
    packages = facts()["python"]["packages"]
    other = with_python(packages={**packages, "numpy": "1.26.4"})
    free = compare(facts(), other)
    assert free.mismatches == ()
    assert free.differences[0].startswith("installed packages: 3 (")
    assert compare(facts(), other, packages=("NumPy",)).mismatches == (
        "NumPy: 2.1.0 on node 0 (host0), 1.26.4 on node 1 (host1)",
    )
    del packages["numpy"]
    missing = compare(facts(), with_python(packages=packages), packages=("numpy",))
    assert missing.mismatches == ("numpy: 2.1.0 on node 0 (host0), not installed on node 1 (host1)",)


def test_another_nccl_is_a_mismatch():
    other = with_python(packages={**facts()["python"]["packages"], "nvidia-nccl-cu12": "2.26.2"})
    assert compare(facts(), other).mismatches == ("NCCL: 2.27.5 on node 0 (host0), 2.26.2 on node 1 (host1)",)


def test_a_package_that_nobody_has_is_probably_misspelt():
    found = compare(facts(), facts(), packages=("tranformers",))
    assert found.differences == ("tranformers: installed on no node",)


def test_nearly_equal_memory_is_equal():
    assert compare(facts(), facts(memory_bytes=(64 << 30) - (1 << 20))).differences == ()
    assert compare(facts(), facts(memory_bytes=32 << 30)).differences[0].startswith("memory_bytes: ")


@pytest.mark.parametrize(
    ("other", "key"),
    [
        (facts(kernel="Linux 5.4"), "kernel"),
        (facts(device_models=["H100", "H100"]), "devices"),
        (facts(limits={"nofile": 65536}), "limit nofile"),
        (facts(variables={}), "variable NCCL_DEBUG"),
    ],
)
def test_what_may_differ_is_said(other: dict[str, Any], key: str):
    found = compare(facts(), other)
    assert found.mismatches == ()
    assert found.differences[0].startswith(f"{key}: ")


def test_a_node_whose_interpreter_does_not_answer_is_left_out_and_named():
    found = compare(facts(), facts(python={"executable": "/x"}), facts())
    assert found.unknown == (1,)
    assert found.mismatches == ()


def test_groups_of_many_nodes_are_spans_and_many_values_are_cut():
    nodes = {node: render_fingerprint(facts(snapshot=f"s{node}"), ()) for node in range(30)}
    said = decide_comparison(nodes, {}).mismatches[0]
    assert said.endswith("and 22 more values")
    half = {node: render_fingerprint(facts(snapshot="a" if node in {0, 2, 3, 4} else "b"), ()) for node in range(6)}
    assert decide_comparison(half, HOSTS).mismatches == ("snapshot: a on nodes 0, 2-4, b on nodes 1, 5",)
