"""Passages and their vectors in a LanceDB table; exact search by cosine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import lancedb
import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from orthrus.retrieval.passages import Passage

TABLE = "passages"


class EmptyStoreError(LookupError):
    """A search in a store that holds no passage."""


class DimensionMismatchError(ValueError):
    """Vectors of another length than the store's."""


@dataclass(frozen=True)
class Hit:
    """A passage found, with its cosine similarity to the query (-1 to 1)."""

    passage: Passage
    similarity: float


class VectorStore:
    """Passages with float32 vectors of one length, in a folder on disk.

    Without an index LanceDB compares the query with every row, so results are exact; for the some
    hundred to some ten thousand passages meant here that takes milliseconds.
    """

    def __init__(self, folder: Path, dimensions: int) -> None:
        """Open the store in `folder`, or create it.

        Raises DimensionMismatchError when it holds vectors of another length.
        """
        if dimensions < 1:
            raise ValueError(f"dimensions must be at least 1, not {dimensions}")
        self.dimensions = dimensions
        database = lancedb.connect(folder)
        if TABLE in database.list_tables().tables:
            self._table = database.open_table(TABLE)
        else:
            columns = [pa.field(field.name, pa.string()) for field in fields(Passage)]
            vector = pa.field("vector", pa.list_(pa.float32(), dimensions))
            self._table = database.create_table(TABLE, schema=pa.schema([*columns, vector]))
        found = self._table.schema.field("vector").type.list_size
        if found != dimensions:
            raise DimensionMismatchError(
                f"the store in {folder} holds vectors of {found} numbers, not {dimensions}"
            )

    def __len__(self) -> int:
        return int(self._table.count_rows())

    def add(self, passages: Sequence[Passage], vectors: NDArray[np.float32]) -> None:
        """Store `vectors` [n, dimensions], row i for passage i; a passage whose id is there is replaced.

        Raises DimensionMismatchError for another length and ValueError for another number of rows, for
        numbers that are not finite and for an id given twice.
        """
        vectors = np.asarray(vectors, dtype=np.float32)
        if vectors.ndim != 2 or vectors.shape[1] != self.dimensions:
            raise DimensionMismatchError(
                f"vectors have shape {vectors.shape}; the store takes [n, {self.dimensions}]"
            )
        if len(passages) != len(vectors):
            raise ValueError(f"{len(passages)} passages but {len(vectors)} vectors")
        if not np.isfinite(vectors).all():
            raise ValueError(f"vector {int(np.argmin(np.isfinite(vectors).all(axis=1)))} is not finite")
        if len({passage.id for passage in passages}) != len(passages):
            raise ValueError("two of the passages have the same id")
        if not passages:
            return
        rows = [
            {**asdict(passage), "vector": vector}
            for passage, vector in zip(passages, vectors.tolist(), strict=True)
        ]
        new = pa.Table.from_pylist(rows, schema=self._table.schema)
        self._table.merge_insert("id").when_matched_update_all().when_not_matched_insert_all().execute(new)

    def search(self, vector: NDArray[np.float32], k: int) -> list[Hit]:
        """The `k` passages nearest to `vector` [dimensions] by cosine, best first.

        Fewer when the store holds fewer.

        Raises EmptyStoreError, DimensionMismatchError, and ValueError for k < 1 or a vector of zeros.
        """
        vector = np.asarray(vector, dtype=np.float32)
        if k < 1:
            raise ValueError(f"k must be at least 1, not {k}")
        if vector.shape != (self.dimensions,):
            raise DimensionMismatchError(
                f"the query has shape {vector.shape}; the store takes [{self.dimensions}]"
            )
        if not np.isfinite(vector).all() or not vector.any():
            raise ValueError("the query vector has no direction: it is zero or not finite")
        if not len(self):
            raise EmptyStoreError("the store holds no passage; add some before searching")
        rows = self._table.search(vector).distance_type("cosine").limit(k).to_list()
        names = [field.name for field in fields(Passage)]
        return [Hit(Passage(**{name: row[name] for name in names}), 1 - row["_distance"]) for row in rows]
