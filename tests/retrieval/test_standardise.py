"""Standardisation against its definition."""

from __future__ import annotations

import numpy as np
import pytest

from orthrus.retrieval.standardise import Standardiser


def test_vectors_are_centred_scaled_and_of_length_one() -> None:
    rng = np.random.default_rng(0)
    vectors = (rng.normal(size=(200, 8)) * [1, 2, 3, 4, 5, 6, 7, 0.1] + 30).astype(np.float32)
    result = Standardiser.fit(vectors).apply(vectors)
    expected = (vectors - vectors.mean(0)) / vectors.std(0)
    np.testing.assert_allclose(result, expected / np.linalg.norm(expected, axis=1, keepdims=True), atol=1e-5)
    assert result.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, atol=1e-5)


def test_a_query_is_treated_with_the_statistics_of_the_collection() -> None:
    standardiser = Standardiser.fit(np.array([[0, 0], [2, 4]], np.float32))
    np.testing.assert_allclose(standardiser.apply(np.array([2, 2], np.float32)), [1, 0])


def test_a_constant_dimension_and_the_mean_itself_stay_finite() -> None:
    standardiser = Standardiser.fit(np.array([[1, 5], [3, 5]], np.float32))
    np.testing.assert_allclose(standardiser.apply(np.array([[2, 5], [3, 5]], np.float32)), [[0, 0], [1, 0]])


@pytest.mark.parametrize("vectors", [np.ones((1, 3)), np.ones(3), np.ones((0, 3))])
def test_too_few_vectors_are_refused(vectors: np.ndarray) -> None:
    with pytest.raises(ValueError, match="at least two"):
        Standardiser.fit(vectors.astype(np.float32))
