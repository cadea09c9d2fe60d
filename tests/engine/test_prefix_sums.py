from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from orthrus.engine.prefix_sums import PrefixSums
from orthrus.pooling.heads import Head

BLOCK = 16


def hashes(prompt, adapter="", salt=""):
    """Stand-ins for vLLM's chained block hashes: each depends on all before it, adapter and salt."""
    return [(adapter, salt, prompt[: end * BLOCK]) for end in range(1, len(prompt) // BLOCK + 1)]


def test_a_state_is_offered_from_the_next_step_on_and_only_up_to_the_cached_blocks():
    sums = PrefixSums(8, BLOCK)
    prompt = "x" * 70
    saved = dict(sums.save(Head.MEAN, hashes(prompt), 0, 70))
    assert list(saved) == [16, 32, 48, 64]
    assert sums.longest(Head.MEAN, hashes(prompt), 70) is None
    sums.end_step()
    assert sums.longest(Head.MEAN, hashes(prompt), 70) == (64, saved[64])
    assert sums.longest(Head.MEAN, hashes(prompt), 47) == (32, saved[32])
    assert sums.longest(Head.MEAN, hashes(prompt), 15) is None


def test_head_adapter_salt_and_every_earlier_token_are_part_of_the_key():
    sums = PrefixSums(8, BLOCK)
    prompt = "a" * 64
    list(sums.save(Head.MEAN, hashes(prompt, "A", "s"), 0, 64))
    sums.end_step()
    assert sums.longest(Head.MEAN, hashes(prompt, "A", "s"), 64) is not None
    for other in (
        (Head.CLS, hashes(prompt, "A", "s")),
        (Head.MEAN, hashes(prompt, "B", "s")),
        (Head.MEAN, hashes(prompt, "A", "t")),
        (Head.MEAN, hashes("b" + prompt[1:], "A", "s")),
    ):
        assert sums.longest(*other, 64) is None


def test_a_full_index_gives_up_the_least_recently_used():
    sums = PrefixSums(2, BLOCK)
    first, second, third = ("abc"[i] * BLOCK for i in range(3))
    for prompt in (first, second):
        list(sums.save(Head.MEAN, hashes(prompt), 0, BLOCK))
        sums.end_step()
    assert sums.longest(Head.MEAN, hashes(first), BLOCK) is not None
    assert len(list(sums.save(Head.MEAN, hashes(third), 0, BLOCK))) == 1
    sums.end_step()
    assert sums.longest(Head.MEAN, hashes(second), BLOCK) is None
    assert sums.longest(Head.MEAN, hashes(first), BLOCK) is not None


@given(st.integers(1, 4), st.integers(5, 10))
def test_one_step_never_writes_a_row_twice(rows, blocks):
    sums = PrefixSums(rows, BLOCK)
    saved = list(sums.save(Head.MEAN, hashes("y" * BLOCK * blocks), 0, BLOCK * blocks))
    assert len({row for _, row in saved}) == len(saved) == rows


class AgainstContents(RuleBasedStateMachine):
    """Rows hold the text they were saved for; whatever is offered must be a true prefix of the asker."""

    def __init__(self):
        super().__init__()
        self.sums = PrefixSums(5, BLOCK)
        self.contents = {}
        self.written = {}

    @rule(letter=st.sampled_from("ab"), blocks=st.integers(1, 6), salt=st.sampled_from(["", "s"]))
    def embed(self, letter, blocks, salt):
        prompt = letter * (BLOCK * blocks + 3)
        hit = self.sums.longest(Head.MEAN, hashes(prompt, salt=salt), BLOCK * blocks)
        start = 0
        if hit is not None:
            start, row = hit
            assert self.contents[row] == (salt, prompt[:start])
        for end, row in self.sums.save(Head.MEAN, hashes(prompt, salt=salt), start, len(prompt)):
            self.written[row] = (salt, prompt[:end])

    @rule()
    def next_step(self):
        self.contents.update(self.written)
        self.written.clear()
        self.sums.end_step()

    @rule()
    def discarded_step(self):
        self.written.clear()
        self.sums.end_step()
        self.sums.take_back()

    @rule()
    def reset(self):
        self.sums.clear()
        self.written.clear()

    @invariant()
    def bounded(self):
        assert len(self.sums) <= 5


TestAgainstContents = AgainstContents.TestCase
