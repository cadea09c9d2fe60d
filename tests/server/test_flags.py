"""The flags of `orthrus serve`: what they become, and what is refused before a model is loaded."""

from __future__ import annotations

import pytest

from orthrus.engine.config import OrthrusConfig, UnsupportedConfigError
from orthrus.server import command
from orthrus.server.flags import add_flags, settings


@pytest.fixture(scope="module")
def parser():
    from orthrus.server import vllm_server

    parser = vllm_server.build_parser("orthrus serve")
    add_flags(parser)
    return parser


def in_this_process(monkeypatch, run):
    """Let `command.main` run here, with `run` as the server, and leave this process as it is."""
    from orthrus.server import vllm_server

    monkeypatch.setattr(vllm_server, "run", run)
    monkeypatch.setattr(command, "share_metrics", lambda: None)
    monkeypatch.setattr(command.signal, "signal", lambda *_: None)
    monkeypatch.setenv("VLLM_PLUGINS", "")


def refusal(monkeypatch, capsys, *argv):
    """The message of `orthrus serve` for these arguments; it must end with status 2 and load nothing."""

    def run(args):
        raise AssertionError("the server was started")

    in_this_process(monkeypatch, run)
    with pytest.raises(SystemExit) as caught:
        command.main([*argv, "--no-preload"])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert len(said.splitlines()) < 12
    return said


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "foo"], "invalid choice: 'foo'"),
        (["--pooling", "max"], "invalid choice: 'max'"),
        (["--pooling", "buffered"], "invalid choice: 'buffered'"),
        (["--policy", "fcfs", "--embed-chunk", "10"], "policy 'fcfs' does not use it"),
        (["--embed-chunk", "0"], "argument --embed-chunk: 0 is not a whole number of at least 1"),
        (["--embed-chunk", "-5"], "--embed-chunk: -5 is not a whole number"),
        (["--embed-chunk", "many"], "invalid int value"),
        (["--prefill-chunk", "-1"], "--prefill-chunk: -1 is not a whole number of at least 0"),
        (["--embed-bias", "0"], "--embed-bias: 0 is not a number from 0.001 to 1000"),
        (["--embed-bias", "nan"], "--embed-bias: nan is not a number"),
        (["--max-embed-share", "1.5"], "--max-embed-share: 1.5 is not a number from 0.001 to 1"),
        (["--ttft-target-s", "-1"], "--ttft-target-s: -1 is not a number from 0 to 86400 (seconds)"),
        (["--itl-target-s", "-1"], "argument --itl-target-s: -1 is not a number from 0 to 86400 (seconds)"),
        (["--itl-target-s", "nan"], "--itl-target-s: nan is not a number from 0 to 86400 (seconds)"),
        (["--itl-target-s", "soon"], "--itl-target-s: invalid float value: 'soon'"),
        (
            ["--policy", "homogeneous", "--itl-target-s", "1"],
            "itl_target_s needs steps that hold both kinds: policy ibs or fcfs",
        ),
        (["--prefix-sums-mib", "-1"], "error: prefix_sums_mib: Input should be greater than or equal to 0"),
        (["--max-open-requests", "0"], "not a whole number of at least 1"),
        (["--max-request-bytes", "-1"], "not a whole number of at least 1"),
        (["--max-embedding-inputs", "x"], "not a whole number of at least 1"),
        (["--trace-steps", "no/such/folder/trace"], "'no/such/folder/trace': No such file or directory"),
        (["--trace-steps", ""], "--trace-steps '': Is a directory"),
        (["--trace-steps", "/"], "--trace-steps '/': Is a directory"),
        (["--no-such-flag"], "unrecognized arguments"),
    ],
)
def test_bad_values_are_refused_at_once(monkeypatch, capsys, flags, said):
    assert said in refusal(monkeypatch, capsys, "any-model", *flags)


def test_the_v2_runner_is_refused_at_once(monkeypatch, capsys):
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "1")
    assert "does not support" in refusal(monkeypatch, capsys, "any-model")


def test_flags_become_the_engines_settings_and_keep_the_users_own(parser):
    argv = ["m", "--policy", "ibs", "--embed-chunk", "64", "--pooling", "last", "--matryoshka"]
    args = parser.parse_args([*argv, "--additional-config", '{"mine": 1}'])
    found = settings(args)
    assert found["mine"] == 1
    config = OrthrusConfig(**found["orthrus"])
    assert (config.policy, config.pooling, config.matryoshka) == ("ibs", "last", True)
    assert config.policy_options == {"embed_chunk": 64}
    assert OrthrusConfig(**settings(parser.parse_args(["m"]))["orthrus"]) == OrthrusConfig()


def test_the_help_states_each_default_once(parser, capsys):
    with pytest.raises(SystemExit):
        parser.parse_args(["--help=orthrus"])
    ours = " ".join(capsys.readouterr().out.split())
    assert "(default: an eighth of it, at least 2) --" in ours
    assert ours.count("(default: ") > 15
    assert ") (default: " not in ours.replace("VLLM_BATCH_INVARIANT=1)", "")


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"speculative_config": {"method": "ngram", "num_speculative_tokens": 2}}, "speculative"),
        ({"runner": "pooling", "convert": "embed"}, "generative models"),
        ({"enable_chunked_prefill": False}, "chunked prefill"),
    ],
)
def test_engine_settings_that_mixed_steps_cannot_honour(tiny_model, monkeypatch, arguments, said):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    from vllm import EngineArgs
    from vllm.config import PoolerConfig

    from orthrus.engine import plugin

    plugin.register()
    base = {"model": str(tiny_model), "additional_config": {"orthrus": {}}, "max_model_len": 256}
    with pytest.raises(UnsupportedConfigError, match=said):
        EngineArgs(**base, **arguments).create_engine_config()
    with pytest.raises(UnsupportedConfigError, match="--pooling"):
        EngineArgs(**base, pooler_config=PoolerConfig(seq_pooling_type="MEAN")).create_engine_config()


def test_an_embedding_only_model_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("VLLM_USE_V2_MODEL_RUNNER", "0")
    from transformers import BertConfig
    from vllm import EngineArgs

    from orthrus.engine import plugin

    plugin.register()
    BertConfig(hidden_size=32, num_attention_heads=2, architectures=["BertModel"]).save_pretrained(tmp_path)
    with pytest.raises(UnsupportedConfigError, match="embedding-only model use stock vLLM"):
        EngineArgs(
            model=str(tmp_path), additional_config={"orthrus": {}}, skip_tokenizer_init=True
        ).create_engine_config()


def test_a_refused_engine_setting_ends_the_command_with_its_message(monkeypatch, capsys):
    def run(args):
        raise UnsupportedConfigError("speculative decoding does not work")

    in_this_process(monkeypatch, run)
    with pytest.raises(SystemExit) as caught:
        command.main(["any-model", "--no-preload"])
    assert caught.value.code == 2
    assert "speculative decoding does not work" in capsys.readouterr().err


def test_ctrl_c_before_the_server_is_ready_is_130_without_a_traceback(monkeypatch, capsys):
    def run(args):
        raise KeyboardInterrupt

    in_this_process(monkeypatch, run)
    ended = []
    monkeypatch.setattr(command, "end_children", lambda: ended.append(True))
    assert command.main(["any-model", "--no-preload"]) == 130
    assert ended
    assert "Traceback" not in capsys.readouterr().err


def test_our_endpoint_plugin_is_named_beside_every_other_plugin(monkeypatch):
    monkeypatch.setenv("VLLM_PLUGINS", "another")
    command.allow_plugins()
    assert command.os.environ["VLLM_PLUGINS"] == "another,orthrus"
    command.allow_plugins()
    assert command.os.environ["VLLM_PLUGINS"] == "another,orthrus"
