"""Started when a fine-tuning ends: take the model if it was promoted, and try it.

python release.py run                                    # of the newest run that was promoted
python release.py --trigger FineTuneFlow/1234 run        # as an event would start it
"""

import hashlib

from english import unpack, write
from metaflow import Flow, FlowSpec, current, project, step, trigger_on_finish
from metaflow.exception import MetaflowException, MetaflowNotFound

PROD_READY = "prod-ready"


class NothingToReleaseError(MetaflowException):
    headline = "Nothing to release"


@trigger_on_finish(flow="FineTuneFlow")
@project(name="english")
class ReleaseFlow(FlowSpec):
    @step
    def start(self):
        trained = self.find_run()
        self.source = trained.pathspec
        self.promoted = trained["promote"].task["promoted"].data
        self.weights = trained["judge"].task["weights"].data
        self.next(self.check)

    @step
    def check(self):
        if hashlib.sha256(self.weights).hexdigest() != self.promoted["sha256"]:
            raise NothingToReleaseError(f"The weights of {self.source} are not those that were evaluated.")
        self.sample = write(unpack(self.weights), "The statement ", length=200)
        self.next(self.end)

    @step
    def end(self):
        print(f"Released {self.promoted['sha256'][:12]} of {self.source}. It writes:\n{self.sample}")

    def find_run(self):
        """The run that started this one, or else the newest that was promoted."""
        if current.get("trigger") is not None:
            (found,) = current.trigger.runs
            if PROD_READY not in found.tags:
                raise NothingToReleaseError(f"{found.pathspec} is not {PROD_READY}.")
            return found
        try:
            return next(iter(Flow("FineTuneFlow").runs(PROD_READY)))
        except (MetaflowNotFound, StopIteration):
            words = "No run of FineTuneFlow was promoted yet: `python finetune.py run` makes one."
            raise NothingToReleaseError(words) from None


if __name__ == "__main__":
    ReleaseFlow()
