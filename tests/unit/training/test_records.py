from __future__ import annotations

import errno
import json
import math
import os
import threading
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import pytest

import gangline
from gangline.training import session
from gangline.training.writer import RecordWriter

AsRank = Callable[..., Path]


def lines(run_dir: Path, rank: int = 0) -> list[dict[str, object]]:
    path = run_dir / "metrics" / f"rank-{rank:05d}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines() if line]


class Tensor:
    """Behaves like a tensor: one element has `.item()`, several raise."""

    def __init__(self, *values: float) -> None:
        self.values = values

    def item(self) -> float:
        if len(self.values) != 1:
            raise RuntimeError("a Tensor with 2 elements cannot be converted to Scalar")
        return self.values[0]


def test_each_kind_of_record(as_rank: AsRank) -> None:
    run_dir = as_rank(1, 4)
    gangline.log({"loss": 0.5, "tokens": 3}, step=7)
    gangline.log({"lr": 1e-4})
    gangline.progress(7, 100)
    gangline.progress(8)
    with gangline.phase("evaluating"):
        pass
    found = lines(run_dir, 1)
    assert all(record["a"] == 2 and record["t"] > 1e9 for record in found)  # type: ignore[operator]
    assert [{key: value for key, value in record.items() if key not in "at"} for record in found] == [
        {"k": "m", "s": 7, "v": {"loss": 0.5, "tokens": 3}},
        {"k": "m", "s": None, "v": {"lr": 1e-4}},
        {"k": "p", "s": 7, "n": 100},
        {"k": "p", "s": 8, "n": None},
        {"k": "h", "name": "evaluating", "on": True},
        {"k": "h", "name": "evaluating", "on": False},
    ]


def test_what_looks_like_a_number_becomes_one(as_rank: AsRank) -> None:
    run_dir = as_rank()
    gangline.log(
        {
            "tensor": Tensor(0.25),
            "flag": True,
            "decimal": Decimal("1.5"),
            "nan": math.nan,
            "inf": -math.inf,
            "huge": 10**400,
            "large": 2**70,
            3: 1,
            ("a", 1): 2,
        },  # type: ignore[dict-item]
        step=Tensor(4),  # type: ignore[arg-type]
    )
    record, warning = lines(run_dir)[-1], lines(run_dir)[0]
    values = record["v"]
    assert record["s"] == 4
    assert isinstance(values, dict)
    assert math.isnan(values.pop("nan"))
    assert values == {
        "tensor": 0.25,
        "flag": 1,
        "decimal": 1.5,
        "inf": -math.inf,
        "large": float(2**70),
        "3": 1,
        "('a', 1)": 2,
    }
    assert warning["k"] == "w"
    assert "`huge`" in str(warning["text"])


def test_what_is_no_number_is_left_out_with_one_warning(as_rank: AsRank, capsys: pytest.CaptureFixture[str]) -> None:
    run_dir = as_rank()
    for _ in range(3):
        gangline.log({"text": "0.5", "many": Tensor(1, 2), "none": None, "loss": 1.0, "list": [1]}, step=1)  # type: ignore[dict-item]
    gangline.log(5)  # type: ignore[arg-type]
    gangline.log({"loss": 1.0}, step="seven")  # type: ignore[arg-type]
    gangline.progress(math.nan)  # type: ignore[arg-type]
    gangline.progress(0.5)  # type: ignore[arg-type]
    found = lines(run_dir)
    assert [record["v"] for record in found if record["k"] == "m"] == [{"loss": 1.0}] * 3 + [{}, {"loss": 1.0}]
    warnings = [str(record["text"]) for record in found if record["k"] == "w"]
    assert len(warnings) == len(set(warnings)) == 4 + 1 + 2
    assert capsys.readouterr().err.count("gangline: ") == len(warnings)


def test_without_a_platform_nothing_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    gangline.log({"loss": 1.0}, step=1)
    gangline.progress(1, 2)
    with gangline.phase("x"):
        pass
    assert [path.name for path in tmp_path.iterdir()] == []
    assert capsys.readouterr() == ("", "")


def test_an_exception_ends_a_phase_and_goes_through(as_rank: AsRank) -> None:
    run_dir = as_rank()
    with pytest.raises(ZeroDivisionError), gangline.phase('odd "name"'):
        raise ZeroDivisionError
    assert [record["on"] for record in lines(run_dir)] == [True, False]


def test_threads_write_whole_lines(as_rank: AsRank) -> None:
    run_dir = as_rank()
    threads = [
        threading.Thread(target=lambda: [gangline.log({"x": 1.0, "y": 2.0}, step=n) for n in range(200)])
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(lines(run_dir)) == 1600


def test_a_forked_child_writes_its_own_lines_and_none_of_its_parents(
    as_rank: AsRank, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_dir = as_rank()
    gangline.log({"who": 0}, step=0)
    writer = session.writer()
    monkeypatch.setattr(writer, "_direct", False)
    monkeypatch.setattr(writer, "_retry_at", math.inf)
    gangline.log({"who": 1}, step=1)  # waits in memory
    pid = os.fork()
    if pid == 0:
        gangline.log({"who": 2}, step=2)
        os._exit(0)
    os.waitpid(pid, 0)
    session.writer().close()
    assert sorted(record["s"] for record in lines(run_dir)) == [0, 1, 2]  # type: ignore[type-var]


class Disk:
    """Stands between a writer and its file: can fail, or take a part of a line only."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.error = 0
        self.takes: int | None = None
        real = os.write

        def write(descriptor: int, data: bytes) -> int:
            if self.error:
                raise OSError(self.error, os.strerror(self.error))
            return real(descriptor, data if self.takes is None else data[: self.takes])

        monkeypatch.setattr("gangline.training.writer.os.write", write)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.ESTALE, errno.EBADF])
def test_disk_trouble_never_reaches_training_and_nothing_is_lost(
    as_rank: AsRank, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], number: int
) -> None:
    monkeypatch.setattr("gangline.training.writer._RETRY_S", 0.0)
    run_dir = as_rank()
    disk = Disk(monkeypatch)
    gangline.log({"x": 0}, step=0)
    disk.error = number
    for step in range(1, 50):
        gangline.log({"x": step}, step=step)
    disk.error = 0
    gangline.log({"x": 50}, step=50)
    assert [record["s"] for record in lines(run_dir)] == list(range(51))
    assert capsys.readouterr().err.count("gangline: cannot write") == 1


def test_a_disk_that_takes_half_a_line(as_rank: AsRank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.training.writer._RETRY_S", 0.0)
    run_dir = as_rank()
    disk = Disk(monkeypatch)
    gangline.log({"x": 0}, step=0)
    disk.takes = 20
    gangline.log({"x": 1}, step=1)
    disk.takes = None
    gangline.log({"x": 2}, step=2)
    text = (run_dir / "metrics" / "rank-00000.jsonl").read_text().splitlines()
    good = [json.loads(line)["s"] for line in text if line.endswith("}}")]
    assert good == [0, 1, 2]


def test_what_does_not_fit_into_memory_is_counted(as_rank: AsRank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gangline.training.writer._RETRY_S", 0.0)
    monkeypatch.setattr("gangline.training.writer._WAITING_BYTES", 1000)
    run_dir = as_rank()
    disk = Disk(monkeypatch)
    gangline.log({"x": 0}, step=0)
    disk.error = errno.ENOSPC
    for step in range(100):
        gangline.log({"x": 0}, step=step)
    disk.error = 0
    gangline.log({"x": 0}, step=100)
    found = lines(run_dir)
    kept = [record for record in found if record["k"] == "m"]
    warning = next(str(record["text"]) for record in found if record["k"] == "w")
    assert warning.startswith(f"{102 - len(kept)} records were lost")


def test_a_run_directory_that_cannot_be_made_is_said_once(
    tmp_path: Path, as_rank: AsRank, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").touch()
    as_rank(GANGLINE_RUN_DIR=str(tmp_path / "file" / "run"))
    for step in range(10):
        gangline.log({"x": 1}, step=step)
    assert capsys.readouterr().err.count("cannot write") == 1


def test_a_descriptor_that_somebody_closed_is_not_written_into_their_file(
    as_rank: AsRank, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gangline.training.writer._RETRY_S", 0.0)
    run_dir = as_rank()
    gangline.log({"x": 0}, step=0)
    os.close(session.writer()._descriptor)
    with (tmp_path / "theirs").open("w"):
        gangline.log({"x": 1}, step=1)
        gangline.log({"x": 2}, step=2)
    assert (tmp_path / "theirs").read_text() == ""
    assert [record["s"] for record in lines(run_dir)] == [0, 1, 2]


def test_a_torn_last_line_of_the_attempt_before_is_ended(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl"
    path.write_bytes(b'{"k":"m","a":0')
    writer = RecordWriter(path, attempt=1)
    writer.metrics({"x": 1}, 1)
    writer.close()
    assert json.loads(path.read_text().splitlines()[1])["s"] == 1


def test_a_closed_stderr_is_no_reason_to_stop(as_rank: AsRank, monkeypatch: pytest.MonkeyPatch) -> None:
    run_dir = as_rank()
    for stream in (None, open(os.devnull)):  # noqa: SIM115, PTH123
        monkeypatch.setattr("sys.stderr", stream)
        if stream is not None:
            stream.close()
        gangline.log({f"bad {stream is None}": "text"}, step=1)  # type: ignore[dict-item]
    assert len([record for record in lines(run_dir) if record["k"] == "w"]) == 2
