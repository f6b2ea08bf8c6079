"""Submission against stubs of Slurm's commands: what is asked, what is made of odd answers, and never two jobs."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.slurm.stubs import Stubs, said_by_sinfo

from gangline.backends.slurm.backend import SlurmBackend
from gangline.domain.errors import NoCapacity, Rejected, SpecInvalid, Transient
from gangline.domain.gang import GangSpec, Handle, Launch, Observation, PoolPart
from gangline.domain.pool import JobStanding, SlurmPool, WaitIn
from gangline.domain.spec import SlurmOptions
from gangline.rundir.files import write_text
from gangline.rundir.home import Home
from gangline.snapshot.manifest import FileEntry, Manifest
from gangline.snapshot.objects import ObjectStore
from gangline.testing import make_gang
from gangline.testing.link import LocalLink

NO_MORE = "Job violates accounting/QOS policy (job submit limit, user's size and/or time limits)"
BANNER = "Welcome to Stampede3 ✓ 2024\n7\n** 3 nodes are down **\n"


class Nobody:
    def observe(self, handles: list[Handle]) -> dict[int, Observation]:  # noqa: ARG002 - nothing is followed
        return {}

    def cancelling(self, handle: Handle) -> None:
        """As above."""

    def mirrored(self, run_id: str) -> float | None:  # noqa: ARG002
        return None


class Scene:
    """A pool whose login node is this machine, and whose commands are stubs."""

    def __init__(self, folder: Path) -> None:
        self.stubs = Stubs(folder)
        self.work = folder / "work"
        self.home = Home(folder / "home").create()
        self.pool = SlurmPool(name="lab", work=str(self.work), python="/usr/bin/python3")
        self.link = LocalLink(self.work, env={**os.environ, **self.stubs.env})
        self.now = time.time()
        self.backend = self.new_backend()

    def new_backend(self, **pool: object) -> SlurmBackend:
        given = SlurmPool(**{"name": "lab", "work": str(self.work), "python": "/usr/bin/python3", **pool})
        return SlurmBackend(self.home, given, self.link, Nobody(), wall=lambda: self.now)

    def gang(self, **fields: object) -> GangSpec:
        return make_gang(**{"run_id": "llama-ft-7k3q", "name": "Llama FT", "nodes": 2, **fields})

    def prepared(self, **fields: object) -> Launch:
        """As control leaves it: the launch's files are in the mirror."""
        launch = self.backend.render(self.gang(**fields))
        run = self.home.run(launch.gang.run_id)
        write_text(run.spec, "{}")
        write_text(run.launch(launch.gang.launch).spec, '{"token": "x"}', mode=0o600)
        for name, text in launch.files.items():
            write_text(run.path / name, text)
        return launch

    def submit(self, launch: Launch | None = None) -> Handle:
        launch = launch or self.prepared()
        return self.backend.submit(launch, key="llama-ft-7k3q/0")


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    return Scene(tmp_path)


def wait_for(condition: Callable[[], object]) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, "the condition never came true"
        time.sleep(0.02)


def test_a_job_is_made_from_files_alone(scene: Scene) -> None:
    handle = scene.submit()
    folder = f"{scene.work}/runs/llama-ft-7k3q/launches/000"
    [call] = scene.stubs.calls("sbatch")
    assert call.argv == ["--parsable", f"{folder}/job.sh"]
    assert handle.data["job"] == "1001"
    assert handle.data["job_dir"] == folder
    job = scene.stubs.jobs()["1001"]
    assert (job["name"], job["comment"]) == ("llama-ft-7k3q.0", handle.data["token"])
    assert Path(folder, "launch.json").stat().st_mode & 0o777 == 0o600
    assert Path(folder, "node.sh").exists()


def test_twice_with_one_key_is_one_job(scene: Scene) -> None:
    first = scene.submit()
    scene.backend = scene.new_backend()
    assert scene.backend.may_have_started("llama-ft-7k3q", 0)
    assert scene.submit().data == first.data
    assert len(scene.stubs.jobs()) == 1


def test_a_banner_with_digits_is_no_job(scene: Scene) -> None:
    scene.stubs.answer("sbatch", before=BANNER, plain=True)
    assert scene.submit().data["job"] == "1001"


def test_an_id_that_is_not_sure_is_looked_up(scene: Scene) -> None:
    scene.stubs.answer("sbatch", register=True, out="12\n1001\n")
    assert scene.submit().data["job"] == "1001"


def test_the_old_sentence_is_understood(scene: Scene) -> None:
    scene.stubs.answer("sbatch", register=True, out=f"{BANNER}Submitted batch job 519605\n")
    assert scene.submit().data["job"] == "519605"


def test_a_job_that_was_made_although_sbatch_denied_it_is_found(scene: Scene) -> None:
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    scene.stubs.answer("sbatch", register=True, err=words, rc=1, times=1)
    assert scene.submit().data["job"] == "1001"
    assert len(scene.stubs.jobs()) == 1


def test_a_job_that_appears_late_is_found(scene: Scene) -> None:
    words = "sbatch: error: Batch job submission failed: Socket timed out on send/recv operation\n"
    scene.stubs.answer("sbatch", err=words, rc=1, times=1)
    launch = scene.prepared()
    with pytest.raises(Transient, match="did not say"):
        scene.submit(launch)
    with pytest.raises(Transient, match="did not say"):
        scene.submit(launch)
    assert len(scene.stubs.calls("sbatch")) == 1, "the first request may still make a job"
    scene.link.run(("sbatch", "--parsable", launch.commands[0][-1]))  # now it does
    scene.now += 5
    assert scene.submit(launch).data["job"] == "1001"
    assert len(scene.stubs.jobs()) == 1


def test_a_request_that_came_to_nothing_is_made_again(scene: Scene) -> None:
    scene.stubs.answer("sbatch", err="sbatch: error: Batch job submission failed: Socket timed out\n", rc=1, times=1)
    with pytest.raises(Transient):
        scene.submit()
    scene.now += 31
    assert scene.submit().data["job"] == "1001"


def test_a_server_killed_after_sbatch_finds_its_job(scene: Scene) -> None:
    launch = scene.prepared()
    scene.stubs.answer("sbatch", register=True, die_by=9, times=1)
    scene.stubs.answer("squeue", err="slurm_load_jobs error: Socket timed out\n", rc=1, times=1)
    with pytest.raises(Transient, match="squeue"):
        scene.submit(launch)
    scene.backend = scene.new_backend()
    assert scene.submit(launch).data["job"] == "1001"


def test_a_comment_that_the_site_rewrote_does_no_harm(scene: Scene) -> None:
    words = "sbatch: error: Batch job submission failed: Zero Bytes were transmitted or received\n"
    scene.stubs.answer("sbatch", register=True, err=words, rc=1, times=1)
    launch = scene.prepared()
    scene.stubs.answer("squeue", err="slurm_load_jobs error: Socket timed out\n", rc=1, times=1)
    with pytest.raises(Transient):
        scene.submit(launch)
    scene.stubs.change_job("1001", comment="checked|by the site 1000")
    assert scene.submit(launch).data["job"] == "1001"


def test_a_job_that_has_left_the_queue_is_known_by_what_it_wrote(scene: Scene) -> None:
    launch = scene.prepared()
    first = scene.submit(launch)
    folder = Path(first.data["job_dir"])
    (folder / "job.id").write_text("1001\n")
    scene.stubs.forget_job("1001")
    assert scene.submit(launch).data["job"] == "1001"
    assert len(scene.stubs.calls("sbatch")) == 1


def test_a_second_job_of_a_launch_is_cancelled(scene: Scene) -> None:
    launch = scene.prepared()
    scene.submit(launch)
    scene.link.run(("sbatch", "--parsable", launch.commands[0][-1]))
    assert scene.submit(launch).data["job"] == "1001"
    assert scene.stubs.jobs()["1002"]["state"] == "CANCELLED"


@pytest.mark.parametrize(
    ("said", "fix"),
    [
        ("Invalid account or account/partition combination specified", "--account"),
        ("invalid partition specified: gpuu", "--partition"),
        ("Invalid qos specification", "--qos"),
        ("Requested node configuration is not available", "--gpus-per-node"),
        ("Requested time limit is invalid (missing or exceeds some limit)", "--time-limit"),
        ("Invalid feature specification", "--constraint"),
        ("Job dependency problem", "--dependency"),
        ("Something that no version of Slurm has said so far", ""),
    ],
)
def test_slurms_refusal_is_told_in_its_words(scene: Scene, said: str, fix: str) -> None:
    scene.stubs.answer("sbatch", err=f"sbatch: error: Batch job submission failed: {said}\n", rc=1, times=1)
    launch = scene.prepared()
    with pytest.raises(Rejected) as refused:
        scene.submit(launch)
    assert said in refused.value.why
    assert fix in refused.value.fix
    assert scene.submit(launch).data["job"] == "1001", "nothing was made under this key: it may be used again"


@pytest.mark.parametrize(
    "said",
    [
        f"sbatch: error: QOSMaxSubmitJobPerUserLimit\nsbatch: error: Batch job submission failed: {NO_MORE}\n",
        f"sbatch: error: AssocMaxSubmitJobLimit\nsbatch: error: Batch job submission failed: {NO_MORE}\n",
        "sbatch: error: Batch job submission failed: Resource temporarily unavailable\n",
    ],
)
def test_too_many_jobs_is_a_matter_of_waiting(scene: Scene, said: str) -> None:
    scene.stubs.answer("sbatch", err=said, rc=1, times=1)
    launch = scene.prepared()
    with pytest.raises(NoCapacity):
        scene.submit(launch)
    assert scene.submit(launch).data["job"] == "1001"


def test_an_option_that_sbatch_does_not_know_is_named(scene: Scene) -> None:
    said = "sbatch: unrecognized option '--wckei=x'\nTry \"sbatch --help\" for more information\n"
    scene.stubs.answer("sbatch", err=said, rc=255)
    with pytest.raises(Rejected, match="wckei") as refused:
        scene.submit()
    assert "--sbatch-option" in refused.value.fix


def test_a_limit_of_size_is_no_matter_of_waiting(scene: Scene) -> None:
    said = f"sbatch: error: QOSMaxNodePerUserLimit\nsbatch: error: Batch job submission failed: {NO_MORE}\n"
    scene.stubs.answer("sbatch", err=said, rc=1)
    with pytest.raises(Rejected, match="QOSMaxNodePerUserLimit"):
        scene.submit()


def test_without_a_controller_nothing_was_made(scene: Scene) -> None:
    said = "sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)\n"
    scene.stubs.answer("sbatch", err=said, rc=1, times=1)
    launch = scene.prepared()
    with pytest.raises(Transient, match="controller"):
        scene.submit(launch)
    assert not scene.backend.may_have_started("llama-ft-7k3q", 0)
    assert scene.submit(launch).data["job"] == "1001"


def test_without_sbatch_the_pool_is_to_blame(scene: Scene) -> None:
    scene.stubs.remove("sbatch")
    scene.link.env["PATH"] = str(scene.stubs.bin)
    with pytest.raises(Rejected, match="doctor"):
        scene.submit()


def test_a_work_folder_that_cannot_be_made_is_named(scene: Scene, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    scene.backend = scene.new_backend(work=str(tmp_path / "file" / "work"))
    launch = scene.prepared()
    with pytest.raises(Rejected, match="file/work"):
        scene.submit(launch)
    assert scene.stubs.calls("sbatch") == []


def test_only_what_the_cluster_lacks_is_sent(scene: Scene) -> None:
    objects, entries = ObjectStore(scene.home.path), []
    for data in (b"a.py", b"b.py"):
        digest = hashlib.sha256(data).hexdigest()
        objects.put_bytes(digest, [data])
        entries.append(FileEntry(path=data.decode(), kind="file", mode=0o644, size=len(data), digest=digest))
    launch = scene.prepared()
    manifest = scene.home.run("llama-ft-7k3q").code_manifest
    manifest.write_text(json.dumps(Manifest(files=tuple(entries)).to_dict()))
    scene.link.store([(entries[0].digest, b"a.py")])
    scene.link.stored.clear()
    scene.submit(launch)
    assert scene.link.stored == [entries[1].digest]
    assert scene.link.asked.count("missing") == 1
    assert (scene.work / "runs" / "llama-ft-7k3q" / "code.json").read_text() == manifest.read_text()


def test_cancel_names_job_and_run(scene: Scene) -> None:
    handle = scene.submit()
    scene.backend.cancel(handle)
    scene.backend.cancel(handle)
    wait_for(lambda: len(scene.stubs.calls("scancel")) == 2)
    assert scene.stubs.calls("scancel")[0].argv == ["--name=llama-ft-7k3q.0", "1001"]


def test_people_are_told_whole_commands(scene: Scene) -> None:
    handle = scene.submit()
    here = scene.backend.describe(handle)
    assert (here["job"], here["queue"]) == ("1001", "squeue --jobs=1001")
    far = scene.new_backend(ssh="hpc", ssh_options=("-F", "/etc/my config")).describe(handle)
    assert far["queue"] == "ssh -F '/etc/my config' hpc squeue --jobs=1001"
    assert far["log"].endswith("/runs/llama-ft-7k3q/launches/000/job.log")


def test_slurm_looks_at_a_launch_without_taking_it(scene: Scene) -> None:
    assert "to start at" in scene.backend.check(scene.prepared())
    assert scene.stubs.jobs() == {}


@pytest.mark.parametrize(
    "said",
    [
        "allocation failure: Invalid qos specification\n",
        "sbatch: error: invalid partition specified: nope\nallocation failure: Invalid partition name specified\n",
        "allocation failure: Invalid account or account/partition combination specified\n",
        "sbatch: unrecognized option '--gpu-per-node=3'\n",
    ],
)
def test_what_slurm_will_never_take_is_refused_before_it_waits(scene: Scene, said: str) -> None:
    scene.stubs.answer("sbatch", err=said, rc=1)
    with pytest.raises(Rejected, match="Slurm refuses"):
        scene.backend.check(scene.prepared())


@pytest.mark.parametrize(
    "said",
    [
        "allocation failure: Requested node configuration is not available\n",  # also where nodes are only drained
        "allocation failure: Requested nodes are busy\n",
        "allocation failure: Unable to contact slurm controller (connect failure)\n",
    ],
)
def test_what_slurm_may_take_yet_is_no_refusal(scene: Scene, said: str) -> None:
    scene.stubs.answer("sbatch", err=said, rc=1)
    assert scene.backend.check(scene.prepared()) == ""


def test_capacity_is_what_sinfo_says(scene: Scene) -> None:
    a100 = "a100*|6|64|512000|1-00:00:00|1-8|idle|0/384/0/384|gpu:a100:8(S:0-1)|gpu:a100:0(IDX:N/A)\n"
    a100 += "a100*|2|64|512000|1-00:00:00|1-8|mix-|32/96/0/128|gpu:a100:8(S:0-1)|gpu:a100:3(IDX:0-2)\n"
    a100 += "a100*|2|64+|512000+|infinite|1-infinite|drain*|0/0/128/128|gpu:8|gpu:0\n"
    cpu = "cpu|100|16|64000|infinite|1-infinite|alloc|1600/0/0/1600|(null)|gpu:0\nmotd 3\n"
    scene.stubs.answer("sinfo", out=said_by_sinfo(a100 + cpu))
    capacity = scene.backend.capacity()
    assert (capacity.nodes, len(capacity.devices), capacity.cpus) == (100, 80, 1600)
    whole = {"nodes": 10, "cpus": 640, "devices": 80}
    free = {"idle_nodes": 6, "free_cpus": 480, "free_devices": 58}
    assert capacity.parts[0] == PoolPart(name="a100", is_usual=True, **whole, **free)
    none = {"idle_nodes": 0, "free_cpus": 0, "free_devices": 0}
    assert capacity.parts[1] == PoolPart(name="cpu", is_usual=False, nodes=100, cpus=1600, devices=0, **none)
    elsewhere = scene.new_backend(defaults=SlurmOptions(partition="cpu")).capacity()
    assert [part.is_usual for part in elsewhere.parts] == [False, True]
    gang = scene.gang(gpus_per_node=2, procs_per_node=2)
    assert "#SBATCH --cpus-per-task=16\n" in scene.backend.render(gang).files["launches/000/job.sh"]


def test_a_cluster_that_does_not_answer_could_hold_anything(scene: Scene) -> None:
    scene.stubs.answer("sinfo", err="slurm_load_partitions: Unable to contact slurm controller\n", rc=1)
    assert scene.backend.capacity().nodes >= 100_000


def test_the_gang_of_a_launch_has_what_the_pool_adds(scene: Scene) -> None:
    scene.backend = scene.new_backend(defaults=SlurmOptions(partition="a100", setup=("module load cuda",)))
    own = SlurmOptions(account="mine", setup=("conda activate llm",))
    gang = scene.backend.render(scene.gang(slurm=own, procs_per_node=4)).gang
    assert (gang.slurm.partition, gang.slurm.account) == ("a100", "mine")
    assert gang.slurm.setup == ("module load cuda", "conda activate llm")
    assert gang.cpus_per_node == 4, "as many as `--cpus-per-task` asks for"


def test_options_that_are_ours_are_refused(scene: Scene) -> None:
    with pytest.raises(SpecInvalid, match="job-name"):
        scene.backend.render(scene.gang(slurm=SlurmOptions(options={"job-name": "x"})))


def test_a_run_waits_here_while_the_pool_wants_it(scene: Scene) -> None:
    scene.backend = scene.new_backend(max_jobs=1)
    scene.submit()
    with pytest.raises(NoCapacity, match="has 1 job of Gangline in Slurm, and takes 1 at most"):
        scene.submit(scene.prepared(run_id="llama-ft-9x9x"))
    scene.stubs.change_job("1001", state="COMPLETED")
    scene.submit(scene.prepared(run_id="llama-ft-9x9x"))
    scene.backend = scene.new_backend(wait_in=WaitIn.GANGLINE)
    later = f"sbatch: Job 9 to start at {int(time.time()) + 9000} using 2 processors on nodes n1 in partition main\n"
    scene.stubs.answer("sbatch", match="--test-only", err=later, times=1)
    with pytest.raises(NoCapacity, match="Slurm would start the run at"):
        scene.submit(scene.prepared(run_id="llama-ft-8x8x"))
    scene.submit(scene.prepared(run_id="llama-ft-8x8x"))
    assert len(scene.stubs.jobs()) == 3


def test_jobs_that_no_run_counts_on_are_found_and_ended(scene: Scene) -> None:
    kept, left = scene.submit(), scene.submit(scene.prepared(run_id="llama-ft-9x9x"))
    for job in ("1001", "1002"):
        scene.stubs.change_job(job, state="RUNNING", submit="1000")
    scene.stubs.change_job("4711", state="RUNNING", comment="somebody's own", name="x")
    expected = {("llama-ft-7k3q", 0): kept, ("gone-1a1a", 0): replace(left, data={**left.data, "job": "999"})}
    found = scene.backend.jobs(expected, quiet_s=1800.0)
    assert [(one.job, one.standing) for one in found] == [
        ("1001", JobStanding.FOLLOWED),
        ("1002", JobStanding.ORPHAN),
        ("999", JobStanding.MISSING),
    ]
    scene.backend.end_job(found[1])
    assert scene.stubs.jobs()["1002"]["state"] == "CANCELLED"
    assert scene.stubs.calls("scancel")[0].argv == ["--name=llama-ft-9x9x.0", "1002"]
    scene.stubs.answer("scancel", err="scancel: error: Kill job error on job id 1001: Access denied\n", rc=1)
    with pytest.raises(Transient, match="Access denied"):
        scene.backend.end_job(found[0])
