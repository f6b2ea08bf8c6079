"""pools.yaml is read as run files are: every slip is named by its place, with what is valid."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from gangline.domain.errors import SpecInvalid
from gangline.domain.pool import WaitIn
from gangline.wire.pools import pool_from_mapping, pool_to_mapping, pools_from_yaml

FULL = """
pools:
  a100:
    backend: slurm
    ssh: me@bastion.example.org
    ssh_options: [-F, /etc/ssh/cluster]
    work: /shared/me/gangline
    poll: 2s
    max_jobs: 40
    wait_in: gangline
    ranks_python: python3.11
    env: {NCCL_SOCKET_IFNAME: ib0}
    defaults:
      partition: gpu
      exclusive: true
      setup: [module load cuda]
      options: {mail-type: END}
  here:
    work: /scratch/gangline
"""


def read(tmp_path: Path, text: str):
    file = tmp_path / "pools.yaml"
    file.write_text(text)
    return pools_from_yaml(file)


def test_pools_are_read_with_all_their_keys_and_written_back(tmp_path: Path):
    pools = read(tmp_path, FULL)
    assert list(pools) == ["a100", "here"]
    pool = pools["a100"]
    assert (pool.poll_s, pool.max_jobs, pool.wait_in) == (2.0, 40, WaitIn.GANGLINE)
    assert pool.ssh_options == ("-F", "/etc/ssh/cluster")
    assert (pool.defaults.partition, pool.defaults.exclusive) == ("gpu", True)
    assert pool.defaults.options == {"mail-type": "END"}
    assert pools["here"].ssh is None
    for name, one in pools.items():
        assert pool_from_mapping(name, pool_to_mapping(one)) == one


@pytest.mark.parametrize("text", ["", "# nothing yet\n\n", "pools:\n", "pools: {}"])
def test_a_file_without_pools_is_no_error(tmp_path: Path, text: str):
    assert read(tmp_path, text) == {}
    assert pools_from_yaml(tmp_path / "none.yaml") == {}


WRONG = [
    ("pols: {}", r"`pols` \(/.*pools.yaml, line 1\) is not a key of this file"),
    ("pools: [a]", "holds no pools by name"),
    ("pools:\n  a: {work: /s/x, partition: gpu}", r"`pools.a.partition` \(/.*pools.yaml, line 2\).*under `defaults:`"),
    ("pools: {a: {wrk: /s}}", "Did you mean `work`"),
    ("pools: {a: {work: /s, defaults: {partitoin: x}}}", "Did you mean `partition`"),
    ("pools: {a: {work: /s, sbatch_option: {}}}", "spelled `defaults.options`"),
    ("pools: {a: {ssh: bastion}}", "has no `work`"),
    ("pools: {a: }", "has no keys"),
    ("pools: {a: {work: shared/x}}", "absolute path"),
    ("pools: {a: {work: /s/../x}}", "absolute path"),
    ("pools: {a: {work: /s/$USER}}", "absolute path"),
    ("pools: {a: {work: /}}", "belongs to all"),
    ("pools: {a: {work: /s, backend: slrm}}", "Did you mean `slurm`"),
    ("pools: {local: {work: /s}}", "always there"),
    ("pools: {'a b': {work: /s}}", "no name of a pool"),
    ("pools: {a: {work: /s, ssh: -oProxyCommand=x}}", "takes one host"),
    ("pools: {a: {work: /s, ssh: 'h; rm'}}", "takes one host"),
    ("pools: {a: {work: /s, ssh_options: [-v]}}", "No host is named"),
    ("pools: {a: {work: /s, ssh: h, ssh_options: [-o, ControlMaster=no]}}", "Gangline sets ControlMaster itself"),
    ("pools: {a: {work: /s, ssh: h, ssh_options: [-F, config]}}", "The path is relative"),
    ("pools: {a: {work: /s, poll: 10ms}}", "at least 0.2s"),
    ("pools: {a: {work: /s, max_jobs: 0}}", "whole number above 0"),
    ("pools: {a: {work: /s, wait_in: slrum}}", "Did you mean `slurm`"),
    ("pools: {a: {work: /s, env: {RANK: '1'}}}", "RANK"),
    ("pools: {a: {work: /s, defaults: {dependency: 'afterok:1'}}}", "belongs to a single run"),
    ("pools: {a: {work: /s, poll: 5s, poll_s: 5}}", "two spellings"),
]


@pytest.mark.parametrize(("text", "says"), WRONG, ids=[says for _, says in WRONG])
def test_a_slip_is_named_by_its_place_with_what_is_valid(tmp_path: Path, text: str, says: str):
    with pytest.raises(SpecInvalid) as caught:
        read(tmp_path, text)
    assert re.search(says, str(caught.value), re.DOTALL), str(caught.value)
