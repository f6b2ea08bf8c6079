"""Gangs that are one of many: in a foreach inside another, behind its first step, and in a step that a switch repeats.

Each saves under a number that tells its items, and fails as long as it is asked to.
"""

import os
import time
from pathlib import Path

from metaflow import FlowSpec, gang, step

import gangline

MARK = Path(os.environ.get("MARK", "/nowhere"))
OPTIONS = {"label": f"test.folder={MARK}", "env": {"MARK": str(MARK)}, "card": False}


def begin_and_save(what, number):
    found = gangline.latest_checkpoint()
    print(f"{what} begins at {0 if found is None else found.step}", flush=True)
    with gangline.checkpoint(step=number) as folder:
        (folder / "weights").write_text(what)
    (MARK / f"saved-{what}").touch()


def fail_once_all_have_saved(name, count):
    if (MARK / name).exists():
        while len(list(MARK.glob("saved-*"))) < count:
            time.sleep(0.05)
        raise ValueError(name)


class PartsFlow(FlowSpec):
    @step
    def start(self):
        self.outer = os.environ["OUTER"].split()
        self.next(self.fan, foreach="outer")

    @step
    def fan(self):
        seeds = [seed for seed in map(int, os.environ["INNER"].split()) if self.input == "cats" or seed == 1]
        self.what, self.inner = self.input, [{"seed": seed} for seed in seeds]
        self.next(self.prepare, foreach="inner")

    @step
    def prepare(self):
        self.seed = self.input["seed"]
        self.next(self.train)

    @gang(**OPTIONS)
    @step
    def train(self):
        begin_and_save(f"{self.what}{self.seed}", {"cats": 100, "dogs": 200}[self.what] + self.seed)
        fail_once_all_have_saved("train-fails", 3)
        self.next(self.join)

    @step
    def join(self, inputs):
        self.merge_artifacts(inputs, include=["outer", "what"])
        self.next(self.join_all)

    @step
    def join_all(self, inputs):
        self.whats, self.round, self.goes_on = [one.what for one in inputs], 0, "yes"
        self.next(self.tune)

    @gang(**OPTIONS)
    @step
    def tune(self):
        begin_and_save(f"round{self.round}", 1000 + self.round)
        if self.round == 1:
            fail_once_all_have_saved("tune-fails", 0)
        self.round += 1
        self.goes_on = "yes" if self.round < 2 else "no"
        self.next({"yes": self.tune, "no": self.end}, condition="goes_on")

    @step
    def end(self):
        pass


if __name__ == "__main__":
    PartsFlow()
