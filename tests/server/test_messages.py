"""The first message that vLLM's model does not take, and how little is looked at to find it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from orthrus.engine.compat import ChatCompletionMessageParam
from orthrus.server import messages
from orthrus.server.errors import RequestError
from orthrus.server.messages import refuse_bad_message

CHAT = TypeAdapter(list[ChatCompletionMessageParam])
GOOD = {"role": "user", "content": "a"}
values = (
    st.none() | st.integers(0, 1) | st.text(max_size=2) | st.lists(st.just({"type": "text", "text": "a"}))
)
message = st.dictionaries(st.sampled_from(["role", "content", "name", "tool_calls", "tool_call_id"]), values)


@given(st.lists(st.one_of(st.just(GOOD), message.map(lambda given: GOOD | given)), max_size=4))
def test_a_chat_is_refused_if_and_only_if_the_model_refuses_it(chat):
    try:
        CHAT.validate_python(chat)
    except ValidationError:
        with pytest.raises(RequestError):
            refuse_bad_message({"messages": chat}, "messages")
    else:
        refuse_bad_message({"messages": chat}, "messages")


@pytest.mark.parametrize("is_several", [False, True])
def test_one_bad_message_of_many_is_looked_at(monkeypatch, is_several):
    seen = []
    explain = messages.explain
    monkeypatch.setattr(
        messages, "explain", lambda found, body: seen.append(len(found)) or explain(found, body)
    )
    chat = [GOOD, *([GOOD | {"name": 5}] * 1000)]
    with pytest.raises(RequestError) as refused:
        refuse_bad_message({"messages": [chat] if is_several else chat}, "messages", "input")
    where = "messages[0][1].name" if is_several else "messages[1].name"
    assert str(refused.value) == f"{where} is 5; allowed: a valid string"
    assert refused.value.param == "messages"
    assert len(seen) == 1
    assert seen[0] < 50


def test_what_is_no_chat_is_left_alone():
    for given_input in ("a", ["a"], [1, 2], [[1], [2]], None, [], [[]]):
        refuse_bad_message({"input": given_input}, "messages", "input")
