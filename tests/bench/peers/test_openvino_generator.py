import queue
import sys
import types

import pytest

from orthrus.bench.peers.openvino.generator import Generation, Generator

STATES = types.SimpleNamespace(RUNNING=0, FINISHED=1, IGNORED=2, CANCEL=3)


class FakeHandle:
    def __init__(self, prompt, limit):
        self.left, self.new, self.status, self.prompt = limit, [], STATES.RUNNING, prompt

    def get_status(self):
        return self.status

    def can_read(self):
        return bool(self.new)

    def read(self):
        new, self.new = self.new, []
        return {0: types.SimpleNamespace(generated_ids=new)}

    def cancel(self):
        self.status = STATES.CANCEL


class FakePipeline:
    """A token a step for each open request: the prompt's first id. 13 kills a step, 14 does not fit."""

    def __init__(self, folder, scheduler, device, properties, tokenizer_properties):
        self.handles, self.steps = [], []
        self.arguments = (folder, scheduler.cache_size, device, properties)

    def get_config(self):
        config = types.SimpleNamespace(values={"eos": 2})
        config.update_generation_config = lambda **given: config.values.update(given)
        return config

    def add_request(self, number, ids, config):
        if ids.data[0][0] == 12:
            raise RuntimeError("refused")
        assert config.values["eos"] == 2
        self.handles.append(FakeHandle(ids.data[0].tolist(), config.values["max_new_tokens"]))
        return self.handles[-1]

    def step(self):
        running = [handle for handle in self.handles if handle.status == STATES.RUNNING]
        self.steps.append(len(running))
        for handle in running:
            if handle.prompt[0] == 13:
                raise RuntimeError("the step failed")
            if handle.prompt[0] == 14:
                handle.status = STATES.IGNORED
                continue
            handle.new.append(handle.prompt[0])
            handle.left -= 1
            handle.status = STATES.RUNNING if handle.left else STATES.FINISHED


@pytest.fixture
def generator(monkeypatch, tmp_path):
    genai = types.SimpleNamespace(
        SchedulerConfig=types.SimpleNamespace,
        ContinuousBatchingPipeline=FakePipeline,
        GenerationStatus=STATES,
    )
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    tensor = types.SimpleNamespace(Tensor=lambda array: types.SimpleNamespace(data=array))
    monkeypatch.setitem(sys.modules, "openvino", tensor)
    generator = Generator(tmp_path, [0], {"A": 1}, kv_gib=3)
    yield generator
    generator.close()


def start(generator, prompt, limit):
    heard = queue.Queue()
    generation = Generation(prompt, {"max_new_tokens": limit}, heard.put)
    generator.submit(generation)
    return generation, heard


def all_of(heard):
    found = []
    while (news := heard.get(timeout=30)) is not None:
        found.append(news)
        if isinstance(news, Exception):
            break
    return found


def test_tokens_come_one_by_one_then_the_end(generator):
    _, heard = start(generator, [5, 6], 3)
    assert all_of(heard) == [[5], [5], [5]]
    assert generator._pipeline.arguments[1:] == (3, "CPU", {"A": 1})


def test_a_refused_request_and_one_that_does_not_fit_end_with_the_cause(generator):
    (refused,) = all_of(start(generator, [12], 1)[1])
    assert str(refused) == "refused"
    (ignored,) = all_of(start(generator, [14], 1)[1])
    assert "KV cache" in str(ignored)
    assert all_of(start(generator, [5], 1)[1]) == [[5]]


def test_a_failed_step_ends_what_was_open_and_the_next_request_is_served(generator):
    (failed,) = all_of(start(generator, [13], 1)[1])
    assert str(failed) == "the step failed"
    assert all_of(start(generator, [5], 2)[1]) == [[5], [5]]


def test_a_cancelled_generation_leaves_the_pipeline(generator):
    generation, heard = start(generator, [5], 10**9)
    assert heard.get(timeout=30) == [5]
    generation.cancelled = True
    assert all_of(start(generator, [6], 2)[1]) == [[6], [6]]
    assert generation.handle.status == STATES.CANCEL


def test_a_pipeline_that_cannot_be_made_is_the_starters_error(monkeypatch, tmp_path):
    def broken(*_):
        raise ValueError("no such model")

    genai = types.SimpleNamespace(SchedulerConfig=types.SimpleNamespace, ContinuousBatchingPipeline=broken)
    monkeypatch.setitem(sys.modules, "openvino_genai", genai)
    monkeypatch.setitem(sys.modules, "openvino", types.SimpleNamespace(Tensor=None))
    with pytest.raises(ValueError, match="no such model"):
        Generator(tmp_path, [0], {}, kv_gib=1)
