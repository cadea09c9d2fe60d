"""`orthrus models`: fetch and find the sample models."""

from __future__ import annotations

from typing import Annotated

import typer

app = typer.Typer(help="Sample models that need no hub.", no_args_is_help=True, add_completion=False)
Name = Annotated[str, typer.Argument(help="A sample model, for example smollm2.")]


@app.command()
def get(name: Name) -> None:
    """Fetch and convert a sample model once, then print its folder."""
    from rich.console import Console

    from orthrus import models
    from orthrus.models.cache import ChecksumError
    from orthrus.models.smollm2 import FetchError

    try:
        console = Console(stderr=True)
        with console.status(f"{name}: looking") as status:

            def show(stage: str) -> None:
                status.update(f"{name}: {stage}")
                if not console.is_terminal:  # no spinner there: a log gets a line for every stage
                    console.print(f"{name}: {stage}", highlight=False)

            folder = models.get(name, show)
    except models.UnknownModelError as error:
        raise typer.BadParameter(str(error)) from error
    except (FetchError, ChecksumError) as error:
        typer.echo(f"orthrus models: {error}", err=True)
        raise typer.Exit(1) from error
    typer.echo(folder)


@app.command(name="list")
def list_models() -> None:
    """List the sample models and where they are."""
    from orthrus import models

    for name in sorted(models.SAMPLES):
        typer.echo(f"{name}\t{models.path_of(name) if models.is_present(name) else 'not fetched yet'}")


@app.command()
def path(name: Name) -> None:
    """Print the folder of a sample model that is in the cache; exit 1 where it is not."""
    from orthrus import models

    try:
        folder, present = models.path_of(name), models.is_present(name)
    except models.UnknownModelError as error:
        raise typer.BadParameter(str(error)) from error
    if not present:
        typer.echo(f"{name} is not in the cache; run: orthrus models get {name}", err=True)
        raise typer.Exit(1)
    typer.echo(folder)
