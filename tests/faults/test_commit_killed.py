"""C2: a saving loop is killed -9 at random moments; whatever the moment, `latest` is something that loads."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from gangline.rundir.checkpoints import FoundCheckpoint, find_checkpoints, judge, newest_complete

KILLS = 100
KEEP_LAST = 2

WRITER = """
import os, time
import gangline
latest = gangline.latest_checkpoint()
step = latest.step if latest else 0
print("ready", flush=True)
while True:
    step += 1
    with gangline.checkpoint(step) as path:
        for shard in range(3):
            with open(path / f"shard-{shard}", "wb") as file:
                for _ in range(4):
                    file.write(b"%d," % step * 200)
                    file.flush()
                    time.sleep(0.0005)
    print(step, flush=True)
"""

pytestmark = pytest.mark.faults


class Chance:
    """Picks the moments of death: some saves after the start, and a part of the time that a save takes here."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._save_s = 0.01

    def saves(self) -> int:
        return self._random.randrange(3)

    def delay_s(self) -> float:
        return self._random.uniform(0.0, 1.5 * self._save_s)

    def note(self, save_s: float) -> None:
        self._save_s = 0.8 * self._save_s + 0.2 * save_s


def live_and_be_killed(root: Path, chance: Chance) -> int:
    """Start a writer, kill it a while later; returns the last step that it said was saved, 0 for none."""
    env = {**os.environ, "GANGLINE_CHECKPOINT_DIR": str(root), "GANGLINE_KEEP_LAST": str(KEEP_LAST)}
    with subprocess.Popen(
        [sys.executable, "-c", WRITER], env=env, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as writer:
        assert writer.stdout is not None
        assert writer.stdout.readline() == b"ready\n"
        said = 0
        for _ in range(chance.saves()):
            began = time.monotonic()
            said = int(writer.stdout.readline())
            chance.note(time.monotonic() - began)
        time.sleep(chance.delay_s())  # the moment of death is what this test is about
        writer.send_signal(signal.SIGKILL)
        assert writer.wait() == -signal.SIGKILL
    return said


def assert_loads(found: FoundCheckpoint) -> None:
    assert judge(found.path, checksums=True).complete
    for shard in range(3):
        assert (found.path / f"shard-{shard}").read_bytes() == b"%d," % found.step * 800


@pytest.mark.timeout(600)
def test_latest_loads_after_every_kill(tmp_path: Path) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print(f"seed {seed}")
    chance = Chance(seed)
    newest_step = 0
    for _ in range(KILLS):
        said = live_and_be_killed(tmp_path, chance)
        found, _ = newest_complete(tmp_path, checksums=True)
        if found is None:
            assert newest_step == said == 0
            assert not os.path.lexists(tmp_path / "latest")
            continue
        assert found.step >= max(newest_step, said)
        newest_step = found.step
        assert_loads(found)
        if os.path.lexists(tmp_path / "latest"):
            pointed = judge((tmp_path / "latest").resolve(strict=True))
            assert pointed.step <= newest_step  # behind, if the kill came before the move
            assert_loads(pointed)
    complete = [one for one in find_checkpoints(tmp_path) if one.complete]
    assert newest_step > 0
    assert len(complete) <= KEEP_LAST + 2
    assert len(find_checkpoints(tmp_path)) <= KEEP_LAST + 4  # what was cut off is tidied up by those that come after
