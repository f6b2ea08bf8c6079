from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from gangline.domain.errors import SpecInvalid
from gangline.domain.spec import (
    CheckpointPolicy,
    EntryKind,
    Environment,
    LogPolicy,
    NoticeSignal,
    OnTimeLimit,
    Resources,
    RestartPolicy,
    ResumeMode,
    RunSpec,
    SnapshotRef,
    StartMode,
    StopPolicy,
    Strategy,
)
from gangline.wire.spec import merge_layers, spec_from_mapping, spec_to_mapping

text = st.text(st.characters(exclude_characters="\0"), max_size=30)
words = text.filter(str.strip)
names = st.text(st.characters(exclude_categories=["Cc", "Cs"]), min_size=1, max_size=50).filter(str.strip)
variables = st.from_regex(r"[A-Z_][A-Z0-9_]{0,10}", fullmatch=True).filter(
    lambda name: name not in {"RANK", "NNODES"} and not name.endswith(("RANK", "SIZE", "ADDR", "PORT"))
)
counts = st.integers(1, 10_000)
seconds = st.floats(0, 1e9)
texts = st.lists(text, max_size=4).map(tuple)


def maybe(strategy):
    return st.none() | strategy


specs = st.builds(
    RunSpec,
    entry=words,
    entry_kind=st.sampled_from(EntryKind),
    args=texts,
    name=maybe(names),
    project=words,
    pool=words,
    priority=st.integers(-(10**9), 10**9),
    strategy=st.sampled_from(Strategy),
    resources=st.builds(
        Resources,
        nodes=counts,
        procs_per_node=maybe(counts),
        gpus_per_node=maybe(st.integers(0, 64)),
        cpus_per_rank=maybe(counts),
        memory_bytes=maybe(st.integers(1, 2**40)),
    ),
    environment=st.builds(
        Environment,
        python=maybe(words),
        env=st.dictionaries(variables, text, max_size=4),
        secrets=texts,
        preload=texts,
        start=st.sampled_from(StartMode),
        unbuffered=st.booleans(),
    ),
    checkpoint=st.builds(
        CheckpointPolicy, path=maybe(words), keep_last=st.integers(0, 100), resume=st.sampled_from(ResumeMode)
    ),
    restarts=st.builds(
        RestartPolicy,
        max_restarts=st.integers(0, 99),
        max_infrastructure_restarts=st.integers(0, 99),
        max_preemptions=maybe(st.integers(0, 99)),
        backoff_s=seconds,
        max_backoff_s=seconds,
    ),
    stop=st.builds(
        StopPolicy,
        time_limit_s=maybe(st.floats(0.001, 1e9)),
        notice_signal=st.sampled_from(NoticeSignal),
        max_continuations=maybe(st.integers(0, 1000)),
        on_time_limit=st.sampled_from(OnTimeLimit),
        grace_s=seconds,
        failure_grace_s=seconds,
        start_timeout_s=st.floats(0.001, 1e9),
    ),
    logs=st.builds(LogPolicy, max_per_rank_bytes=st.integers(0, 2**50)),
    data_version=maybe(words),
    outputs=texts,
    labels=st.dictionaries(words.filter(lambda name: "=" not in name), text, max_size=4),
    snapshot=maybe(st.builds(SnapshotRef, digest=words, workdir=words)),
    inherited_env=st.dictionaries(words, text, max_size=4),
)


@given(specs)
def test_a_spec_survives_the_trip_through_json(spec):
    assert spec_from_mapping(json.loads(json.dumps(spec_to_mapping(spec)))) == spec


@given(specs)
def test_laying_a_spec_over_itself_changes_nothing(spec):
    mapping = spec_to_mapping(spec)
    assert merge_layers(mapping, mapping) == mapping


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(text, inner, max_size=3),
    max_leaves=8,
)
known = st.sampled_from(
    ["entry", "script", "command", "args", "resources", "environment", "stop", "labels", "snapshot"]
)


@given(st.dictionaries(known | text, json_values, max_size=4))
def test_whatever_arrives_is_a_spec_or_one_clear_error(raw):
    spec = error = None
    try:
        spec = spec_from_mapping(raw)
    except SpecInvalid as raised:
        error = raised
    if spec is not None:
        assert spec_from_mapping(spec_to_mapping(spec)) == spec
    else:
        assert error.what
        assert len(str(error)) < 2000
