"""What goes from a work folder, and above all what stays."""

import json
import os
from pathlib import Path

import pytest

from gangline.bridge.tidying import remove_run, tidy
from gangline.bridge.workfolder import WorkFolder
from gangline.rundir.confined import UnsafePath

NOW = 2_000_000_000.0
AGE_S = 1000.0
NEW = "agent-new.pyz"
USED, UNUSED, FRESH = "a1" * 32, "b2" * 32, "c3" * 32


def put(path: Path, text: str = "x" * 5000, *, age_s: float = 0.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    os.utime(path, (NOW - age_s, NOW - age_s))
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def content(work: Path, digest: str, *, age_s: float) -> Path:
    return put(work / "objects" / digest[:2] / digest[2:], age_s=age_s)


def tidied(work: Path) -> int:
    return tidy(str(work), agent=NEW, age_s=AGE_S, now=NOW)["files"]


def test_a_removed_run_is_gone_and_nothing_else(tmp_path: Path) -> None:
    outside = put(tmp_path / "outside" / "data")
    work = tmp_path / "work"
    other = put(work / "runs" / "other-1a1a" / "spec.json")
    run = work / "runs" / "llama-7k3q"
    put(run / "attempts" / "0" / "rank-00000.log")
    (run / "data").symlink_to(outside.parent)
    locked = put(run / "locked" / "file").parent
    locked.chmod(0o500)
    found = remove_run(str(work), "llama-7k3q", keep_checkpoints=False)
    assert (found["kept"], found["left"]) == (None, "")
    assert found["freed_bytes"] > 0
    assert names(work / "runs") == ["other-1a1a"]
    assert outside.exists()
    assert other.exists()
    assert remove_run(str(work), "llama-7k3q", keep_checkpoints=False)["freed_bytes"] == 0


def test_checkpoints_may_stay(tmp_path: Path) -> None:
    put(tmp_path / "runs" / "r-1a1a" / "checkpoints" / "step-1" / "model")
    for _ in range(2):  # the answer of the first time was lost
        found = remove_run(str(tmp_path), "r-1a1a", keep_checkpoints=True)
        assert found["kept"] == f"{tmp_path}/kept/r-1a1a"
    assert (tmp_path / "kept" / "r-1a1a" / "step-1" / "model").exists()
    assert remove_run(str(tmp_path), "never-2b2b", keep_checkpoints=True)["kept"] is None


@pytest.mark.parametrize("name", ["..", ".", "", "a/b", ".removed-x", "-x", "a\0b"])
def test_what_is_no_run_is_not_removed(tmp_path: Path, name: str) -> None:
    kept = put(tmp_path / "runs" / "r" / "spec.json")
    with pytest.raises(UnsafePath):
        remove_run(str(tmp_path), name, keep_checkpoints=False)
    assert kept.exists()


def test_a_link_in_place_of_a_run_is_removed_and_not_what_it_leads_to(tmp_path: Path) -> None:
    kept = put(tmp_path / "elsewhere" / "file")
    (tmp_path / "work" / "runs").mkdir(parents=True)
    (tmp_path / "work" / "runs" / "r").symlink_to(kept.parent)
    remove_run(str(tmp_path / "work"), "r", keep_checkpoints=False)
    assert kept.exists()
    assert names(tmp_path / "work" / "runs") == []


def test_runs_folder_that_is_a_link_is_refused(tmp_path: Path) -> None:
    kept = put(tmp_path / "elsewhere" / "r" / "file")
    (tmp_path / "work").mkdir()
    (tmp_path / "work" / "runs").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(UnsafePath):
        remove_run(str(tmp_path / "work"), "r", keep_checkpoints=False)
    assert kept.exists()


def test_agents_of_earlier_versions_go_when_no_job_can_need_them(tmp_path: Path) -> None:
    old, waits, new, fresh = (
        put(tmp_path / "agents" / name, age_s=age)
        for name, age in [("agent-old.pyz", 2000), ("agent-waits.pyz", 2000), (NEW, 2000), ("agent-b.pyz", 10)]
    )
    put(tmp_path / "runs" / "waits" / "launches" / "001" / "node.sh", "exec python agent-waits.pyz agent")
    ended = tmp_path / "runs" / "ended" / "launches" / "000"
    put(ended / "node.sh", "exec python agent-old.pyz agent")
    put(ended / "job.exit", "0 0 1")
    assert tidied(tmp_path) == 1
    assert not old.exists()
    assert all(path.exists() for path in (waits, new, fresh))


def test_uploads_that_were_cut_off_go_by_age(tmp_path: Path) -> None:
    old, fresh = put(tmp_path / "uploads" / USED, age_s=2000), put(tmp_path / "uploads" / FRESH)
    assert tidied(tmp_path) == 1
    assert (old.exists(), fresh.exists()) == (False, True)


def test_contents_go_when_they_are_old_and_of_no_run(tmp_path: Path) -> None:
    used, unused, fresh = (
        content(tmp_path, USED, age_s=2000),
        content(tmp_path, UNUSED, age_s=2000),
        content(tmp_path, FRESH, age_s=9),
    )
    rest = put(tmp_path / "objects" / "b2" / ".x.abc.tmp", age_s=2000)
    files = [{"path": "a", "kind": "file", "digest": USED}, {"path": "l", "kind": "link", "target": "a"}]
    put(tmp_path / "runs" / "r" / "code.json", json.dumps({"version": 1, "files": files}))
    assert tidied(tmp_path) == 2
    assert (used.exists(), unused.exists(), fresh.exists(), rest.exists()) == (True, False, True, False)


@pytest.mark.parametrize("text", ["", "[]", '{"files": [7]}'])
def test_no_content_goes_where_it_cannot_be_told_what_is_used(tmp_path: Path, text: str) -> None:
    unused = content(tmp_path, UNUSED, age_s=2000)
    put(tmp_path / "runs" / "r" / "code.json", text)
    assert tidied(tmp_path) == 0
    assert unused.exists()


def test_a_content_that_a_submit_has_asked_for_stays(tmp_path: Path) -> None:
    asked = content(tmp_path, UNUSED, age_s=0)
    os.utime(asked, (1.0, 1.0))
    assert WorkFolder(str(tmp_path)).missing([UNUSED]) == []
    assert asked.stat().st_mtime > 1.0


def test_what_a_cut_off_removal_has_left_goes(tmp_path: Path) -> None:
    put(tmp_path / "runs" / ".removed-r.aa" / "log")
    tidied(tmp_path)
    assert names(tmp_path / "runs") == []
