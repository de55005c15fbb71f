from __future__ import annotations

import pytest
import torch

from npmatch.functional import chance

MASK = (1 << 64) - 1


def splitmix64(x: int) -> int:
    """The same hash on Python's unbounded numbers."""
    x = (x + 0x9E3779B97F4A7C15) & MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & MASK
    return x ^ (x >> 31)


def draws(seed: int = 0, step: int = 0, purpose: int = 0, num: int = 20_000) -> torch.Tensor:
    return chance.uniform(chance.key(seed, step, purpose), torch.arange(num), 1)[:, 0].double()


def test_scramble_is_splitmix64():
    first_outputs = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]  # of the generator seeded with 0
    states = [(i * 0x9E3779B97F4A7C15) & MASK for i in range(3)]
    assert [splitmix64(x) for x in states] == first_outputs
    numbers = [0, 1, 2**63 - 1, 2**63, MASK, 0x123456789ABCDEF0, *states]
    signed = torch.tensor([x - (1 << 64) if x >> 63 else x for x in numbers])
    assert [int(x) & MASK for x in chance.scramble(signed)] == [splitmix64(x) for x in numbers]


def test_a_draw_depends_on_its_address_alone():
    key = chance.key(3, 7, 1)
    whole = chance.uniform(key, torch.arange(100), 4)
    torch.testing.assert_close(chance.uniform(key, torch.arange(40, 60), 4), whole[40:60], rtol=0, atol=0)
    torch.testing.assert_close(chance.uniform(key, torch.tensor([99, 0]), 4), whole[[99, 0]], rtol=0, atol=0)
    torch.testing.assert_close(chance.uniform(key, torch.arange(100), 2), whole[:, :2], rtol=0, atol=0)
    assert chance.key(3, torch.tensor(7), 1) == key
    assert chance.number(3, 7, 1) == int(key) & ((1 << 63) - 1)


def test_uniform_numbers_are_uniform():
    u = draws(num=200_000)
    assert u.min() >= 0 and u.max() < 1
    counts = torch.histc(u, bins=100, min=0, max=1)
    chi_squared = ((counts - 2000) ** 2 / 2000).sum()
    assert 55 < chi_squared < 160  # 99 degrees of freedom: both ends are beyond 1 in 1000
    assert set(chance.integers(chance.key(0, 0, 0), torch.arange(1000), 7).tolist()) == set(range(7))


@pytest.mark.parametrize("other", [{"seed": 1}, {"step": 1}, {"purpose": 1}, {"seed": -1}, {"step": 2**20}])
def test_neighboring_addresses_are_unrelated(other):
    pair = torch.stack([draws(), draws(**other)])
    assert abs(torch.corrcoef(pair)[0, 1]) < 0.03  # four standard deviations


def test_neighboring_places_and_draws_are_unrelated():
    u = chance.uniform(chance.key(0, 0, 0), torch.arange(20_001), 2).double()
    for pair in ((u[1:, 0], u[:-1, 0]), (u[:, 0], u[:, 1]), (u[1:, 0], u[:-1, 1])):
        assert abs(torch.corrcoef(torch.stack(pair))[0, 1]) < 0.03


def test_seeds_and_steps_do_not_stand_in_for_each_other():
    keys = {int(chance.key(seed, step, purpose)) for seed in range(20) for step in range(50) for purpose in range(5)}
    assert len(keys) == 20 * 50 * 5
