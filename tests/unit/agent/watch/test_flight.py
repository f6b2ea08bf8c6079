"""NCCL's flight recorder: read as plain values, never executed."""

from __future__ import annotations

import os
import pickle

import pytest

from gangline.agent.watch.flight import Flight, describe_flights, parse_flight
from gangline.agent.watch.plainpickle import Refused, read_plain_pickle
from gangline.agent.watch.recorder import ask_for_flight, read_flight
from gangline.rundir.layout import AttemptDir


def record(number: int, state: str, name: str = "nccl:all_reduce") -> dict[str, object]:
    return {
        "profiling_name": name,
        "state": state,
        "collective_seq_id": number,
        "process_group": ("0", "default_pg"),
        "input_sizes": [[4]],
        "frames": [{"name": "train", "filename": "train.py", "line": 4}],
    }


def dump(*entries: dict[str, object]) -> bytes:
    return pickle.dumps({"version": "2.4", "entries": list(entries)}, protocol=2)


def stand(rank: int, data: bytes) -> Flight | None:
    return parse_flight(rank, read_plain_pickle(data))


def test_the_first_collective_that_is_not_complete_is_where_a_rank_stands():
    found = stand(3, dump(record(7, "completed"), record(8, "started"), record(9, "scheduled")))
    assert found == Flight(rank=3, group="default_pg", number=8, name="all_reduce", state="started")
    assert stand(0, dump(record(7, "completed"))).number == 7
    assert stand(0, dump()) is None
    assert stand(0, pickle.dumps([1, 2])) is None


class _Evil:
    def __reduce__(self):
        return os.system, ("touch /tmp/never",)


@pytest.mark.parametrize("data", [pickle.dumps(_Evil()), b"", b"not a pickle", pickle.dumps({"a": 1})[:-3]])
def test_what_is_no_record_is_refused(data):
    with pytest.raises(Refused):
        read_plain_pickle(data)


def test_lists_of_torchscript_are_lists():
    # What torch::jit::pickle writes for a typed list: GLOBAL torch.jit._pickle.build_intlist, applied to a list.
    assert read_plain_pickle(b"\x80\x02ctorch.jit._pickle\nbuild_intlist\n](K\x01K\x02e\x85R.") == [1, 2]


def test_ranks_that_stand_apart_are_told():
    flights = [stand(rank, dump(record(8, "started"))) for rank in (0, 1)]
    flights.append(stand(2, dump(record(7, "completed"))))
    said = describe_flights(flights)
    assert said == (
        "NCCL, group default_pg: rank 2 completed all_reduce number 7; ranks 0-1 started all_reduce number 8."
    )
    assert describe_flights(flights[:2]) == ""


def test_a_record_is_found_where_ranks_were_told_to_write_it(tmp_path):
    attempt = AttemptDir(tmp_path / "0")
    attempt.path.mkdir()
    assert read_flight(attempt, 1) == (None, "")
    attempt.nccl_record(1).write_bytes(dump(record(8, "started")))
    assert read_flight(attempt, 1)[0].number == 8
    attempt.nccl_record(2).write_bytes(pickle.dumps(_Evil()))
    flight, note = read_flight(attempt, 2)
    assert flight is None
    assert "no record of collectives" in note


def test_a_rank_is_asked_through_its_pipe(tmp_path):
    attempt = AttemptDir(tmp_path / "0")
    attempt.path.mkdir()
    ask_for_flight(attempt, 0)  # nobody listens
    pipe = attempt.nccl_pipe(0)
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        ask_for_flight(attempt, 0)
        assert os.read(reader, 10) == b"1\n"
    finally:
        os.close(reader)
