"""The counter-based randomness: what it depends on, what it does not, and how it is distributed."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from flipguard.data.randomness import random_bits, random_normal, random_order, random_uniform

SEEDS = st.integers(-(2**63), 2**63 - 1)
COUNTERS = st.integers(0, 10**6)
MASK = 2**64 - 1


def splitmix(state: int) -> int:
    """splitmix64's output function on unsigned Python integers."""
    z = state & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def reference_bits(seed: int, counter: int, index: int, stream: int) -> int:
    golden = 0x9E3779B97F4A7C15
    key = splitmix(splitmix(seed + golden) + stream * golden)
    state = splitmix(key ^ splitmix(counter + golden))
    return splitmix(state + (index + 1) * golden)


@settings(deadline=None, max_examples=50)
@given(seed=SEEDS, counter=COUNTERS, index=st.integers(0, 2**40), stream=st.integers(0, 9))
def test_bits_equal_a_loop_over_unsigned_integers(seed: int, counter: int, index: int, stream: int) -> None:
    found = int(random_bits(seed, counter, torch.tensor([index]), stream=stream)) & MASK
    assert found == reference_bits(seed, counter, index, stream)


def test_splitmix_reference_is_the_published_generator() -> None:
    # The first outputs of splitmix64 started at 0, as published with the generator.
    golden = 0x9E3779B97F4A7C15
    assert [splitmix((i + 1) * golden) for i in range(3)] == [
        0xE220A8397B1DCDAF,
        0x6E789E6AA1B965F4,
        0x06C45D188009454F,
    ]


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, counter=COUNTERS, order_seed=st.integers(0, 999))
def test_a_row_depends_on_its_own_index_alone(seed: int, counter: int, order_seed: int) -> None:
    index = torch.arange(101)
    shuffled = index[torch.from_numpy(np.random.default_rng(order_seed).permutation(101))]
    whole = random_bits(seed, counter, index)
    assert torch.equal(random_bits(seed, counter, shuffled), whole[shuffled])
    assert torch.equal(torch.cat([random_bits(seed, counter, part) for part in index.split(7)]), whole)


@settings(deadline=None, max_examples=30)
@given(seed=SEEDS, counter=COUNTERS)
def test_a_counter_in_a_tensor_is_the_same_counter(seed: int, counter: int) -> None:
    index = torch.arange(11)
    expected = random_bits(seed, counter, index)
    assert torch.equal(random_bits(seed, torch.tensor(counter), index), expected)
    assert torch.equal(random_bits(torch.tensor(seed), torch.tensor(counter), index), expected)


def test_every_key_matters() -> None:
    index = torch.arange(1009)
    draws = [
        random_bits(seed, counter, index, stream=stream)
        for seed in (0, 1, -1)
        for counter in (0, 1, 2)
        for stream in (1, 2, 3)
    ]
    assert len(torch.cat(draws).unique()) == 27 * 1009


def test_seed_and_counter_are_not_interchangeable() -> None:
    index = torch.arange(101)
    assert not (random_bits(1, 2, index) == random_bits(2, 1, index)).any()
    assert not (random_bits(1, 2, index, stream=3) == random_bits(1, 3, index, stream=2)).any()


@pytest.mark.parametrize(("seed", "counter"), [(0, 0), (0, 1), (1, 0), (12345, 99)])
def test_uniform_over_the_unit_interval(seed: int, counter: int) -> None:
    draws = random_uniform(seed, counter, torch.arange(20_011))
    assert draws.dtype == torch.float32
    assert float(draws.min()) >= 0
    assert float(draws.max()) < 1
    assert stats.kstest(draws.numpy(), "uniform").pvalue > 1e-4


def test_every_bit_is_a_fair_coin_and_uncorrelated_with_the_next_index() -> None:
    n = 40_009
    bits = random_bits(7, 3, torch.arange(n)).numpy()
    coins = (bits[:, None] >> np.arange(64)) & 1
    # Five standard deviations of a mean of n fair coins.
    limit = 5 * 0.5 / np.sqrt(n)
    assert np.abs(coins.mean(0) - 0.5).max() < limit
    assert np.abs((coins[1:] ^ coins[:-1]).mean(0) - 0.5).max() < limit


@pytest.mark.parametrize("other", [(1, 0, 5), (0, 1, 5), (0, 0, 4)], ids=["seed", "counter", "stream"])
def test_draws_under_neighbouring_keys_are_independent(other: tuple[int, int, int]) -> None:
    index = torch.arange(20_011)
    a = random_uniform(0, 0, index, stream=5).numpy()
    b = random_uniform(other[0], other[1], index, stream=other[2]).numpy()
    table, _, _ = np.histogram2d(a, b, bins=8)
    assert stats.chi2_contingency(table).pvalue > 1e-4


def test_several_draws_per_row_are_distinct_and_keyed_by_the_row() -> None:
    index = torch.arange(53)
    draws = random_uniform(7, 0, index, draws=31)
    assert draws.shape == (53, 31)
    assert len(draws.unique()) > 53 * 31 - 5
    assert torch.equal(random_uniform(7, 0, index.flip(0), draws=31), draws.flip(0))
    assert abs(float(np.corrcoef(draws[:-1].flatten(), draws[1:].flatten())[0, 1])) < 0.12


def test_normal_draws_are_normal() -> None:
    draws = random_normal(7, 0, torch.arange(1009), draws=19)
    assert torch.isfinite(draws).all()
    assert stats.kstest(draws.flatten().numpy(), "norm").pvalue > 1e-4
    assert torch.equal(random_normal(7, 0, torch.tensor([5]), draws=19)[0], draws[5])


def test_order_is_a_permutation_and_uniform() -> None:
    assert torch.equal(random_order(7, 0, 1009).sort().values, torch.arange(1009))
    first = torch.stack([random_order(seed, 0, 5) for seed in range(3001)])
    for place in range(5):
        counts = torch.bincount(first[:, place], minlength=5).numpy()
        assert stats.chisquare(counts).pvalue > 1e-4


def test_global_generators_are_neither_used_nor_moved() -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    first = random_normal(7, 0, torch.arange(5), draws=3)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(random_normal(7, 0, torch.arange(5), draws=3), first)
