"""The command's table: every target exists, help is quick to import, arguments reach their command."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from orthrus import cli
from orthrus.extras import EXTRAS


def call(*arguments: str) -> int | str | None:
    with pytest.raises(SystemExit) as ended:
        cli.main(arguments)
    return ended.value.code


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_lists_every_command(arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    assert call(*arguments) == 0
    output = capsys.readouterr().out
    for name, command in cli.COMMANDS.items():
        assert f"  {name} " in output
        assert command.help in output


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("--version") == 0
    assert capsys.readouterr().out == f"orthrus {cli.orthrus.__version__}\n"


def test_a_mistyped_command_is_refused_with_a_hint(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("docter") == 2
    assert "did you mean 'doctor'?" in capsys.readouterr().err
    assert call("zzz") == 2
    assert "known: " in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_every_target_exists(name: str) -> None:
    assert callable(cli.COMMANDS[name].load())


def test_a_raw_command_gets_its_arguments_unparsed(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[list[str]] = []

    def serve(arguments: list[str]) -> int:
        seen.append(arguments)
        return 3

    monkeypatch.setitem(cli.COMMANDS, "raw", cli.Command("nowhere:serve", "A test.", raw=True))
    monkeypatch.setattr(cli.Command, "load", lambda self: serve)
    assert call("raw", "MODEL", "--help", "--max-model-len=8") == 3
    assert seen == [["MODEL", "--help", "--max-model-len=8"]]


def test_help_imports_neither_torch_nor_vllm() -> None:
    script = (
        "import sys\nfrom orthrus.cli import main\ntry:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "print(sorted({'torch', 'vllm', 'transformers', 'typer', 'rich'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_commands_own_help(capsys: pytest.CaptureFixture[str]) -> None:
    assert call("doctor", "--help") == 0
    assert "--json" in capsys.readouterr().out


WITHOUT = """
import sys
from orthrus.cli import main

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            raise ModuleNotFoundError("No module named " + name, name=name)

sys.meta_path.insert(0, Absent())
main({arguments!r})
"""


@pytest.mark.parametrize(
    ("arguments", "module", "extra"),
    [
        (["demo"], "lancedb", "retrieval"),
        (["trace", "plot", __file__, "-o", "picture.png"], "matplotlib", "bench"),
        (["serve", "no-model"], "vllm", "cpu"),
    ],
)
def test_a_missing_optional_dependency_is_named_with_its_extra(
    arguments: list[str], module: str, extra: str
) -> None:
    script = WITHOUT.format(module=module, arguments=arguments)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{module} is not installed: pip install 'vllm-orthrus[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_another_missing_module_is_not_explained_away(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(cli.COMMANDS, "broken", cli.Command("orthrus.no_such_part:main", "A test."))
    with pytest.raises(ModuleNotFoundError, match="no_such_part"):
        cli.main(["broken"])


def test_every_extra_that_is_advised_exists() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    advised = {extra for extras in EXTRAS.values() for extra in extras}
    assert advised <= project["optional-dependencies"].keys()
