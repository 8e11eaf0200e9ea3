"""Values of every kind of request, result and record, for tests to draw.

A kind is drawn field by field: by the field's name, if it is listed here, or else by its type. Listed names have few
values, so that drawn requests often meet.
"""

import types
from collections.abc import Iterable
from enum import Enum
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import hypothesis.strategies as st
import msgspec

from lakemq.engine.protocol.errors import Refusal
from lakemq.engine.protocol.values.delays import CancelDelays, DelayedRanges, EndedRanges, RescheduleDelays
from lakemq.engine.protocol.values.journal import RECORDS, AnyRecord
from lakemq.engine.protocol.values.kinds import SUBJECTS, AnyRequest, AnyResult
from lakemq.engine.protocol.values.log import Ranges
from lakemq.engine.protocol.values.segments import Segments
from lakemq.tables.specs.topics import SEGMENT_SCHEMA

texts = st.text(st.characters(codec="utf-8"), max_size=20)
small = st.integers(0, 3)
counts = small | st.integers(0, 2**40)
numbers = st.integers(-1, 3) | st.integers()
SEGMENT_COLUMNS = {
    "string": texts,
    "bool": st.booleans(),
    "int32": small | st.integers(0, 2**31 - 1),
    "int64": small | st.integers(0, 2**62),
}
segment_rows = st.fixed_dictionaries(
    {
        **{field.name: st.none() | SEGMENT_COLUMNS[str(field.type)] for field in SEGMENT_SCHEMA},
        "kind": st.sampled_from(["data", "commit", "abort"]),
        "transactional": st.booleans(),
        "origin": st.just("publish"),
        "footer_hash": st.none() | st.integers(-(2**63), 2**63 - 1),
        "min_timestamp_ms": st.none() | st.integers(-(2**54), 2**54),
    }
)
segments = st.lists(segment_rows, max_size=4).map(
    lambda rows: Segments([[row[name] for row in rows] for name in SEGMENT_SCHEMA.names])
)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | texts, lambda inner: st.lists(inner, max_size=2), max_leaves=4
)

# -- by name --------------------------------------------------------------------------------------------

NAMES = st.just("t") | st.sampled_from(["t", "u", "..", "t/u", ">"]) | texts
MEMBERS = st.sampled_from(["C1", "C1", "C2", "", "x" * 250]) | texts
TRANSACTIONAL_IDS = st.just("etl") | st.sampled_from(["other", ""]) | texts
TEXTS_BY_NAME = {
    **dict.fromkeys(("topic", "topics", "group", "subscriptions", "target"), NAMES),
    **dict.fromkeys(("member_id", "members", "instance_id", "instances"), MEMBERS),
    "transactional_id": TRANSACTIONAL_IDS,
    "assignors": st.sampled_from(["range", "sticky", "", "x" * 250]) | texts,
    "auto_offset_reset": st.sampled_from(["earliest", "latest", "none", ""]),
}
INTEGERS_BY_NAME = {
    "session_timeout_ms": st.integers(5_999, 6_001) | st.integers(),
    "partitions": st.integers(-1, 4) | st.integers(),  # a topic with 100,000 partitions would take long
}
KEYS = st.sampled_from(["retention.ms", "partitioner", "group.protocol", "group.assignor", "x"])
CONFIGS: st.SearchStrategy[dict[str, Any]] = st.just({}) | st.dictionaries(KEYS, json_values, max_size=2)

# -- by type --------------------------------------------------------------------------------------------


def draw_integer(name: str, bounds: Iterable[Any] = ()) -> st.SearchStrategy[int]:
    limits = [meta for meta in bounds if isinstance(meta, msgspec.Meta)]
    if not limits:
        return INTEGERS_BY_NAME.get(name, numbers)
    (meta,) = limits
    most = meta.le if meta.le is not None else meta.lt - 1  # type: ignore[operator]
    return st.integers(max(meta.ge, -1), 3) | st.integers(meta.ge, most)  # type: ignore[arg-type, type-var]


def draw_value(hint: Any, name: str) -> st.SearchStrategy[Any]:
    """Draw a value of a type. name: the field that has it."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Annotated:
        if arguments[0] is int:
            return draw_integer(name, arguments[1:])
        return draw_value(arguments[0], name)
    if origin in (Union, types.UnionType):
        return st.one_of([draw_value(argument, name) for argument in arguments])
    if origin is Literal:
        return st.sampled_from(arguments)
    if origin is list:
        return st.lists(draw_value(arguments[0], name), max_size=3)
    if origin is tuple:
        return st.tuples(*(draw_value(argument, name) for argument in arguments))
    if origin is dict:
        if name == "config":
            return CONFIGS
        return st.dictionaries(*(draw_value(argument, name) for argument in arguments), max_size=2)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return st.sampled_from(hint)
    if isinstance(hint, type) and issubclass(hint, msgspec.Struct):
        return draw_struct(hint)
    simple = {str: TEXTS_BY_NAME.get(name, texts), bytes: st.binary(max_size=5), bool: st.booleans()}
    simple |= {type(None): st.none(), Any: json_values}
    return draw_integer(name) if hint is int else simple[hint]


def draw_columns(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Draw a struct of columns of one length."""
    cells = {name: get_args(hint)[0] for name, hint in get_type_hints(kind, include_extras=True).items()}

    def draw_of_length(length: int) -> st.SearchStrategy[Any]:
        columns = {
            name: st.lists(draw_value(hint, name), min_size=length, max_size=length) for name, hint in cells.items()
        }
        return st.builds(kind, **columns)

    return st.integers(0, 3).flatmap(draw_of_length)


def draw_struct(kind: type[msgspec.Struct]) -> st.SearchStrategy[Any]:
    """Draw a struct. Requests may have columns of several lengths, which the sequencer must refuse."""
    if kind in (DelayedRanges, EndedRanges):
        return draw_columns(kind)
    if kind is Refusal:
        details = st.none() | st.integers() | texts
        return st.builds(Refusal, st.just("INVALID_REQUEST"), texts, details, st.none() | texts)
    hints = get_type_hints(kind, include_extras=True)
    fields = st.builds(kind, **{name: draw_value(hint, name) for name, hint in hints.items()})
    return fields | draw_columns(kind) if kind in (Ranges, CancelDelays, RescheduleDelays) else fields


requests: st.SearchStrategy[AnyRequest] = st.one_of(
    [draw_struct(kind) for subject in SUBJECTS for kind in subject.REQUESTS]
)
results: st.SearchStrategy[AnyResult] = draw_value(AnyResult, "")
records: st.SearchStrategy[AnyRecord] = st.one_of([draw_struct(kind) for kind in RECORDS])
