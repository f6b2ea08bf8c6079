"""What is refused before it waits for ever, and what is not sure enough for that."""

import pytest
from tests.slurm.stubs import said_by_sinfo

from gangline.backends.slurm.capacity import in_partitions, parse_sinfo
from gangline.backends.slurm.fitting import OVERRIDES, explain_partition, find_misfit
from gangline.domain.errors import Rejected
from gangline.domain.pool import SlurmPool
from gangline.domain.spec import SlurmOptions
from gangline.testing import make_gang

SINFO = """\
welcome to the cluster
a100*|8|64|512000|2-00:00:00|1-4|idle|0/512/0/512|gpu:a100:8(S:0-1),shard:16|gpu:a100:0
a100*|2|64+|512000+|2-00:00:00|1-4|mix|8/120/0/128|gpu:8(S:0,1)|gpu:2(IDX:0-1)
mig|3|64|512000|infinite|1-infinite|down*|0/0/192/192|gpu:3g.20gb:2|gpu:3g.20gb:0
cpu|100|16|64000|30:00|1-infinite|alloc|1600/0/0/1600|(null)|(null)
"""
KINDS = parse_sinfo(said_by_sinfo(SINFO))
POOL = SlurmPool(name="lab", work="/w")


def misfit(options=None, *, pool=POOL, kinds=KINDS, **gang):
    return find_misfit(make_gang(**{"nodes": 1, **gang}), SlurmOptions(**(options or {})), kinds, pool)


def test_what_sinfo_says_is_understood():
    assert [(kind.partition, kind.gpus, kind.most_s, kind.most_nodes) for kind in KINDS] == [
        ("a100", 8, 172_800.0, 4),
        ("a100", 8, 172_800.0, 4),
        ("mig", 2, float("inf"), float("inf")),
        ("cpu", 0, 1800.0, float("inf")),
    ]
    free = [(kind.idle_nodes, kind.free_cpus, kind.free_gpus) for kind in KINDS]
    assert free == [(8, 512, 64), (0, 120, 12), (0, 0, 0), (0, 0, 0)]
    assert KINDS[0].count("gpu", "a100") == 8
    assert (KINDS[1].count("gpu", "a100"), KINDS[2].count("gpu", "3g.20gb"), KINDS[0].count("shard")) == (0, 2, 16)
    assert {kind.partition for kind in in_partitions(KINDS, None)} == {"a100"}
    assert {kind.partition for kind in in_partitions(KINDS, "cpu,mig")} == {"cpu", "mig"}


@pytest.mark.parametrize(
    ("options", "gang", "words"),
    [
        ({}, {"time_limit_s": 172_801.0}, ["`a100` has a time limit of 2-00:00:00", "2-00:01:00"]),
        ({"partition": "cpu"}, {"time_limit_s": 1860.0}, ["0-00:30:00"]),
        ({}, {"nodes": 5}, ["jobs of at most 4 nodes", "asks for 5"]),
        ({"partition": "mig"}, {"nodes": 4}, ["has 3 nodes", "asks for 4"]),
        ({"partition": "mig"}, {"nodes": 8, "min_nodes": 4}, ["asks for 4"]),
        ({}, {"gpus_per_node": 9}, ["no node with 9 gpu"]),
        ({"partition": "cpu"}, {"gpus_per_node": 1}, ["no node with 1 gpu"]),
        ({"gres": "gpu:h100:2"}, {}, ["2 gpu of type h100"]),
        ({"gres": "shard:17"}, {}, ["17 shard"]),
        ({"partition": "cpu,mig", "gres": "gpu:2"}, {"nodes": 4}, ["only 3 nodes", "`cpu` or `mig`"]),
    ],
)
def test_what_can_never_start_is_refused(options, gang, words):
    refused = misfit(options, **gang)
    assert isinstance(refused, Rejected)
    assert all(word in str(refused) for word in words), str(refused)
    assert refused.fix


@pytest.mark.parametrize(
    ("options", "gang"),
    [
        ({}, {"time_limit_s": 172_800.0, "nodes": 4, "gpus_per_node": 8}),
        ({"partition": "cpu,a100"}, {"time_limit_s": 172_800.0}),
        ({"partition": "hidden"}, {"nodes": 500, "gpus_per_node": 9}),
        ({"gres": "gpu"}, {}),
        ({"gres": "gpu:a100:8,shard:2"}, {}),
        ({"gres": "what:ever:this=is"}, {}),
        ({}, {"nodes": 8, "min_nodes": 2}),
        ({"script": "old.sbatch"}, {"nodes": 500}),
    ],
)
def test_what_may_start_is_not(options, gang):
    assert misfit(options, **gang) is None


def test_nothing_is_refused_where_nothing_is_known():
    assert misfit(nodes=500, kinds=[]) is None


def test_a_pool_that_says_what_nodes_have_is_believed():
    pool = SlurmPool(name="lab", work="/w", gpus_per_node=8, cpus_per_node=16)
    assert misfit({"partition": "cpu"}, gpus_per_node=8, pool=pool) is None


def test_a_wrong_partition_is_told_the_nearest():
    refused = Rejected("Slurm refuses the job", why="invalid partition specified: a10", fix="x")
    told = explain_partition(SlurmOptions(partition="a10"), KINDS, refused)
    assert "`a10`" in told.what
    assert "`a100`" in told.fix
    account = Rejected("Slurm refuses the job", why="Invalid account or account/partition combination specified")
    assert explain_partition(SlurmOptions(partition="a10"), KINDS, account) is account


@pytest.mark.parametrize(("flags", "goes"), [("normal|", False), ("long|DenyOnLimit,PartitionTimeLimit", True)])
def test_a_qos_may_go_beyond_partitions(flags, goes):
    assert bool(OVERRIDES.search(flags)) == goes
