"""When a machine is avoided: a table of histories, and what must hold of all of them."""

import hypothesis.strategies as st
import pytest
from hypothesis import given

from gangline.queue.health import (
    DAY_S,
    Evidence,
    HealthPolicy,
    MarkKind,
    NodeState,
    decide_exclusion,
    judge_nodes,
)

NOW = 1_000_000.0
HOSTS = ("a", "b", "c", "d")
LOST, CHECK, SHARED = MarkKind.NODE_LOST, MarkKind.FAILED_CHECK, MarkKind.SHARED_CHECK


def marks(*told: str, kind: MarkKind = LOST, age_s: float = 60.0) -> list[Evidence]:
    """`a:run/0`: host, run and attempt."""
    found = []
    for text in told:
        host, _, where = text.partition(":")
        run, _, attempt = where.partition("/")
        found.append(Evidence(host=host, run_id=run, attempt=int(attempt), kind=kind, time=NOW - age_s))
    return found


def states(evidence, *, policy=None, hosts=HOSTS, num_hosts=4) -> dict[str, str]:
    judged = judge_nodes(evidence, now=NOW, policy=policy or HealthPolicy(), hosts=hosts, num_hosts=num_hosts)
    return {node.host: node.state.value for node in judged if node.state is not NodeState.OK}


@pytest.mark.parametrize(
    ("evidence", "expected"),
    [
        ([], {}),
        (marks("a:r/0"), {"a": "suspect"}),
        (marks("a:r/0", "a:r/1"), {"a": "suspect"}),
        (marks("a:r/0", "a:r/1", "a:r/2"), {"a": "avoided"}),
        (marks("a:r/0", "a:s/0", "a:t/0"), {"a": "avoided"}),
        (marks("a:r/0", kind=CHECK), {"a": "avoided"}),
        (marks("a:r/0", "b:r/0", kind=SHARED), {"a": "suspect", "b": "suspect"}),
        # several marks of one attempt are one
        (marks("a:r/0") + marks("a:r/0", kind=MarkKind.HARDWARE) + marks("a:r/1"), {"a": "suspect"}),
        # one run breaks machine after machine: it is what they have in common
        (marks(*(f"{host}:r/{i}" for host in "ab" for i in range(3))), {"a": "suspect", "b": "suspect"}),
        (marks(*(f"{host}:r/{i}" for host in "abcd" for i in range(9))), dict.fromkeys("abcd", "suspect")),
        # ... but three runs that agree are believed, also if each has marked others
        (marks(*(f"{host}:{run}/0" for host in "ab" for run in "rst")), {"a": "avoided", "b": "avoided"}),
        # a run that points to one machine is believed, whatever else it has met once
        (marks("a:r/0", "a:r/1", "a:r/2", "b:r/3"), {"a": "avoided", "b": "suspect"}),
        # never more than half of the pool, the worst first
        (marks("a:r/0", "b:r/0", "c:r/0", kind=CHECK) + marks("b:s/0"), {"b": "avoided", "c": "avoided", "a": "kept"}),
        # forgotten
        (marks("a:r/0", kind=CHECK, age_s=DAY_S), {}),
        (marks("a:r/0", "a:r/1") + marks("a:r/2", age_s=DAY_S + 1), {"a": "suspect"}),
        # a machine that the pool has no more
        (marks("gone:r/0", kind=CHECK), {"gone": "suspect"}),
        (marks(":r/0", kind=CHECK), {}),
    ],
)
def test_histories(evidence, expected):
    assert states(evidence) == expected
    assert states(list(reversed(evidence))) == expected


def test_a_pool_of_one_machine_never_stands_still():
    assert states(marks("a:r/0", kind=CHECK), hosts=("a",), num_hosts=1) == {"a": "suspect"}
    assert states(marks("a:r/0", "b:r/0", kind=CHECK), hosts=("a", "b"), num_hosts=2) == {"b": "avoided", "a": "kept"}


def test_names_that_a_pool_does_not_tell_are_believed():
    assert states(marks("x:r/0", kind=CHECK), hosts=(), num_hosts=64) == {"x": "avoided"}


def test_the_policy_is_a_setting():
    evidence = marks("a:r/0", "a:r/1")
    assert states(evidence, policy=HealthPolicy(marks=2)) == {"a": "avoided"}
    assert states(evidence, policy=HealthPolicy(marks=2, window_s=50.0)) == {}
    assert states(marks("a:r/0", kind=CHECK), policy=HealthPolicy(marks=0)) == {"a": "suspect"}


def test_why_names_kinds_and_runs_and_when_it_is_forgotten():
    (node,) = judge_nodes(
        [*marks("a:r/0", "a:s/0"), *marks("a:r/1", kind=MarkKind.HARDWARE, age_s=30)],
        now=NOW, policy=HealthPolicy(), num_hosts=9,
    )  # fmt: skip
    assert node.why == "2 losses, 1 broken device of 2 runs within 24 h"
    assert node.forgotten_at == NOW - 30 + DAY_S
    assert [mark.attempt for mark in node.marks] == [0, 0, 1]


@pytest.mark.parametrize(("nodes", "avoided", "kept"), [(1, "ba", ""), (2, "ba", ""), (3, "b", "a"), (4, "", "ba")])
def test_a_gang_that_needs_bad_machines_gets_the_better_of_them(nodes, avoided, kept):
    judged = judge_nodes(
        [*marks("a:r/0", "b:r/0", kind=CHECK), *marks("b:s/0")],
        now=NOW, policy=HealthPolicy(), hosts=HOSTS, num_hosts=4,
    )  # fmt: skip
    exclusion = decide_exclusion(judged, num_hosts=4, nodes=nodes)
    assert exclusion.hosts == tuple(avoided)
    assert [node.host for node in exclusion.kept] == list(kept)


@given(
    told=st.lists(st.tuples(st.sampled_from(HOSTS), st.integers(0, 9)), max_size=40),
    num_hosts=st.integers(1, 8),
    kinds=st.sampled_from([kind for kind in MarkKind if kind is not CHECK]),
)
def test_one_run_condemns_one_machine_at_most_without_a_check(told, num_hosts, kinds):
    evidence = [Evidence(host=host, run_id="r", attempt=n, kind=kinds, time=NOW) for host, n in told]
    found = states(evidence, hosts=(), num_hosts=num_hosts)
    assert list(found.values()).count("avoided") + list(found.values()).count("kept") <= 1
