from gangline.alone import read_end
from gangline.rundir.files import write_json
from gangline.rundir.layout import RunDir


def result(run, attempt, outcome, **keys):
    run.attempt(attempt).path.mkdir(parents=True)
    write_json(run.attempt(attempt).result, {"attempt": attempt, "outcome": outcome, **keys})


def test_the_newest_attempt_says_how_it_ended(tmp_path):
    run = RunDir(tmp_path)
    result(run, 0, "failed", reason="user_error", message="Rank 1 failed.")
    assert read_end(tmp_path).phase == "failed"
    result(run, 1, "succeeded", reason=None, message="")
    ended = read_end(tmp_path)
    assert (ended.phase, [one["attempt"] for one in ended.attempts]) == ("succeeded", [0, 1])
    assert [one["attempt"] for one in read_end(tmp_path, first_attempt=1).attempts] == [1]


def test_a_preempted_gang_has_failed(tmp_path):
    result(RunDir(tmp_path), 0, "preempted", reason="preempted", message="It was told to end.")
    assert (read_end(tmp_path).phase, read_end(tmp_path).reason) == ("failed", "preempted")


def test_without_a_result_the_last_words_of_the_agent_are_told(tmp_path):
    run = RunDir(tmp_path)
    run.attempt(0).path.mkdir(parents=True)
    run.launch(0).path.mkdir(parents=True)
    run.launch(0).log(0).write_text("gangline agent: out of luck\n")
    ended = read_end(tmp_path)
    assert (ended.phase, ended.reason) == ("failed", "platform")
    assert "out of luck" in ended.message
