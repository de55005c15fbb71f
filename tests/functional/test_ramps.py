import math

import pytest
import torch

from npmatch.functional.ramps import cosine_ramp, linear_ramp


@pytest.mark.parametrize(
    ("step", "length", "share"), [(0, 40, 0), (10, 40, 0.25), (40, 40, 1), (99, 40, 1), (0, 0, 1), (5, 0, 1)]
)
def test_a_ramp_goes_from_0_to_1_and_stays(step, length, share):
    step, length = torch.tensor(step), torch.tensor(float(length))
    assert linear_ramp(step, length).item() == pytest.approx(share)
    assert cosine_ramp(step, length).item() == pytest.approx((1 - math.cos(math.pi * share)) / 2, abs=1e-6)


def test_a_ramp_is_exact_to_the_end_of_a_long_run():
    last = torch.tensor(float(2**20))
    assert linear_ramp(torch.tensor(2**20 - 1), last).item() == (2**20 - 1) / 2**20
