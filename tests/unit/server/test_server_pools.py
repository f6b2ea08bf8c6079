"""Pools over HTTP, and changes to pools.yaml that leave alone what people wrote around them."""

from __future__ import annotations

import pytest

from gangline.domain.errors import Conflict, NotFound, SpecInvalid
from gangline.domain.gang import Handle
from gangline.domain.pool import JobStanding, PoolJob, PoolState, PoolStatus
from gangline.server.poolfile import PoolFile, add_text, remove_text

NEW = {"backend": "slurm", "work": "/s/new", "defaults": {"partition": "gpu"}}

WRITTEN = """\
# our clusters
pools:
  a:  # the old one
    work: /s/a
    # partition: gpu
    env:
      X: "1"
  # the new one
  b:
    work: /s/b

# the end
"""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "# nothing yet\n",
        "pools:\n",
        "pools: {}\n",
        WRITTEN,
        "pools: {a: {work: /s/a}}\n",
        "pools:\n    a:\n        work: /s/a",
        "pools:\n  a: {work: /s/a}\n",
        "pools:\n  a:\n    work: /s/a\n    defaults:\n      setup:\n      - |\n        module load x\n        ml y\n",
    ],
)
def test_a_pool_is_added_and_removed_whatever_the_file_looks_like(api, text):
    file, path = PoolFile(api.home), api.home.pools
    path.write_text(text)
    before = api.client.pool_file()
    assert before["fault"] == ""
    names = [pool["name"] for pool in api.client.pools()] or list(api.parts.pools._backends)
    file.add("new", NEW)
    api.parts.pools.file()
    assert list(api.parts.pools._backends) == [*names, "new"]
    assert api.parts.pools._backends.pool("new").defaults.partition == "gpu"
    assert all(line in path.read_text() for line in text.splitlines() if line.startswith("#"))
    file.remove("new")
    api.parts.pools.file()
    assert list(api.parts.pools._backends) == names
    assert all(line in path.read_text() for line in text.splitlines() if line.startswith("#"))


def test_remarks_stay_where_they_are():
    added = add_text(WRITTEN, "new", NEW)
    assert added == WRITTEN.replace(
        "    work: /s/b\n",
        "    work: /s/b\n  new:\n    backend: slurm\n    work: /s/new\n    defaults:\n      partition: gpu\n",
    )
    assert remove_text(added, "new") == WRITTEN
    assert remove_text(WRITTEN, "a") == WRITTEN.replace(
        '  a:  # the old one\n    work: /s/a\n    # partition: gpu\n    env:\n      X: "1"\n', ""
    )


def test_pools_over_http(api):
    with pytest.raises(SpecInvalid, match="has no `work`"):
        api.client.add_pool("a", {"ssh": "bastion"})
    assert not api.home.pools.exists()
    made = api.client.add_pool("a", {"work": "/s/a", "ssh": "bastion"})
    assert made["settings"] == {"backend": "slurm", "work": "/s/a", "ssh": "bastion"}
    assert made["login"] == ["ssh", "fake"]
    assert api.home.pools.stat().st_mode & 0o777 == 0o600
    with pytest.raises(Conflict, match="There is a pool `a` already"):
        api.client.add_pool("a", {"work": "/s/other"})
    assert api.client.pool("a")["state"] == "ready"
    assert [one["text"] for one in api.client.examine_pool("a", deep=True)] == ["looked at closely"]
    with pytest.raises(NotFound, match=r"There is no pool `b`"):
        api.client.examine_pool("b")
    api.client.remove_pool("a")
    with pytest.raises(NotFound):
        api.client.pool("a")
    with pytest.raises(NotFound, match="has no pool `a`"):
        api.client.remove_pool("a")


def test_a_broken_file_is_told_of_and_never_overwritten(api):
    api.home.pools.write_text("pools: {a: {wrk: /s}}")
    assert "Did you mean `work`?" in api.client.pool_file()["fault"]
    assert any("Did you mean `work`?" in text for text in api.client.health()["warnings"])
    with pytest.raises(SpecInvalid, match="wrk"):
        api.client.add_pool("b", {"work": "/s/b"})
    with pytest.raises(SpecInvalid, match="wrk"):
        api.client.remove_pool("a")
    assert api.home.pools.read_text() == "pools: {a: {wrk: /s}}"
    with pytest.raises(NotFound, match="Did you mean `work`"):
        api.client.pool("a")


def test_zombies_are_ended_each_in_its_own_way(api):
    backend = api.parts.pools._backends["local"]
    handle = Handle(backend="fake", version=1, data={"key": "k"})
    api.parts.pools._held = lambda pool: {("one-7k3q", 0): handle} if pool == "local" else {}
    noted = []
    api.parts.pools._note = lambda run, text: noted.append((run, text))
    for number, (run, standing) in enumerate(
        [
            ("one-7k3q", JobStanding.IDLE),
            ("two-7k3q", JobStanding.ORPHAN),
            ("six-7k3q", JobStanding.STUCK),
            ("ten-7k3q", JobStanding.OTHERS),
        ]
    ):
        job = PoolJob(job=str(number), state="RUNNING", run_id=run, launch=0, standing=standing, text="why", fix="do")
        backend.pool_jobs.append(job)
    listed = api.client.pool_jobs("local", quiet_s=60.0)
    assert [job["standing"] for job in listed] == ["idle", "orphan", "stuck", "others"]
    assert backend.surveys == [({("one-7k3q", 0): handle}, 60.0)]
    assert not any(job["ended"] for job in listed)
    ended = api.client.end_zombies("local")
    assert [job["ended"] for job in ended] == [True, True, False, False]
    assert backend.cancels == [handle]
    assert [job.job for job in backend.ended_jobs] == ["1"]
    assert noted[0] == ("one-7k3q", "Job 0 was ended by hand: why.")
    with pytest.raises(NotFound):
        api.client.pool_jobs("nope")


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (PoolStatus.READY, ""),
        (PoolStatus.UNREACHABLE, "away"),
        (PoolStatus.LOGIN_NEEDED, "away"),
        (PoolStatus.REMOVED, ""),
    ],
)
def test_what_a_silent_leader_is_excused_by(api, status, told):
    backend = api.parts.pools._backends["local"]
    backend.pool_state = PoolState(status=status, text="away")
    assert api.parts.pools.trouble("local") == told
    assert api.parts.pools.trouble("no-such-pool") == ""
