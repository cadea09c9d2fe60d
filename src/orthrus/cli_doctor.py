"""`orthrus doctor`: print what this installation is, what is wrong with it and how to mend it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from orthrus.doctor import SUPPORTS, Finding, Level, examine
from orthrus.doctor_facts import gather

STYLES = {Level.OK: "green", Level.WARNING: "yellow", Level.PROBLEM: "bold red"}


def doctor(
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    """Check versions, platform and settings; exit with 1 when something keeps Orthrus from working."""
    console = Console(soft_wrap=True, highlight=False)
    if as_json:
        findings = examine(gather())
        console.out(json.dumps({"findings": [asdict(f) for f in findings], "supports": SUPPORTS}, indent=2))
    else:
        with console.status("importing torch and vLLM"):
            findings = examine(gather())
        show(console, findings)
    raise typer.Exit(1 if any(finding.level is Level.PROBLEM for finding in findings) else 0)


def show(console: Console, findings: list[Finding]) -> None:
    """One line a finding, its mend below it, then what is supported and a closing count."""
    width = max(len(finding.check) for finding in findings)
    for finding in findings:
        line = Text(f"{finding.level.value:<8} ", style=STYLES[finding.level])
        line.append(f"{finding.check:<{width}}  {finding.message}", style="default")
        console.print(line)
        if finding.mend:
            console.print(Text(f"{'':<{width + 11}}-> {finding.mend}"))
    for text in SUPPORTS:
        console.print(Text(f"{'supported':<{width + 9}}  {text}", style="dim"))
    problems = sum(finding.level is Level.PROBLEM for finding in findings)
    warnings = sum(finding.level is Level.WARNING for finding in findings)
    console.print(f"{problems} problem(s), {warnings} warning(s)")
