import pytest

from gangline.backends.slurm.waits import WAITS, explain_wait

# of squeue 22.05
LIMITS = [
    "QOSGrpCpuLimit",
    "QOSGrpCPUMinutesLimit",
    "QOSGrpCPURunMinutesLimit",
    "QOSGrpJobsLimit",
    "QOSGrpMemLimit",
    "QOSGrpNodeLimit",
    "QOSGrpSubmitJobsLimit",
    "QOSGrpWallLimit",
    "QOSMaxCpuPerJobLimit",
    "QOSMaxCpuMinutesPerJobLimit",
    "QOSMaxNodePerJobLimit",
    "QOSMaxWallDurationPerJobLimit",
    "QOSMaxCpuPerUserLimit",
    "QOSMaxJobsPerUserLimit",
    "QOSMaxNodePerUserLimit",
    "QOSMaxSubmitJobPerUserLimit",
    "QOSMinCpuNotSatisfied",
    "AssocGrpCpuLimit",
    "AssocGrpCPUMinutesLimit",
    "AssocGrpCPURunMinutesLimit",
    "AssocGrpJobsLimit",
    "AssocGrpMemLimit",
    "AssocGrpNodeLimit",
    "AssocGrpSubmitJobsLimit",
    "AssocGrpWallLimit",
    "AssocMaxJobsLimit",
    "AssocMaxCpuPerJobLimit",
    "AssocMaxCpuMinutesPerJobLimit",
    "AssocMaxNodePerJobLimit",
    "AssocMaxWallDurationPerJobLimit",
    "AssocMaxSubmitJobLimit",
    "AssocGrpGRES",
    "AssocGrpGRESMinutes",
    "AssocGrpGRESRunMinutes",
    "AssocMaxGRESPerJob",
    "AssocMaxGRESPerNode",
    "AssocMaxGRESMinutesPerJob",
    "QOSGrpGRES",
    "QOSGrpGRESMinutes",
    "QOSGrpGRESRunMinutes",
    "QOSMaxGRESPerJob",
    "QOSMaxGRESPerNode",
    "QOSMaxGRESPerUser",
    "QOSMaxGRESMinutesPerJob",
    "QOSMinGRES",
    "QOSGrpLicense",
    "QOSMaxLicensePerUser",
    "QOSGrpBB",
    "QOSMaxBBPerUser",
    "QOSGrpEnergy",
    "QOSMaxMemoryPerUser",
    "QOSMaxMemoryPerJob",
    "QOSMinMemory",
    "QOSGrpBilling",
    "QOSMaxBillingPerUser",
    "MaxGRESPerAccount",
    "MaxJobsPerAccount",
    "MaxSubmitJobsPerAccount",
    "MaxCpuPerAccount",
    "MaxNodePerAccount",
    "MaxMemoryPerAccount",
    "MaxBillingPerAccount",
    "AssocMaxUnknownPerJob",
    "AssocGrpMemRunMinutes",
    "QOSMaxUnknownPerUser",
    "MaxLicensePerAccount",
    "MaxEnergyPerAccount",
]

NEVER = [
    "DependencyNeverSatisfied",
    "PartitionNodeLimit",
    "PartitionTimeLimit",
    "PartitionConfig",
    "BadConstraints",
    "AccountNotAllowed",
    "QOSNotAllowed",
    "InvalidQOS",
    "InvalidAccount",
    "MaxMemPerLimit",
    "ReservationDeleted",
    "QOSMaxCpuPerJobLimit",
    "QOSMaxGRESPerJob",
    "QOSMaxWallDurationPerJobLimit",
    "AssocMaxGRESPerNode",
    "QOSMinGRES",
    "QOSMinCpuNotSatisfied",
    "AssocMaxWallDurationPerJobLimit",
    "QOSTimeLimit",
    "AssociationTimeLimit",
    "QOSMaxNodePerJobLimit",
    "JobHoldMaxRequeue",
]


@pytest.mark.parametrize("word", [*WAITS, *LIMITS])
def test_every_word_is_a_sentence(word):
    wait = explain_wait(word)
    assert wait.text != "Slurm's own words"
    assert wait.text[0].islower() or wait.text.startswith("Slurm")
    assert not wait.text.endswith(".")
    assert wait.fix.endswith(".") or not wait.fix


def test_what_can_never_start_is_marked_and_says_what_to_do():
    said = {word for word in [*WAITS, *LIMITS] if explain_wait(word).never}
    assert said >= set(NEVER)
    assert not said & {
        "Priority",
        "Resources",
        "QOSMaxGRESPerUser",
        "AssocGrpGRES",
        "BeginTime",
        "Licenses",
        "JobHeldUser",
    }
    assert not said & {
        "MaxGRESPerAccount",
        "QOSGrpJobsLimit",
        "ReqNodeNotAvail",
        "Dependency",
        "AssocGrpCPUMinutesLimit",
    }
    assert all(explain_wait(word).fix for word in said)


@pytest.mark.parametrize(
    ("said", "word", "part"),
    [
        ("(Resources)", "Resources", "no room"),
        ("priority", "priority", "come first"),
        ("ReqNodeNotAvail, UnavailableNodes:node03", "ReqNodeNotAvail", "(UnavailableNodes:node03)"),
        ("ReqNodeNotAvail,_UnavailableNodes:node03", "ReqNodeNotAvail", "(UnavailableNodes:node03)"),
        (
            "Nodes_required_for_job_are_DOWN,_DRAINED_or_reserved_for_jobs_in_higher_priority_partitions",
            "Nodes DOWN, DRAINED or reserved",
            "down, drained or kept",
        ),
        ("Nodes required for job are DOWN, DRAINED or reserved", "Nodes DOWN, DRAINED or reserved", "down, drained"),
        ("", "None", "not looked at it yet"),
        ("QOSMaxGRESPerUser", "QOSMaxGRESPerUser", "its QOS has reached its limit of GPUs"),
        ("AssocGrpCPUMinutesLimit", "AssocGrpCPUMinutesLimit", "its account has used up its minutes of CPUs"),
        ("SiteBrewsCoffee", "SiteBrewsCoffee", "Slurm's own words"),
        ("launch_failed_requeued_held", "launch failed requeued held", "is held now"),
    ],
)
def test_forms_in_which_a_word_comes(said, word, part):
    wait = explain_wait(said)
    assert wait.word == word
    assert part in wait.text


def test_a_word_that_nobody_knows_concludes_nothing():
    assert not explain_wait("QOSNeverHeardOf").never
