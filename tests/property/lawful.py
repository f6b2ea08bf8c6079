"""What holds of every run, whatever happens to server, agents and machines; of a state machine."""

from hypothesis.stateful import invariant

from gangline.domain.phase import TERMINAL, TRANSITIONS, Phase


class Lawful:
    """Invariants of runs: their history, their ends, their stops."""

    @invariant()
    def history_is_legal(self):
        for run in self.ids:
            at = Phase.QUEUED
            for event in self.store.events(run):
                if event.kind == "phase":
                    old, new = Phase(event.data["old"]), Phase(event.data["new"])
                    resumed = old in {Phase.FAILED, Phase.STOPPED} and new is Phase.QUEUED
                    assert old is at
                    assert resumed or new in TRANSITIONS[old]
                    at = new
            assert at is self.store.run(run).phase

    @invariant()
    def endings_are_explained(self):
        for run in map(self.store.run, self.ids):
            if run.phase in TERMINAL:
                assert run.ended is not None
                assert run.exit_code is not None
                assert (run.phase is Phase.SUCCEEDED) == (run.reason is None)
                assert (run.phase is Phase.SUCCEEDED) == (run.exit_code == 0)

    @invariant()
    def a_stop_is_final(self):
        for run, launch in self.stopped.items():
            row = self.store.run(run)
            assert row.phase in TERMINAL | {Phase.STOPPING}
            assert row.launch == launch
