"""The store on a real LanceDB folder: exact cosine search, replacement, reopening and refusals."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from orthrus.retrieval.passages import Passage
from orthrus.retrieval.store import DimensionMismatchError, EmptyStoreError, VectorStore


def passages(count: int) -> list[Passage]:
    return [Passage(f"p{i}", f"Title {i}", f"Text {i}", "a test", "none") for i in range(count)]


def vectors(count: int, dimensions: int, seed: int = 0) -> np.ndarray:
    # Lengths differ by far, so that a search by dot product or L2 would order the rows otherwise.
    rng = np.random.default_rng(seed)
    return (rng.normal(size=(count, dimensions)) * rng.uniform(0.01, 50, (count, 1))).astype(np.float32)


def test_search_is_exact_by_cosine(tmp_path: Path) -> None:
    rows, queries = vectors(500, 24), vectors(20, 24, seed=1)
    store = VectorStore(tmp_path / "store", 24)
    store.add(passages(500), rows)
    assert len(store) == 500
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    for query in queries:
        cosines = unit @ (query / np.linalg.norm(query))
        expected = np.argsort(-cosines)[:5]
        hits = store.search(query, 5)
        assert [hit.passage.id for hit in hits] == [f"p{i}" for i in expected]
        assert [hit.similarity for hit in hits] == pytest.approx(cosines[expected].tolist(), abs=1e-5)


def test_a_hit_carries_the_whole_passage_and_fewer_than_k_come_from_a_small_store(tmp_path: Path) -> None:
    store = VectorStore(tmp_path, 3)
    store.add(passages(2), np.eye(3, dtype=np.float32)[:2])
    hits = store.search(np.array([0, 2, 0], np.float32), 9)
    assert [hit.passage for hit in hits] == [passages(2)[1], passages(2)[0]]
    assert [hit.similarity for hit in hits] == pytest.approx([1, 0])


def test_the_store_survives_reopening_and_replaces_by_id(tmp_path: Path) -> None:
    VectorStore(tmp_path, 2).add(passages(2), np.array([[1, 0], [0, 1]], np.float32))
    store = VectorStore(tmp_path, 2)
    store.add(passages(3)[1:], np.array([[1, 0], [-1, 0]], np.float32))
    assert len(store) == 3
    assert {hit.passage.id for hit in store.search(np.array([1, 0], np.float32), 2)} == {"p0", "p1"}


def test_an_empty_store_refuses_a_search(tmp_path: Path) -> None:
    store = VectorStore(tmp_path, 2)
    store.add([], np.zeros((0, 2), np.float32))
    with pytest.raises(EmptyStoreError, match="no passage"):
        store.search(np.ones(2, np.float32), 1)


def test_another_dimension_is_refused_everywhere(tmp_path: Path) -> None:
    store = VectorStore(tmp_path, 4)
    with pytest.raises(DimensionMismatchError, match=r"\(2, 5\).*\[n, 4\]"):
        store.add(passages(2), np.ones((2, 5), np.float32))
    store.add(passages(2), np.ones((2, 4), np.float32))
    with pytest.raises(DimensionMismatchError, match=r"\(3,\).*\[4\]"):
        store.search(np.ones(3, np.float32), 1)
    with pytest.raises(DimensionMismatchError, match="4 numbers, not 6"):
        VectorStore(tmp_path, 6)
    assert len(store) == 2


def test_bad_values_are_refused_and_leave_the_store_as_it_was(tmp_path: Path) -> None:
    store = VectorStore(tmp_path, 2)
    with pytest.raises(ValueError, match="2 passages but 1 vectors"):
        store.add(passages(2), np.ones((1, 2), np.float32))
    with pytest.raises(ValueError, match="vector 1 is not finite"):
        store.add(passages(2), np.array([[1, 1], [np.nan, 1]], np.float32))
    with pytest.raises(ValueError, match="same id"):
        store.add([passages(1)[0]] * 2, np.ones((2, 2), np.float32))
    assert len(store) == 0
    store.add(passages(1), np.ones((1, 2), np.float32))
    for vector in ([0, 0], [np.inf, 1]):
        with pytest.raises(ValueError, match="no direction"):
            store.search(np.array(vector, np.float32), 1)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        store.search(np.ones(2, np.float32), 0)
    with pytest.raises(ValueError, match="at least 1, not 0"):
        VectorStore(tmp_path / "other", 0)
