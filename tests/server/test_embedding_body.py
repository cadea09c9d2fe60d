"""The request model of an embedding's body: the same that vLLM's whole union finds."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from orthrus.engine.compat import EmbeddingCompletionRequest, EmbeddingRequest, VLLMValidationError
from orthrus.server import embedding_body
from orthrus.server.embedding_body import embedding_request
from orthrus.server.errors import RequestError

UNION = TypeAdapter(EmbeddingRequest)
message = st.fixed_dictionaries({"role": st.sampled_from(["user", "system"]), "content": st.text()})
chat = st.lists(message, min_size=1, max_size=3)
tokens = st.lists(st.integers(0, 49_151), max_size=5)
texts = st.one_of(
    st.text(), st.lists(st.text(), max_size=3), tokens, st.lists(tokens.filter(bool), min_size=1, max_size=3)
)
options = st.fixed_dictionaries(
    {"model": st.just("m")},
    optional={
        "encoding_format": st.sampled_from(["float", "base64"]),
        "dimensions": st.integers(1, 576),
        "truncate_prompt_tokens": st.integers(-1, 99),
        "pooling": st.just("mean"),
    },
)
bodies = st.one_of(
    st.tuples(options, st.fixed_dictionaries({"input": texts})),
    st.tuples(options, st.fixed_dictionaries({"input": st.one_of(chat, st.lists(chat, min_size=1))})),
    st.tuples(options, st.fixed_dictionaries({"messages": st.one_of(chat, st.lists(chat, min_size=1))})),
).map(lambda parts: parts[0] | parts[1])


@given(bodies)
def test_a_body_is_the_model_that_the_whole_union_finds(body):
    found, wanted = embedding_request(body), UNION.validate_python(body)
    assert type(found) is type(wanted)
    assert found.model_dump(exclude={"request_id"}) == wanted.model_dump(exclude={"request_id"})


@pytest.mark.parametrize("given_input", ["a text", ["two", "texts"], [1, 2, 3], [[1, 2], [3]]])
def test_texts_and_tokens_do_not_meet_the_members_for_chats(monkeypatch, given_input):
    monkeypatch.setattr(embedding_body, "_ANY", None)
    for absent in ({}, {"messages": None}):
        found = embedding_request({"model": "m", "input": given_input, **absent})
        assert type(found) is EmbeddingCompletionRequest
        assert found.input == given_input


WRONG = {
    "input": {"input": [1, "a"]},
    "priority": {"input": "a", "priority": "high"},
    "task": {"input": "a", "task": "encode"},
    "continue_final_message": {"input": "a", "add_generation_prompt": True, "continue_final_message": True},
    "messages": {"messages": [{"role": 1, "content": "a"}]},
}


@pytest.mark.parametrize("field", WRONG)
def test_what_the_union_refuses_is_refused_and_named(field):
    body = {"model": "m", **WRONG[field]}
    with pytest.raises((ValidationError, VLLMValidationError)):
        UNION.validate_python(body)
    with pytest.raises((RequestError, VLLMValidationError), match=field):
        embedding_request(body)
