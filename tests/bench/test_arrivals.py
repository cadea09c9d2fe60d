from itertools import islice

import numpy as np
import pytest

from orthrus.bench.arrivals import arrival_times, gaps


@pytest.mark.parametrize("burstiness", [0.5, 1.0, 4.0])
def test_gaps_have_the_gamma_mean_and_variance(burstiness):
    rate, count = 20.0, 40_000
    drawn = np.array(list(islice(gaps(rate, burstiness, seed=5), count)))
    mean, variance = 1 / rate, 1 / (burstiness * rate**2)
    assert abs(drawn.mean() - mean) < 5 * np.sqrt(variance / count)
    # The variance of a sample variance is variance² (2 + excess kurtosis) / n, with kurtosis 6 / shape.
    assert abs(drawn.var() - variance) < 5 * variance * np.sqrt((2 + 6 / burstiness) / count)


def test_poisson_counts_in_a_window():
    counts = [len(arrival_times(3.0, 1.0, seed, seconds=100.0)) for seed in range(200)]
    assert abs(np.mean(counts) - 300) < 5 * np.sqrt(300 / 200)
    assert 0.7 < np.var(counts) / 300 < 1.4  # Poisson: variance equals mean


def test_a_count_is_stretched_to_the_rate_exactly():
    times = arrival_times(4.0, 0.5, seed=1, count=50)
    assert len(times) == 50
    assert times[-1] == pytest.approx(12.5)
    assert times == sorted(times)


def test_a_window_ends_before_its_seconds_and_depends_on_the_seed_only():
    times = arrival_times(10.0, 1.0, seed=2, seconds=5.0)
    assert max(times) < 5.0
    assert times == arrival_times(10.0, 1.0, seed=2, seconds=5.0)
    assert times != arrival_times(10.0, 1.0, seed=3, seconds=5.0)


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (1, 0), (float("nan"), 1)])
def test_rates_that_are_not_allowed(rate, burstiness):
    with pytest.raises(ValueError, match="must be greater than 0"):
        next(gaps(rate, burstiness, 0))
