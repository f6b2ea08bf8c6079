"""What each strategy adds, as pure as it is; real gangs of each are in tests/integration/test_strateg*.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from gangline.agent.environ import AttemptTerms, render_rank_environment
from gangline.agent.launchspec import LaunchSpec, Shape
from gangline.agent.strategies import rules_of
from gangline.agent.strategies.company import CompanyFault, hold_scratch, scratch_path, take_scratch
from gangline.agent.strategies.mpi import render_mpirun, render_places
from gangline.agent.strategies.ray import decide_store_bytes
from gangline.domain.spec import Strategy
from gangline.rundir.layout import RunDir

TERMS = AttemptTerms(
    attempt=1, shape=Shape((0, 2), 2), master_addr="10.0.0.1", master_port=20001, addresses=("10.0.0.1", "10.0.0.2")
)


def environment(launch: LaunchSpec, rank: int, terms: AttemptTerms = TERMS) -> dict[str, str]:
    return render_rank_environment(launch, terms, rank, base={}, run_dir="/run", node_cpus=8)


def test_every_strategy_has_rules_that_are_asked_before_addresses_are_known(
    make_launch: Callable[..., LaunchSpec],
) -> None:
    early = replace(TERMS, addresses=(), cluster=())
    for strategy in Strategy:
        assert environment(make_launch(strategy=strategy), 0, early)["GANGLINE_ATTEMPT"] == "1"
        assert rules_of(strategy).num_ports(make_launch(strategy=strategy)) >= 0


def test_deepspeed_is_told_what_its_launcher_would_tell(make_launch: Callable[..., LaunchSpec]) -> None:
    launch = make_launch(strategy=Strategy.DEEPSPEED)
    env = environment(launch, 3)
    assert (env["CROSS_RANK"], env["CROSS_SIZE"], env["LOCAL_SIZE"]) == ("1", "2", "2")
    files = rules_of(Strategy.DEEPSPEED).files(launch, TERMS)
    assert files == {"hostfile": "10.0.0.1 slots=2\n10.0.0.2 slots=2\n"}


def test_horovod_is_told_its_numbers_and_to_use_mpi(make_launch: Callable[..., LaunchSpec]) -> None:
    env = environment(make_launch(strategy=Strategy.HOROVOD), 3)
    told = {name: env[f"HOROVOD_{name}"] for name in ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK")}
    assert told == {"RANK": "3", "SIZE": "4", "LOCAL_RANK": "1", "LOCAL_SIZE": "2", "CROSS_RANK": "1"}
    assert env["HOROVOD_CONTROLLER"] == "mpi"


def test_open_mpi_numbers_ranks_as_the_gang_does() -> None:
    assert render_places(TERMS) == "localhost slots=2\n10.0.0.2 slots=2\n"
    assert render_places(replace(TERMS, addresses=("127.0.0.1", "127.0.0.1"))) == "localhost slots=4\n"
    torn = replace(TERMS, shape=Shape((0, 1, 2), 2), addresses=("a", "b", "a"))
    with pytest.raises(CompanyFault, match="have to follow one another"):
        render_places(torn)


def test_mpirun_asks_agents_for_its_daemons() -> None:
    argv = render_mpirun(4, places=Path("/r/places"), ask=Path("/t/ask"), scratch=Path("/t"), to=Path("/r/mpi"))
    assert argv[:5] == ["mpirun", "--mca", "plm", "rsh", "--mca"]
    assert argv[argv.index("plm_rsh_agent") + 1] == "/bin/sh /t/ask"
    assert argv[-1] == "/r/mpi"


def test_the_driver_of_ray_is_one_process_with_the_address_of_its_cluster(
    make_launch: Callable[..., LaunchSpec],
) -> None:
    launch = make_launch(strategy=Strategy.RAY, procs_per_node=1, env={"RAY_TRAIN_CALLBACKS": "mine.Own"})
    rules = rules_of(Strategy.RAY)
    count = rules.num_ports(launch)
    cluster = tuple(f"{host}:{port}" for host in ("10.0.0.1", "10.0.0.2") for port in range(21000, 21000 + count))
    env = environment(launch, 0, replace(TERMS, shape=Shape((0, 1), 1), cluster=cluster))
    host, _, port = env["RAY_ADDRESS"].partition(":")
    assert host == "10.0.0.1"
    assert int(port) in range(21000, 21000 + count)
    assert (env["RANK"], env["WORLD_SIZE"], env["RAY_AUTH_MODE"]) == ("0", "1", "token")
    assert env["NNODES"] == "2"
    assert env["RAY_raylet_start_wait_time_s"] == "120"
    assert env["RAY_TRAIN_CALLBACKS"] == "mine.Own,gangline.ray.TrainReports"
    assert [rules.supports(rank) for rank in (0, 1, 2)] == [False, True, True]


def test_tokens_of_ray_are_of_one_attempt(make_launch: Callable[..., LaunchSpec]) -> None:
    launch = make_launch(strategy=Strategy.RAY, procs_per_node=1)
    tokens = {environment(launch, 0, replace(TERMS, attempt=number))["RAY_AUTH_TOKEN"] for number in range(3)}
    assert len(tokens) == 3
    assert launch.token not in tokens


@pytest.mark.parametrize(
    ("memory", "shm", "expected"), [(10 << 30, 100 << 30, 3 << 30), (10 << 30, 1 << 30, 858993459), (1, 0, 80 << 20)]
)
def test_an_object_store_fits_the_machine(memory: int, shm: int, expected: int) -> None:
    assert decide_store_bytes(memory, shm) == expected


def test_a_scratch_folder_is_short_private_and_of_one_run(tmp_path: Path) -> None:
    one, other = (scratch_path(RunDir(tmp_path / name), 0) for name in ("a" * 200, "b"))
    assert one != other
    assert len(str(one)) < 20
    folder = tmp_path / "scratch"
    take_scratch(folder)
    (folder / "old").touch()
    hold_scratch(folder)
    assert (folder / "old").exists()
    take_scratch(folder)
    assert not list(folder.iterdir())
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.rmdir()
    folder.symlink_to(tmp_path)
    with pytest.raises(PermissionError):
        hold_scratch(folder)
