"""The checks of /pooling, /score, /rerank and /v2/embed, without a server."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from small_limits import LIMITS

from orthrus.server.checks import check_embedding
from orthrus.server.errors import RequestError
from orthrus.server.route_checks import check_cohere, check_pooling, check_rerank, check_score

USER = {"role": "user", "content": "a"}
GOOD = {
    check_embedding: {"input": "a"},
    check_pooling: {"input": "a"},
    check_score: {"queries": "a", "documents": ["b", "c"]},
    check_rerank: {"query": "a", "documents": ["b", "c"]},
    check_cohere: {"texts": ["a"]},
}


def outcome(check: Any, body: Any) -> tuple[Any, RequestError | None]:
    try:
        return check(body, LIMITS), None
    except RequestError as error:
        return None, error


EVERY_ROUTE = pytest.mark.parametrize("check", GOOD, ids=lambda check: check.__name__)


def refusal(check: Any, body: Any) -> RequestError:
    with pytest.raises(RequestError) as caught:
        check(body, LIMITS)
    return caught.value


@EVERY_ROUTE
def test_a_good_request_passes_unchanged_and_a_null_field_is_as_absent(check: Any) -> None:
    body = {**GOOD[check], "model": "m", "user": "u", "priority": -3}
    assert check(body, LIMITS) == body
    for field in ("spans", "overlap", "scoring", "dimensions", "output_dimension", "top_n"):
        check({**body, field: None}, LIMITS)


MISPLACED: dict[Any, list[str]] = {
    check_embedding: ["scoring", "top_n", "output_dimension", "max_tokens_per_doc"],
    check_pooling: ["spans", "span_unit", "long_input", "overlap", "scoring", "output_dimension"],
    check_score: ["spans", "span_unit", "long_input", "overlap", "dimensions", "normalize", "top_n"],
    check_rerank: ["spans", "long_input", "overlap", "dimensions", "normalize", "encoding_format"],
    check_cohere: [
        "spans",
        "long_input",
        "overlap",
        "dimensions",
        "normalize",
        "pooling",
        "scoring",
        "cache_salt",
    ],
}


@pytest.mark.parametrize(
    ("check", "field"), [(check, name) for check in MISPLACED for name in MISPLACED[check]]
)
def test_a_field_that_has_no_effect_is_refused_with_the_routes_that_take_it(check: Any, field: str) -> None:
    error = refusal(check, {**GOOD[check], field: 1})
    assert str(error).startswith(f"{field} has no effect on /")
    assert "it is a field of /" in str(error)
    assert (error.param, error.status) == (field, 400)


@pytest.mark.parametrize(
    ("check", "body", "field"),
    [
        (check_embedding, {"input": ["a"] * 5}, "input"),
        (check_embedding, {"messages": [[{"role": "user", "content": "a"}]] * 5}, "messages"),
        (check_pooling, {"input": [[1]] * 5}, "input"),
        (check_score, {"queries": "a", "documents": ["b"] * 5}, "documents"),
        (check_score, {"text_1": ["a"] * 5, "text_2": ["b"] * 5}, "text_1"),
        (check_score, {"data_1": "a", "data_2": ["b"] * 5}, "data_2"),
        (check_score, {"queries": "a", "items": ["b"] * 5}, "items"),
        (check_rerank, {"query": "a", "documents": ["b"] * 5}, "documents"),
        (check_cohere, {"texts": ["a"] * 5}, "texts"),
        (check_cohere, {"inputs": [{"content": []}] * 5}, "inputs"),
        (check_cohere, {"images": ["a"] * 5}, "images"),
    ],
)
def test_more_inputs_than_allowed_are_422_with_the_same_words_everywhere(
    check: Any, body: Any, field: str
) -> None:
    error = refusal(check, body)
    assert str(error) == f"{field} has 5 items; at most 4 are allowed in one request"
    assert (error.param, error.status) == (field, 422)
    fewer = {name: value[:4] if isinstance(value, list) else value for name, value in body.items()}
    assert check(fewer, replace(LIMITS, text_only=False)) == fewer


@EVERY_ROUTE
@pytest.mark.parametrize("value", [True, False, 1.0, 1.5, "1", [1]])
@pytest.mark.parametrize("field", ["priority", "max_tokens"])
def test_whole_numbers_are_neither_booleans_nor_floats_nor_text(check: Any, value: Any, field: str) -> None:
    error = refusal(check, {**GOOD[check], field: value})
    assert str(error) == f"{field} is {value!r}; allowed: a whole number"


@pytest.mark.parametrize("value", [True, 1.0, "1", 0, -2, 17])
def test_numbers_with_a_range_of_their_own(value: Any) -> None:
    for check, field in (
        (check_embedding, "truncate_prompt_tokens"),
        (check_pooling, "truncate_prompt_tokens"),
        (check_score, "truncate_prompt_tokens"),
        (check_rerank, "truncate_prompt_tokens"),
        (check_pooling, "dimensions"),
        (check_cohere, "output_dimension"),
        (check_cohere, "max_tokens"),
    ):
        assert refusal(check, {**GOOD[check], field: value}).param == field
    for field in ("top_n", "max_tokens_per_query", "max_tokens_per_doc"):
        assert "0 or more" in str(refusal(check_rerank, {**GOOD[check_rerank], field: -1}))


@pytest.mark.parametrize(
    "ids",
    [[True], [1, True], [[True, 2]], [[1], [2, False]], [1.0], [1.5], [[1, 2.0]], [[1.5]], [None], [[None]]],
)
@pytest.mark.parametrize("check", [check_embedding, check_pooling])
def test_token_ids_are_whole_numbers(check: Any, ids: Any) -> None:
    error = refusal(check, {"input": ids})
    assert error.param == "input"
    assert str(error).startswith("input[")


@pytest.mark.parametrize(
    ("check", "body", "message"),
    [
        (check_score, {}, "nothing is given to compare; allowed: queries and documents; text_1 and text_2"),
        (check_score, {"queries": "a"}, "documents or items is missing beside queries; allowed: queries and"),
        (check_score, {"text_1": "a"}, "text_2 is missing beside text_1; allowed: queries and documents;"),
        (check_score, {"documents": "a"}, "queries is missing beside documents"),
        (check_score, {"queries": "a", "text_2": "b"}, "queries and text_2 is given to compare"),
        (check_score, {"queries": "a", "documents": "b", "text_1": "c"}, "documents and queries and text_1"),
        (check_score, {"queries": ["a", "b"], "documents": ["c"] * 3}, "queries has 2 items and documents 3"),
        (check_score, {"queries": "a", "documents": []}, "documents is an empty list"),
        (check_score, {"queries": "a", "documents": ["b", ""]}, "documents[1] is an empty string"),
        (check_score, {"queries": "a", "documents": ["b", "\ud800"]}, "documents[1] has a lone surrogate"),
        (
            check_score,
            {"queries": 3, "documents": "b"},
            "queries is 3; allowed: a string or a list of strings",
        ),
        (check_score, {"queries": "a", "documents": [None]}, "documents[0] is None; allowed: a string"),
        (check_rerank, {"documents": ["a"]}, "'query' is required"),
        (check_rerank, {"query": "a"}, "'documents' is required"),
        (check_rerank, {"query": ["a"], "documents": ["a"]}, "query is ['a']; allowed: one text"),
        (check_rerank, {"query": 5, "documents": ["a"]}, "query is 5; allowed: one text"),
        (check_rerank, {"query": "", "documents": ["a"]}, "query is an empty string"),
        (check_cohere, {}, "no input is given; give exactly one of texts, inputs, images"),
        (check_cohere, {"texts": ["a"], "images": ["b"]}, "texts and images is given"),
        (check_cohere, {"texts": []}, "texts is an empty list"),
        (check_cohere, {"texts": ["a", ""]}, "texts[1] is an empty string"),
        (check_pooling, {}, "'input' (or 'messages') is required"),
        (check_pooling, {"input": ""}, "input is an empty string"),
        (check_embedding, {"input": "a", "messages": [USER]}, "input and messages are both given"),
        (check_embedding, {"messages": []}, "messages is an empty list"),
        (check_pooling, {"input": "a", "messages": [USER]}, "input and messages are both given"),
        (check_embedding, {"input": [1] * 17}, "input has 17 tokens; this model takes at most 16 (truncate"),
        (check_embedding, {"input": [[1] * 17]}, "and long_input 'split' of /v1/embeddings takes them"),
        (check_embedding, {"messages": [{**USER, "content": [5]}]}, "messages[0].content[0] is 5; allowed"),
        (check_pooling, {"input": [[{**USER, "content": ["a"]}]]}, "input[0][0].content[0] is 'a'; allowed"),
        (check_pooling, [], "the request body must be a JSON object"),
    ],
)
def test_each_refusal_says_what_was_wrong(check: Any, body: Any, message: str) -> None:
    assert message in str(refusal(check, body))


@pytest.mark.parametrize("check", [check_score, check_rerank], ids=lambda check: check.__name__)
def test_scoring_and_head(check: Any) -> None:
    for scoring in ("dot", "", 0, {}, ["cosine"], False):
        error = refusal(check, {**GOOD[check], "scoring": scoring})
        assert "allowed: cosine, maxsim" in str(error)
    assert refusal(check, {**GOOD[check], "pooling": "max"}).param == "pooling"
    assert check({**GOOD[check], "scoring": "cosine", "pooling": "last"}, LIMITS)["pooling"] == "last"
    error = refusal(check, {**GOOD[check], "scoring": "maxsim", "pooling": "last"})
    assert "no effect with scoring 'maxsim'" in str(error)


def test_pooling_takes_what_embeddings_take_for_one_vector() -> None:
    body = {"input": [[1, 2]], "normalize": False, "dimensions": 4, "pooling": "last"}
    checked = check_pooling(body, LIMITS)
    assert checked == {"input": [[1, 2]], "use_activation": False, "dimensions": 4, "pooling": "last"}
    error = refusal(check_pooling, {"input": "a", "task": "token_embed", "pooling": "last"})
    assert "no effect with task 'token_embed'" in str(error)
    for task in ("classify", "generate", "plugin", ["embed"]):
        error = refusal(check_pooling, {"input": "a", "task": task})
        assert "; allowed: embed, token_embed" in str(error)
    assert check_pooling({"input": "a", "task": "embed"}, LIMITS)["task"] == "embed"
    plugin = {"data": {"anything": 1}}
    assert check_pooling(plugin, LIMITS) == plugin


def test_normalize_and_vllms_name_for_it_must_agree() -> None:
    assert "opposite" in str(
        refusal(check_pooling, {"input": "a", "normalize": True, "use_activation": False})
    )
    assert check_pooling({"input": "a", "normalize": True, "use_activation": True}, LIMITS)["use_activation"]


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)
FIELDS = (
    "queries",
    "documents",
    "query",
    "text_1",
    "text_2",
    "texts",
    "inputs",
    "images",
    "input",
    "messages",
)
NUMBERS = ("top_n", "max_tokens", "priority", "output_dimension", "truncate_prompt_tokens", "scoring", "task")


@given(st.dictionaries(st.sampled_from([*FIELDS, *NUMBERS]), JSON_VALUES) | JSON_VALUES)
@settings(max_examples=300, deadline=None)
def test_any_json_is_accepted_or_refused_with_a_short_message(body: Any) -> None:
    for check in GOOD:
        checked, error = outcome(check, body)
        if error is None:
            assert isinstance(checked, dict)
            continue
        assert error.status in (400, 422)
        assert 0 < len(str(error)) < 500
        str(error).encode()
