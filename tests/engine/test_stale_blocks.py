from types import SimpleNamespace

from orthrus.engine.stale_blocks import fresh_blocks


def output(new=(), cached=(), resumed=()):
    return SimpleNamespace(
        scheduled_new_reqs=[SimpleNamespace(block_ids=([*ids],), num_computed_tokens=n) for ids, n in new],
        scheduled_cached_reqs=SimpleNamespace(
            req_ids=[name for name, _, _ in cached],
            new_block_ids=[ids for _, ids, _ in cached],
            num_computed_tokens=[n for _, _, n in cached],
            resumed_req_ids=set(resumed),
        ),
    )


def test_a_new_request_writes_its_blocks_but_not_those_of_a_cached_prefix():
    assert fresh_blocks(output(new=[([4, 5, 6], 0), ([7, 8, 9], 64)]), 32) == [4, 5, 6, 9]


def test_a_running_request_writes_its_new_blocks_and_a_resumed_one_all_behind_its_prefix():
    cached = [("a", ([1, 2],), 100), ("b", None, 50), ("c", ([10, 11, 12],), 32)]
    assert fresh_blocks(output(cached=cached, resumed=["c"]), 32) == [1, 2, 11, 12]
