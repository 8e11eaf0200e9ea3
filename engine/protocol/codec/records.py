"""Records as JSON, which holds integers of any size."""

from __future__ import annotations

import msgspec

from ..errors import NewerFormat
from ..values.base import Record
from ..values.clients import Answered
from ..values.journal import FORMAT_VERSION, RECORDS, AnyRecord
from .results import check_answer

_encoder = msgspec.json.Encoder()
_records: msgspec.json.Decoder[AnyRecord] = msgspec.json.Decoder(AnyRecord)
_ANSWERED = str(Answered.__struct_config__.tag)
_KINDS = frozenset(str(kind.__struct_config__.tag) for kind in RECORDS)


class _RecordTag(msgspec.Struct):
    record: str


_tags = msgspec.json.Decoder(_RecordTag)


def check_format(version: int, holder: str) -> None:
    """Raise NewerFormat or ValueError unless this is the version of steps that this LakeMQ reads. holder: has it."""
    if version > FORMAT_VERSION:
        raise NewerFormat(found=f"{holder} format {version}", expected=f"at most {FORMAT_VERSION}")
    if version < FORMAT_VERSION:
        raise ValueError(f"{holder} format {version} is older than {FORMAT_VERSION}, and no command migrates it")


def encode_record(record: Record) -> str:
    """Encode a record, without its segments."""
    return _encoder.encode(record).decode()


def decode_record(text: str) -> Record:
    """Decode a record. Raises NewerFormat if only a newer version knows its kind; ValueError if it is none."""
    try:
        return _records.decode(text)
    except msgspec.ValidationError:
        kind = _tags.decode(text).record
        if kind == _ANSWERED:
            check_answer(text)
        if kind in _KINDS:
            raise
        raise NewerFormat(found=f"a decision {kind}", expected="one that this version knows") from None
