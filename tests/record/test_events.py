"""Events and their one encoding: what is known comes back equal, what is newer comes back byte for byte."""

from typing import Any, get_args

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.record.events import (
    ID_CHARS_MAX,
    KINDS,
    NAME_CHARS_MAX,
    SCHEMA,
    IncidentDiagnosed,
    KnownEvent,
    MalformedEvent,
    StepCommitted,
    Unknown,
    decode,
    encode,
    kind_of,
)

ASKED_FOR = [
    "run.submitted",
    "run.started",
    "run.ended",
    "generation.opened",
    "member.joined",
    "member.lost",
    "step.begun",
    "step.committed",
    "checkpoint.begun",
    "checkpoint.saved",
    "checkpoint.loaded",
    "checkpoint.failed",
    "checkpoint.verified",
    "checkpoint.copied",
    "phase.entered",
    "fault.observed",
    "action.taken",
    "cost.rate",
    "reference.declared",
    "incident.diagnosed",
    "correction",
]

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


def _example(kind: Any) -> Any:
    """An event of this kind with every field set to something."""
    values: dict[str, object] = {}
    for field in msgspec.structs.fields(kind):
        options = get_args(field.type) or (field.type,)
        literals = [value for option in options for value in (option, *get_args(option))]
        literals = [value for value in literals if isinstance(value, str)]
        text = str(field.type)
        if field.name in ("id", "source", "run", "subject"):
            values[field.name] = "a"
        elif literals:
            values[field.name] = literals[0]
        elif "tuple" in text:
            values[field.name] = (1,) if "int" in text else ("b",)
        elif "bool" in text:
            values[field.name] = True
        elif "float" in text:
            values[field.name] = 1.5
        elif "int" in text:
            values[field.name] = 1
        else:
            values[field.name] = "c"
    return kind(**values)


def test_every_kind_that_was_asked_for_is_there() -> None:
    assert set(ASKED_FOR) <= set(KINDS)
    assert len(set(KINDS)) == len(KINDS)


@pytest.mark.parametrize("kind", get_args(KnownEvent), ids=lambda kind: kind.__name__)
def test_an_event_comes_back_as_it_was(kind: Any) -> None:
    event = _example(kind)
    assert decode(encode(event)) == event
    assert kind_of(decode(encode(event))) == kind_of(event)


@given(st.text(min_size=1).filter(lambda kind: kind not in KINDS), st.dictionaries(st.text(), json_values))
def test_a_kind_of_the_future_is_kept_byte_for_byte(kind: str, fields: dict[str, Any]) -> None:
    own = {"kind": kind, "id": "x-1", "occurred_ns": 7, "run": "r"}
    body = msgspec.json.encode({**{name: fields[name] for name in fields if name.islower()}, **own})
    try:
        event = decode(body)
    except MalformedEvent:
        return  # a field of the envelope was drawn, and of the wrong type
    assert isinstance(event, Unknown)
    assert (event.kind, event.run, event.occurred_ns) == (kind, "r", 7)
    assert encode(event) == body


def test_a_known_kind_of_a_newer_schema_is_unknown_and_kept() -> None:
    body = b'{"kind":"step.committed","id":"x","occurred_ns":1,"schema":%d,"step":"seven"}' % (SCHEMA + 1)
    event = decode(body)
    assert isinstance(event, Unknown)
    assert encode(event) == body


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{}",
        b"[]",
        b'{"kind":"step.committed","id":"x","occurred_ns":1}',
        b'{"kind":"step.committed","id":"x","occurred_ns":-1,"step":1}',
        b'{"kind":"step.committed","id":"","occurred_ns":1,"step":1}',
        b'{"kind":"step.committed","id":"x","occurred_ns":%d,"step":1}' % 2**63,
        b'{"id":"x","occurred_ns":1}',
        b'{"kind":"new.kind","occurred_ns":1}',
        b'{"kind":"new.kind","id":"\xff","occurred_ns":1}',
        b'{"a":' * 100_000,
    ],
)
def test_what_is_no_event_is_refused(body: bytes) -> None:
    with pytest.raises(MalformedEvent):
        decode(body)


@pytest.mark.parametrize(
    ("field", "length"), [("id", ID_CHARS_MAX), ("run", NAME_CHARS_MAX), ("subject", NAME_CHARS_MAX)]
)
def test_names_have_bounds(field: str, length: int) -> None:
    fields = {"id": "x", "occurred_ns": 1, "step": 1}
    longest = StepCommitted(**{**fields, field: "n" * length})  # type: ignore[arg-type]
    assert decode(encode(longest)) == longest
    with pytest.raises(MalformedEvent):
        decode(encode(StepCommitted(**{**fields, field: "n" * (length + 1)})))  # type: ignore[arg-type]


def test_a_diagnosis_is_open_changed_or_resolved() -> None:
    said = IncidentDiagnosed(id="x", occurred_ns=1, run="r", incident="r/s1", state="open", diagnosis="{}")
    assert decode(encode(said)) == said
    with pytest.raises(MalformedEvent):
        decode(encode(said).replace(b'"open"', b'"perhaps"'))


@settings(max_examples=examples(300))
@given(st.binary(max_size=200) | json_values.map(msgspec.json.encode))
def test_any_bytes_are_an_event_or_refused(body: bytes) -> None:
    try:
        event = decode(body)
    except MalformedEvent:
        return
    assert decode(encode(event)) == event
