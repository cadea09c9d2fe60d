"""`python -m orthrus.bench.peers.openvino.check FOLDER MODEL`: an export against transformers in float32.

For the environment that made the export, which has torch and transformers.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from orthrus.bench.peers.openvino.embedder import Embedder, Floats, pooled
from orthrus.bench.peers.openvino.extra import EMBED, AdapterError, check_model, load, properties

LENGTHS = (1, 2, 31, 200, 512, 1000)
LEAST = 0.999


def reference(model: Any, torch: Any, batch: Sequence[Sequence[int]]) -> Floats:
    """Normalised means of the model's last hidden states, each input on its own: [n, d]."""
    rows = []
    for ids in batch:
        with torch.no_grad():
            hidden = model(torch.tensor([ids])).last_hidden_state.numpy()
        rows.append(pooled(hidden, [ids])[0])
    return np.stack(rows)


def cosines(left: Floats, right: Floats) -> Floats:
    """Cosine of each pair of rows, both of length one; NaN where either has one."""
    return np.asarray((left * right).sum(axis=1), dtype=np.float32)


def check(
    folder: Annotated[Path, typer.Argument(help="Exported model, with the folders generate and embed.")],
    model: Annotated[str, typer.Argument(help="The checkpoint it was made of.")],
    dtype: Annotated[str, typer.Option(help="bfloat16 or float32.")] = "bfloat16",
) -> None:
    """Compare vectors of 1 to 1000 random token ids, alone and as one padded batch; status 1 below 0.999."""
    try:
        settings = properties(dtype, 1)
        torch, transformers = load("torch"), load("transformers")
        check_model(folder)
        embedder = Embedder(folder / EMBED, [0], settings)
    except AdapterError as error:
        sys.stderr.write(f"orthrus.bench.peers.openvino.check: {error}\n")
        raise typer.Exit(2) from error
    rng = np.random.default_rng(0)
    batch = [rng.integers(100, 10_000, length).tolist() for length in LENGTHS]
    expected = reference(transformers.AutoModel.from_pretrained(model, dtype=torch.float32), torch, batch)
    alone = np.concatenate([embedder.submit([ids]).result() for ids in batch])
    together = embedder.submit(batch).result()
    embedder.close()
    worst = 1.0
    for name, found in (("alone", alone), ("one batch", together)):
        values = cosines(expected, found)
        typer.echo(
            f"{dtype}, {name}: " + " ".join(f"{n}:{v:.6f}" for n, v in zip(LENGTHS, values, strict=True))
        )
        worst = min(worst, float(np.nan_to_num(values, nan=-1.0).min()))
    typer.echo(f"least cosine: {worst:.6f}")
    raise typer.Exit(0 if worst > LEAST else 1)


if __name__ == "__main__":
    typer.run(check)
