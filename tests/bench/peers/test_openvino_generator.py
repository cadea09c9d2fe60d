import multiprocessing
import os
import queue
import sys
import threading
import types

import pytest

from orthrus.bench.peers.openvino.extra import AdapterError
from orthrus.bench.peers.openvino.generator import GONE, Generation, Generator
from orthrus.bench.peers.openvino.pipeline import Pipeline

ALL_CORES = os.sched_getaffinity(0)
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


def fake_modules():
    genai = types.SimpleNamespace(
        SchedulerConfig=types.SimpleNamespace,
        ContinuousBatchingPipeline=FakePipeline,
        GenerationStatus=STATES,
    )
    openvino = types.SimpleNamespace(Tensor=lambda array: types.SimpleNamespace(data=array))
    return {"openvino_genai": genai, "openvino": openvino}


class Served:
    """The pipeline served in a thread, and the other end of its connection."""

    def __init__(self, folder):
        self.here, there = multiprocessing.Pipe()
        self.pipeline = Pipeline(there, folder, {"A": 1}, 3)
        self.inner = self.pipeline._pipeline
        self.thread = threading.Thread(target=self.pipeline.run)
        self.thread.start()

    def hear(self):
        assert self.here.poll(30), "the pipeline said nothing"
        return self.here.recv()

    def all_of(self, number, prompt, limit):
        self.here.send((number, prompt, {"max_new_tokens": limit}))
        heard = []
        while not heard or isinstance(heard[-1], list):
            got, news = self.hear()
            if got == number:
                heard.append(news)
        return heard


@pytest.fixture
def served(monkeypatch, tmp_path):
    for name, module in fake_modules().items():
        monkeypatch.setitem(sys.modules, name, module)
    served = Served(tmp_path)
    yield served
    served.here.close()
    served.thread.join(30)
    assert not served.thread.is_alive()


def test_tokens_come_one_by_one_then_the_end(served):
    assert served.all_of(1, [5, 6], 3) == [[5], [5], [5], None]
    assert served.inner.arguments[1:] == (3, "CPU", {"A": 1})


def test_a_refused_request_and_one_that_does_not_fit_end_with_the_cause(served):
    assert served.all_of(1, [12], 1) == ["refused"]
    (ignored,) = served.all_of(2, [14], 1)
    assert "KV cache" in ignored
    assert served.all_of(3, [5], 1) == [[5], None]


def test_a_failed_step_ends_what_was_open_and_the_next_request_is_served(served):
    assert served.all_of(1, [13], 1) == ["the step failed"]
    assert served.all_of(2, [5], 2) == [[5], [5], None]


def test_a_cancelled_generation_leaves_the_pipeline(served):
    served.here.send((1, [5], {"max_new_tokens": 10**9}))
    assert served.hear() == (1, [5])
    served.here.send((1, None, None))
    served.here.send((1, None, None))  # once more, as when it ends just then
    assert served.all_of(2, [6], 2) == [[6], [6], None]
    assert served.inner.handles[0].status == STATES.CANCEL


def echo(connection, folder, properties, kv_gib):
    """A pipeline's process that answers with the prompt; 99 ends it, 98 never ends, 97 asks for its cores."""
    connection.send(None)
    number, prompt, _ = connection.recv()
    while True:
        if prompt == [99]:
            os._exit(1)
        if prompt == [97]:
            prompt = sorted(os.sched_getaffinity(0))
        if prompt is not None:
            connection.send((number, prompt))
            if prompt != [98]:
                connection.send((number, None))
        number, prompt, _ = connection.recv()


def broken(connection, folder, properties, kv_gib):
    connection.send("ValueError: no such model")


def dying(connection, folder, properties, kv_gib):
    os._exit(3)


@pytest.fixture
def generator(tmp_path):
    generator = Generator(tmp_path, [0], {}, 1, echo)
    yield generator
    generator.close()
    assert not generator._process.is_alive()


def start(generator, prompt):
    heard = queue.Queue()
    generation = Generation(prompt, {}, heard.put)
    generator.submit(generation)
    return generation, heard


def test_each_generation_hears_its_own_answer(generator):
    first, second = start(generator, [1, 2])[1], start(generator, [3])[1]
    assert [first.get(timeout=30), first.get(timeout=30)] == [[1, 2], None]
    assert [second.get(timeout=30), second.get(timeout=30)] == [[3], None]


def test_the_process_is_bound_and_its_starter_is_not(generator):
    assert start(generator, [97])[1].get(timeout=30) == [0]
    assert os.sched_getaffinity(0) == ALL_CORES


def test_a_core_that_is_not_there_is_refused(tmp_path):
    with pytest.raises(AdapterError, match=r"--cores \[99999\]: this machine allows"):
        Generator(tmp_path, [99999], {}, 1, echo)


def test_a_cancelled_generation_hears_no_more(generator):
    generation, heard = start(generator, [98])
    assert heard.get(timeout=30) == [98]
    generator.cancel(generation)
    generator.cancel(generation)
    assert generator._open == {}


def test_the_end_of_the_process_ends_open_and_later_generations(generator):
    (_, open_one), (_, last) = start(generator, [98]), start(generator, [99])
    assert open_one.get(timeout=30) == [98]
    assert [str(heard.get(timeout=30)) for heard in (open_one, last)] == [GONE, GONE]
    assert str(start(generator, [1])[1].get(timeout=30)) == GONE


@pytest.mark.parametrize(("target", "message"), [(broken, "ValueError: no such model"), (dying, GONE)])
def test_a_pipeline_that_cannot_be_made_is_the_starters_error(target, message, tmp_path):
    with pytest.raises(AdapterError, match=message):
        Generator(tmp_path, [0], {}, 1, target)
