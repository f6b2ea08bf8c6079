"""What a cluster does with a compiled flow, on this machine: each container's own command, in a folder of its own.

`Cloud` is an S3 (and states, Batch, DynamoDB) that answers on loopback. `Image` is an interpreter that has what
Metaflow installs into containers, and neither Metaflow nor Gangline. `Argo` and `StepFunctions` start containers as the
orchestrator would: placeholders filled in, the environment that was printed, outputs read afterwards.
"""

from __future__ import annotations

import base64
import os
import re
import signal
import socket
import subprocess
import sys
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import distribution
from pathlib import Path
from typing import Any

import boto3
from tests.metaflow.flowruns import FLOWS

from gangline.client.http import httpx

PATIENCE_S = 300.0
_ROLE = "arn:aws:iam::123456789012:role/role"
BUCKET = "flows"
_INSTALLED = ("boto3", "botocore", "s3transfer", "jmespath", "python-dateutil", "six", "urllib3", "requests", "certifi")
_INSTALLED += ("idna", "charset-normalizer")
_SEPARATE = 'mount -t tmpfs none /mnt && mkdir /mnt/out && mount --bind "$0" /mnt/out && exec "$@"'


class Cloud:
    """moto's server, wherever it runs.

    Args:
        command: starts it.
        url: at which it answers here.
    """

    def __init__(self, folder: Path, command: Sequence[str], url: str) -> None:
        self.url = url
        self._log = (folder / "moto.log").open("w")
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, start_new_session=True)
        self._await()
        self.env = {
            "AWS_ACCESS_KEY_ID": "test",
            "AWS_SECRET_ACCESS_KEY": "test",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_ENDPOINT_URL": self.url,
            "METAFLOW_S3_ENDPOINT_URL": self.url,
            "METAFLOW_DATASTORE_SYSROOT_S3": f"s3://{BUCKET}/metaflow",
            "METAFLOW_BATCH_JOB_QUEUE": "queue",
            "METAFLOW_SFN_DYNAMO_DB_TABLE": "flows",
            **{f"METAFLOW_{name}_IAM_ROLE": _ROLE for name in ("SFN", "ECS_S3_ACCESS", "EVENTS_SFN_ACCESS")},
        }
        self.client("s3").create_bucket(Bucket=BUCKET)

    @classmethod
    def start(cls, folder: Path) -> Cloud:
        """Start one on this machine, with a queue for Step Functions."""
        port = free_port()
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        cloud = cls(folder, command, f"http://127.0.0.1:{port}")
        cloud._open_batch()
        return cloud

    def client(self, service: str) -> Any:
        keys = {"aws_access_key_id": "test", "aws_secret_access_key": "test", "region_name": "us-east-1"}
        return boto3.client(service, endpoint_url=self.url, **keys)

    def close(self) -> None:
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        self._log.close()

    def _open_batch(self) -> None:
        """A queue that jobs can be defined for, and the table in which Metaflow counts the tasks of a foreach."""
        (subnet, *_), (group, *_) = (
            self.client("ec2").describe_subnets()["Subnets"],
            self.client("ec2").describe_security_groups()["SecurityGroups"],
        )
        self.client("iam").create_role(RoleName="role", AssumeRolePolicyDocument="{}")
        profile = self.client("iam").create_instance_profile(InstanceProfileName="hosts")["InstanceProfile"]
        machines = {"type": "EC2", "minvCpus": 0, "maxvCpus": 8, "instanceTypes": ["m5.large"]}
        machines |= {"subnets": [subnet["SubnetId"]], "securityGroupIds": [group["GroupId"]]}
        batch = self.client("batch")
        made = batch.create_compute_environment(
            computeEnvironmentName="machines",
            type="MANAGED",
            state="ENABLED",
            serviceRole=_ROLE,
            computeResources={**machines, "instanceRole": profile["Arn"]},
        )
        order = [{"order": 1, "computeEnvironment": made["computeEnvironmentArn"]}]
        batch.create_job_queue(jobQueueName="queue", state="ENABLED", priority=1, computeEnvironmentOrder=order)
        self.client("dynamodb").create_table(
            TableName="flows",
            AttributeDefinitions=[{"AttributeName": "pathspec", "AttributeType": "S"}],
            KeySchema=[{"AttributeName": "pathspec", "KeyType": "HASH"}],
            BillingMode="PAY_PER_REQUEST",
        )

    def _await(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not self._answers():
            assert self._process.poll() is None, "moto has ended"
            assert time.monotonic() < deadline, "moto does not answer"
            time.sleep(0.1)

    def _answers(self) -> bool:
        try:
            httpx.get(f"{self.url}/moto-api/", trust_env=False)
        except httpx.TransportError:
            return False
        return True


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class Image:
    """An interpreter as a user's image has it."""

    def __init__(self, folder: Path) -> None:
        venv.create(folder, symlinks=True, with_pip=False)
        (packages,) = folder.glob("lib/python*/site-packages")
        for name in _INSTALLED:
            for file in distribution(name).files or ():
                top = file.parts[0]
                source = Path(str(distribution(name).locate_file(top)))
                if not top.startswith("..") and not (packages / top).exists():
                    (packages / top).symlink_to(source)
        self.bin = folder / "bin"


@dataclass
class Container:
    """One container that has ended, or still runs."""

    folder: Path
    process: subprocess.Popen[str]

    @property
    def output(self) -> str:
        return (self.folder / "output").read_text(errors="replace")

    def wait(self) -> int:
        return self.process.wait(PATIENCE_S)

    def until(self, words: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while words not in self.output:
            assert self.process.poll() is None, self.output
            assert time.monotonic() < deadline, self.output
            time.sleep(0.05)

    def out(self, name: str) -> str:
        """What the container has left for its orchestrator."""
        return (self.folder / "out" / name).read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@dataclass
class Machines:
    """Where containers run."""

    folder: Path
    bin: Path
    """Of the image: what has its interpreter."""
    env: Mapping[str, str]
    started: list[Container] = field(default_factory=list)

    def start(self, command: list[str], env: Mapping[str, str]) -> Container:
        """Start a container with a clean folder and nothing but this environment."""
        folder = self.folder / f"container-{len(self.started)}"
        for name in ("out", "tmp", "home"):
            (folder / name).mkdir(parents=True)
        mine = {"PATH": f"{self.bin}:/usr/bin:/bin", "HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp")}
        command = [word.replace("/tmp/mf-input-paths", str(folder / "input-paths")) for word in command]
        apart = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--map-root-user"])]
        with (folder / "output").open("w") as output:
            process = subprocess.Popen(
                [*apart, "sh", "-c", _SEPARATE, str(folder / "out"), *command],
                cwd=folder,
                env={**mine, "METAFLOW_SKIP_INSTALL_DEPENDENCIES": "1", **self.env, **env},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
            )
        self.started.append(Container(folder, process))
        return self.started[-1]

    def close(self) -> None:
        for one in self.started:
            one.close()


class Argo:
    """One workflow of a template that `argo-workflows create --only-json` has printed."""

    def __init__(self, template: Mapping[str, Any], machines: Machines, *, name: str = "three-x7k2p") -> None:
        spec = template["spec"]
        self._templates = {one["name"]: one for one in spec["templates"]}
        self._parameters = {one["name"]: one["value"] for one in spec["arguments"]["parameters"]}
        self._machines = machines
        self._name = name

    def template(self, step: str) -> Any:
        return self._templates[step]

    def start(self, step: str, *, retries: int = 0, env: Mapping[str, str] | None = None, **inputs: str) -> Container:
        """Start the pod of a step, with its inputs under the names that they have in Python."""
        given = {name.replace("_", "-"): value for name, value in inputs.items()}
        container = self._templates[step]["container"]

        def fill(text: str) -> str:
            text = re.sub(r"\{\{inputs\.parameters\.([\w-]+)\}\}", lambda found: given[found[1]], text)
            text = re.sub(r"\{\{=toBase64\(workflow\.parameters\['([\w-]+)'\]\)\}\}", self._encoded, text)
            known = {"workflow.name": self._name, "workflow.creationTimestamp": "2026-12-01", "retries": str(retries)}
            return re.sub(r"\{\{([\w.]+)\}\}", lambda found: known[found[1]], text)

        told = {one["name"]: fill(one["value"]) for one in container["env"] if one.get("value") is not None}
        from_field = {one["name"]: f"a-{one['name'].lower()}" for one in container["env"] if one.get("valueFrom")}
        return self._machines.start(
            [fill(word) for word in container["command"]], {**told, **from_field, **(env or {})}
        )

    def run(self, step: str, **inputs: str) -> Container:
        """Run the pod of a step, which has to succeed."""
        pod = self.start(step, **inputs)
        assert pod.wait() == 0, pod.output
        return pod

    def _encoded(self, found: re.Match[str]) -> str:
        return base64.b64encode(self._parameters[found[1]].encode()).decode()


class StepFunctions:
    """One execution of the state machine that `step-functions create --only-json` has printed."""

    def __init__(self, machine: Mapping[str, Any], machines: Machines) -> None:
        self._states = dict(_tasks(machine["States"]))
        self._machines = machines

    def run(self, step: str, *, job: str, **inputs: str) -> Container:
        """Run the job of a step, which has to succeed, under an id and with what its state hands over."""
        told = {"execution": "execution-1", **inputs}
        asked = self._states[step]["Parameters"]["ContainerOverrides"]
        env = {
            one["Name"]: one["Value"] if "Value" in one else told[_ASKED[one["Value.$"]]]
            for one in asked["Environment"]
        }
        names = {"AWS_BATCH_JOB_ID": job, "AWS_BATCH_JOB_ATTEMPT": "1", "AWS_EXECUTION_ENV": "AWS_ECS_EC2"}
        container = self._machines.start(
            asked["Command"], {**env, **names, "AWS_BATCH_CE_NAME": "machines", "AWS_BATCH_JQ_NAME": "queue"}
        )
        assert container.wait() == 0, container.output
        return container


_ASKED = {
    "$.Parameters": "parameters",
    "$$.Execution.Name": "execution",
    "$.Parameters.['metaflow.run_id']": "execution",
    "$.JobId": "parent",
    "$.SplitParentTaskId": "parent",
    "$.Parameters.split_parent_task_id_start": "parent",
    "$.Index": "index",
}
"""What stands for a value that the state machine knows, and what tests call it."""


def _tasks(states: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, state in states.items():
        yield name, state
        if state["Type"] == "Map":
            yield from _tasks((state.get("Iterator") or state["ItemProcessor"])["States"])


class Deployer:
    """Whoever deploys flows of these tests, from a project of their own."""

    def __init__(self, folder: Path, env: Mapping[str, str]) -> None:
        self._project = folder / "project"
        self._project.mkdir()
        mine = {name: value for name, value in os.environ.items() if not name.startswith(("METAFLOW_", "AWS_"))}
        home = {"HOME": str(folder / "home"), "GANGLINE_HOME": str(folder / "home/gangline")}
        self._env = {**mine, **home, **env, "METAFLOW_USER": "alice", "METAFLOW_DEFAULT_METADATA": "local"}

    def __call__(self, name: str, *command: str, put: tuple[str, str] = ("", ""), code: int = 0) -> str:
        """Run a command of a flow's file; its standard output, or its standard error where it fails.

        Args:
            put: a text of the file, and what takes its place.
            code: with which it has to end.
        """
        text = (FLOWS / f"{name}.py").read_text()
        (self._project / f"{name}.py").write_text(text.replace(*put) if put[0] else text)
        words = [sys.executable, f"{name}.py", "--datastore", "s3", *command]
        done = subprocess.run(words, cwd=self._project, env=self._env, capture_output=True, text=True, check=False)
        assert done.returncode == code, done.stderr
        return done.stderr if code else done.stdout
