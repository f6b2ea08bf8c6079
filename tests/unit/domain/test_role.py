"""What runs beside a rank does not join its gang, whatever the strategy."""

import pytest

from gangline.domain.role import leave_out_role


@pytest.mark.parametrize(
    "name", ["MASTER_ADDR", "JAX_COORDINATOR_ADDRESS", "RAY_ADDRESS", "TF_CONFIG", "TORCH_NCCL_DUMP_ON_TIMEOUT"]
)
def test_the_variables_of_the_role_are_left_out_and_no_others(name):
    assert leave_out_role({name: "x", "LR": "1", "RANK": "3"}) == {"LR": "1", "RANK": "3"}
