"""`embed_dtype`: vectors in another number format, rounded from the float32 answer."""

from __future__ import annotations

import base64

import httpx
import numpy as np
import pytest
import torch
from vectors import embed, refused

pytestmark = pytest.mark.engine

TEXTS = ["The Rhine ends in the North Sea.", "x"]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_base64_holds_numbers_of_the_asked_type(client: httpx.Client, dtype: torch.dtype) -> None:
    name = str(dtype).removeprefix("torch.")
    body = {"input": TEXTS, "encoding_format": "base64", "embed_dtype": name}
    response = client.post("/v1/embeddings", json=body)
    assert response.status_code == 200, response.text
    full = embed(client, TEXTS)
    for item, wanted in zip(response.json()["data"], full, strict=True):
        data = base64.b64decode(item["embedding"])
        assert len(data) == len(wanted) * dtype.itemsize
        got = torch.frombuffer(bytearray(data), dtype=dtype).double().numpy()
        # Half a unit in the last place, and what two runs of the model may differ by.
        np.testing.assert_allclose(got, wanted, rtol=torch.finfo(dtype).eps, atol=1e-5)


def test_another_type_is_refused(client: httpx.Client) -> None:
    error = refused(client, input=TEXTS, encoding_format="base64", embed_dtype="int4")
    assert error["param"] == "embed_dtype"
    assert "float16" in error["message"]
