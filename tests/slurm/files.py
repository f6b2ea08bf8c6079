"""What the machines of a test cluster are made of: their configuration and their first process, as text. Pure."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

__all__ = [
    "ACCOUNT",
    "HEAD",
    "SLURMCTLD",
    "USER",
    "WORK",
    "Shape",
    "address",
    "render_hosts",
    "render_init",
    "render_slurm",
    "render_sshd",
]

HEAD = "head"
USER, USER_ID = "alice", 30001
WORK = "/srv/work"
"""The folder that all machines share and the host does not see, at least not under this name."""
NETWORK = "10.77"
MUNGED = """\
setpriv --reuid munge --regid munge --clear-groups munged --force --num-threads=2 --key-file=/run/etc/munge.key \\
  --log-file=/run/munge/log --seed-file=/run/munge/seed --pid-file=/run/munge/pid"""
SLURMCTLD = "setpriv --reuid slurm --regid slurm --clear-groups slurmctld"
SLURMDBD = "setpriv --reuid slurm --regid slurm --clear-groups slurmdbd"
ACCOUNT, FOREIGN_ACCOUNT = "lab", "others"
"""Where accounts are kept: the user's own, and one that is not the user's."""


@dataclass(frozen=True, kw_only=True)
class Shape:
    """What may be chosen of a cluster."""

    nodes: int = 4
    gpus_per_node: int = 8
    cpus_per_node: int = 16
    memory_mb: int = 64_000
    accounting: str = "none"
    """`none`; `file`: jobs that ended go to a file, which is no help to `sacct` without `-c`; `db`: slurmdbd."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """Lines of `slurm.conf` that differ."""

    @property
    def node_names(self) -> list[str]:
        return [f"node{number:02d}" for number in range(1, self.nodes + 1)]


def address(machine: str) -> str:
    return f"{NETWORK}.0.1" if machine == HEAD else f"{NETWORK}.1.{int(machine.removeprefix('node'))}"


def render_hosts(shape: Shape) -> str:
    """The second name of each is for torch's store, which looks its peers up backwards as IPv4 in IPv6."""
    lines = [f"{address(name)} {name}\n::ffff:{address(name)} {name}.lab\n" for name in [HEAD, *shape.node_names]]
    return "127.0.0.1 localhost\n" + "".join(lines)


def render_slurm(shape: Shape) -> dict[str, str]:
    """The files of `/etc/slurm`."""
    last = shape.node_names[-1].removeprefix("node")
    nodes = f"node[01-{last}]"
    gpus = f"/run/gpus/gpu[0-{shape.gpus_per_node - 1}]"
    machines = [
        f"NodeName={name} NodeAddr={address(name)} CPUs={shape.cpus_per_node} Boards=1 SocketsPerBoard=1 "
        f"CoresPerSocket={shape.cpus_per_node} ThreadsPerCore=1 RealMemory={shape.memory_mb} "
        f"Gres=gpu:{shape.gpus_per_node} State=UNKNOWN"
        for name in shape.node_names
    ]
    limits = f"Nodes={nodes} MaxTime=7-00:00:00 DefaultTime=01:00:00 State=UP"
    partitions = [
        f"PartitionName=main Default=YES PriorityTier=10 PreemptMode=off {limits}",
        f"PartitionName=spot PriorityTier=1 PreemptMode=requeue {limits}",
        f"PartitionName=scrap PriorityTier=1 PreemptMode=cancel {limits}",
    ]
    settings = {**_settings(shape), **shape.settings}
    lines = [f"{key}={value}" for key, value in settings.items()]
    files = {"slurmdbd.conf": "\n".join([*_SLURMDBD, ""])} if shape.accounting == "db" else {}
    return {
        **files,
        "slurm.conf": "\n".join([*lines, *machines, *partitions, ""]),
        "gres.conf": f"AutoDetect=off\nNodeName={nodes} Name=gpu File={gpus}\n",
        # Without it slurmd looks for control groups that machines in namespaces do not have.
        "cgroup.conf": "CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n",
        "plugstack.conf": "",
    }


def _settings(shape: Shape) -> dict[str, str]:
    """As on a real cluster, but that everything which takes a minute there takes seconds here."""
    settings = {
        "ClusterName": "lab",
        "SlurmctldHost": f"{HEAD}({address(HEAD)})",
        "SlurmUser": "slurm",
        "StateSaveLocation": "/run/slurm/state",
        "SlurmdSpoolDir": "/run/slurm/spool",
        "SlurmctldPidFile": "/run/slurm/slurmctld.pid",
        "SlurmdPidFile": "/run/slurm/slurmd.pid",
        "SlurmctldLogFile": "/var/log/slurm/slurmctld.log",
        "SlurmdLogFile": "/var/log/slurm/slurmd.log",
        # Processors, memory and devices are counted, not enforced.
        "ProctrackType": "proctrack/linuxproc",
        "TaskPlugin": "task/none",
        "JobAcctGatherType": "jobacct_gather/linux",
        "SlurmdParameters": "config_overrides",
        "PropagateResourceLimits": "NONE",
        "MpiDefault": "none",
        "GresTypes": "gpu",
        "SelectType": "select/cons_tres",
        "SelectTypeParameters": "CR_Core_Memory",
        "DefMemPerCPU": "64",
        "PriorityType": "priority/multifactor",
        "PreemptType": "preempt/partition_prio",
        "PreemptMode": "REQUEUE",
        "MailProg": "/bin/true",
        "SchedulerType": "sched/backfill",
        "SchedulerParameters": "batch_sched_delay=0,sched_interval=1,bf_interval=1,bf_window=2880",
        "AuthInfo": "cred_expire=10",  # what a requeued job waits
        "SlurmdTimeout": "10",
        "ReturnToService": "2",
        "KillWait": "3",
        "MinJobAge": "10",
        "InactiveLimit": "0",
        "JobRequeue": "1",
        "AccountingStorageType": "accounting_storage/none",
    }
    if shape.accounting == "file":
        settings |= {"JobCompType": "jobcomp/filetxt", "JobCompLoc": "/var/log/slurm/jobcomp.log"}
    if shape.accounting == "db":
        settings |= {
            "AccountingStorageType": "accounting_storage/slurmdbd",
            "AccountingStorageHost": HEAD,
            "AccountingStorageEnforce": "associations,limits,qos",
            "AccountingStorageTRES": "gres/gpu",
            "AccountingStoreFlags": "job_comment",
        }
    return settings


_SLURMDBD = (
    f"DbdHost={HEAD}",
    "SlurmUser=slurm",
    "PidFile=/run/slurm/slurmdbd.pid",
    "LogFile=/var/log/slurm/slurmdbd.log",
    "StorageType=accounting_storage/mysql",
    "StorageHost=localhost",
    "StorageUser=slurm",
    "StorageLoc=slurm_acct",
    "AuthType=auth/munge",
)
# All of it lies in the machine's own /run, which is memory: it is fast, and gone with the machine.
_DATABASE = f"""\
install -d -m 755 -o mysql /run/mysqld /run/mysql
mariadb-install-db --no-defaults --user=mysql --skip-test-db --datadir=/run/mysql \\
  --auth-root-authentication-method=socket --innodb-log-file-size=4M >/dev/null
mariadbd --no-defaults --user=mysql --datadir=/run/mysql --socket=/run/mysqld/mysqld.sock --skip-networking \\
  --pid-file=/run/mysqld/pid --innodb-log-file-size=4M --innodb-lock-wait-timeout=900 2>/var/log/slurm/mariadb.log &
until mariadb --no-defaults -S /run/mysqld/mysqld.sock 2>/dev/null <<'SQL'
CREATE USER IF NOT EXISTS 'slurm'@'localhost' IDENTIFIED VIA unix_socket;
GRANT ALL ON slurm_acct.* TO 'slurm'@'localhost';
SQL
do sleep 0.05; done
{SLURMDBD}
until sacctmgr -i add cluster lab >/dev/null 2>&1; do sleep 0.05; done  # without it slurmctld does not start
sacctmgr -i add account {ACCOUNT} Description=lab Organization=lab >/dev/null
sacctmgr -i add account {FOREIGN_ACCOUNT} Description=others Organization=others >/dev/null
sacctmgr -i add user {USER} account={ACCOUNT} >/dev/null"""


def render_sshd() -> str:
    return f"""\
HostKey /run/etc/ssh/host_key
AuthorizedKeysFile /run/etc/ssh/authorized_keys
AllowUsers {USER}
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
UseDNS no
PrintMotd no
LogLevel VERBOSE
"""


def render_init(shape: Shape, *, shown: Sequence[Path], hidden: Sequence[Path]) -> str:
    """The first process of each machine, as `bash INIT FOLDER NAME ADDRESS`.

    Args:
        shown: folders of the host that users of the machine can read under the same path, whatever is above them.
        hidden: those of them that are empty on nodes.
    """
    return f"""\
set -eu
folder=$1 name=$2 address=$3
read -r pid _ < /proc/self/stat  # this is still the host's
hostname "$name"
mount -t proc proc /proc
mount -t sysfs sysfs /sys 2>/dev/null || :
mount -t tmpfs -o mode=755 tmpfs /run
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
{_render_view(shown, hidden)}
cp -a "$folder/etc" /run/etc
mkdir -p /run/sshd /run/lock /run/gpus {WORK} /home/{USER}
install -d -m 755 -o munge /run/munge
install -d -m 755 -o slurm /run/slurm /run/slurm/state
install -d -m 755 /run/slurm/spool
for ((i = 0; i < {shape.gpus_per_node}; i++)); do mknod -m 666 "/run/gpus/gpu$i" c 1 3; done
for file in hosts passwd group shadow; do mount --bind "/run/etc/$file" "/etc/$file"; done
mount --bind /run/etc/slurm /etc/slurm
mount --bind "$folder/log/$name" /var/log/slurm
mount --bind "$folder/home" /home/{USER}
mount --bind "$folder/work" {WORK}
echo "$pid" > "$folder/run/$name.tmp"
mv "$folder/run/$name.tmp" "$folder/run/$name.pid"
ip link set lo up
if [ "$name" = {HEAD} ]; then
  ip link add lab0 type bridge
  ip addr add "$address/16" dev lab0
  ip link set lab0 up
else
  until ip addr add "$address/16" dev eth0 2>/dev/null; do sleep 0.02; done  # the keeper plugs it in
  ip link set eth0 up
fi
{MUNGED}
if [ "$name" = {HEAD} ]; then
  {":" if shape.accounting != "db" else _DATABASE}
  {SLURMCTLD}
else
  until (: > /dev/tcp/{address(HEAD)}/6817) 2>/dev/null; do sleep 0.05; done
  slurmd
fi
trap : TERM INT HUP
while :; do  # Bash reaps orphans while it waits
  sleep 3600 & wait $! || :
done
"""


def _render_view(shown: Sequence[Path], hidden: Sequence[Path]) -> str:
    """Folders of the host that the machine has for itself, with what must be seen of the host's put back."""
    lines = ["mkdir -m 700 /run/host", "mkdir /run/host/folder", 'mount --bind "$folder" /run/host/folder']
    for number, path in enumerate(shown):
        lines += [f"mkdir /run/host/{number}", f"mount --bind {shlex.quote(str(path))} /run/host/{number}"]
    closed = {Path("/", *path.parts[1:2]) for path in shown if not _open_to_all(path)}
    for top in sorted(closed | {Path("/tmp"), Path("/home"), Path("/srv")}):
        lines.append(f"mount -t tmpfs -o mode={'1777' if top == Path('/tmp') else '755'} tmpfs {shlex.quote(str(top))}")
    for number, path in enumerate(shown):
        place = shlex.quote(str(path))
        lines += [f"mkdir -p {place}", f"mount --bind /run/host/{number} {place}"]
    for path in hidden:
        place = shlex.quote(str(path))
        lines.append(f'[ "$name" = {HEAD} ] || mount -t tmpfs tmpfs {place}')
    return "\n".join([*lines, "folder=/run/host/folder"])


def _open_to_all(path: Path) -> bool:
    return all(above.stat().st_mode & 0o001 for above in [path, *path.parents])
