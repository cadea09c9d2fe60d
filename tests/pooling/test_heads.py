"""Head names."""

import pytest

from orthrus.pooling import Head, PoolingConfigError


def test_every_name_parses_to_its_head():
    assert [Head.parse(name) for name in ("mean", "weighted_mean", "cls", "last", "buffered")] == list(Head)


@pytest.mark.parametrize("name", ["max", "", "Mean", None, 3])
def test_an_unknown_name_is_refused_with_the_allowed_ones(name):
    with pytest.raises(
        PoolingConfigError, match="allowed are mean, weighted_mean, cls, last, buffered"
    ) as error:
        Head.parse(name)
    assert repr(name) in str(error.value)
