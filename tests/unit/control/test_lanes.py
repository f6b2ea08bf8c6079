"""Parts of a pool that fill up by themselves, such as partitions: a full one holds back its own runs alone."""

from gangline.domain.errors import NoCapacity
from gangline.domain.spec import SlurmOptions


def submit(site, key, partition):
    return site.submit(key=key, slurm=SlurmOptions(partition=partition))


def placed(site, *runs):
    return [site.row(run).handle is not None for run in runs]


def test_a_full_partition_holds_back_no_other(site):
    first, second = submit(site, "a", "big"), submit(site, "b", "big")
    other = submit(site, "c", "small")
    site.cluster.refuse(NoCapacity("Partition `big` is full", lane="big"))
    site.tick()
    site.deliver()
    site.tick()
    assert placed(site, first, second, other) == [False, False, True]
    assert site.row(first).message == "Partition `big` is full."
    assert "Position 2" in site.row(second).message
    later = submit(site, "d", "small")
    site.tick()
    site.deliver()
    assert placed(site, first, later) == [False, True]
    site.clock.advance(5.0)
    for _ in range(3):
        site.tick()
        site.deliver()
    assert placed(site, first, second) == [True, True]


def test_a_full_pool_holds_back_all(site):
    first, other = submit(site, "a", "big"), submit(site, "c", "small")
    site.cluster.refuse(NoCapacity("Pool `a100` holds 2 jobs, which is its limit"))
    site.tick()
    site.deliver()
    site.tick()
    assert placed(site, first, other) == [False, False]
