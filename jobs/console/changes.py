"""Changes of the namespace: what each needs and takes from a form, what its confirmation page says, what it does."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa

from lakemq.engine.client.topics import MAX_PARTITIONS
from lakemq.engine.namespace.config import MEANINGS
from lakemq.jobs.commands.shared.times import parse_position
from lakemq.jobs.console.console import Console
from lakemq.jobs.console.parts import (
    Actions,
    Field,
    Form,
    Link,
    Notice,
    Part,
    Table,
    TextBlock,
    list_records,
    make_link,
)
from lakemq.jobs.console.payloads import escape_invisible
from lakemq.jobs.output import format_setting
from lakemq.jobs.status import name_losers, name_readers

if TYPE_CHECKING:
    from lakemq.engine.client.groups.groups import GroupOffsetChange

# Read what a visitor has entered: every input has a longest length or a range.


LONGEST_NAME = 255
LONGEST_TEXT = 10_000
_LONGEST = {
    "text": LONGEST_TEXT,
    "receipt": 4_000,
    "at": 40,
    "after": 8_000,
    **dict.fromkeys(("key", "id", "member", "value", "before", "headers"), 1_000),
}
"""Input -> most characters, where it is no name."""
HIGHEST_NUMBER = 2**63 - 1


class BadInput(ValueError):
    """An input of a visitor is not acceptable. The message says which one, and what is expected."""


OF_EVERY_PAGE = ("refresh", "done")
"""Inputs that every page takes."""


def check_names(inputs: Mapping[str, Any], names: Sequence[str]) -> None:
    """Raise BadInput if there is another input: a misspelled one must not look as if it had been used."""
    unknown = [name for name in inputs if name not in (*names, *OF_EVERY_PAGE)]
    if unknown:
        raise BadInput(f"There is no input {unknown[0][:LONGEST_NAME]!r} here. Expected: {', '.join(names) or 'none'}.")


def read_text(inputs: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a text. Raises BadInput if it is missing and has no default, or is too long."""
    text = inputs.get(name)
    if not isinstance(text, str) or not text:
        if default is None:
            raise BadInput(f"The input {name} is missing.")
        return default
    longest = _LONGEST.get(name, LONGEST_NAME)
    if len(text) > longest:
        raise BadInput(f"The input {name} has {len(text)} characters. At most {longest} are allowed.")
    return text


def read_number(
    inputs: Mapping[str, Any], name: str, default: int | None = None, low: int = 0, high: int = HIGHEST_NUMBER
) -> int:
    """Return a whole number within a range. Raises BadInput."""
    text = read_text(inputs, name, default="" if default is None else str(default))
    if not (text.isascii() and text.removeprefix("-").isdecimal()) or not low <= int(text) <= high:
        raise BadInput(f"The input {name} is {text!r}. Expected a whole number from {low} to {high}.")
    return int(text)


def read_choice(inputs: Mapping[str, Any], name: str, choices: Sequence[str]) -> str:
    """Return one of the choices; the first one by default. Raises BadInput."""
    text = read_text(inputs, name, default=choices[0])
    if text not in choices:
        raise BadInput(f"The input {name} is {text!r}. Expected one of: {', '.join(choices)}.")
    return text


def read_position(inputs: Mapping[str, Any], name: str, default: str) -> Any:
    """Return a position in a log: earliest, latest, an offset, or a time. Raises BadInput."""
    text = read_text(inputs, name, default)
    try:
        position = parse_position(text)
    except ValueError as error:
        raise BadInput(f"The input {name} is not a position: {error}.") from None
    if isinstance(position, int) and position > HIGHEST_NUMBER:
        raise BadInput(f"The input {name} is {text!r}. Expected an offset up to {HIGHEST_NUMBER}.")
    return position


# The changes: what each needs, what its confirmation page says, and what it does.


Inputs = Mapping[str, Any]

_MOST_ROWS = 200


@dataclass(frozen=True)
class Change:
    """A kind of change.

    Attributes:
        title: names it.
        fields: its inputs, with their labels; the confirmation form carries all of them.
        preview: returns what it would do, without doing it.
        apply: does it.
        page: returns where to go afterwards.
        done: the sentence that says that it is done.
    """

    title: str
    fields: Mapping[str, str]
    preview: Callable[[Console, Inputs], list[Part]]
    apply: Callable[[Console, Inputs], object]
    page: Callable[[Inputs], str]
    done: str


# -- offsets of groups ----------------------------------------------------------------------------------


def _reset_offsets(console: Console, inputs: Inputs, dry_run: bool) -> list[GroupOffsetChange]:
    topic = read_text(inputs, "topic", "")
    partition = read_number(inputs, "partition", high=2**31 - 1) if inputs.get("partition") else None
    if not inputs.get("to"):
        raise BadInput("The input to is missing. Expected earliest, latest, an offset or a time.")
    if partition is not None and not topic:
        raise BadInput("The input partition needs a topic.")
    topics = topic or None if partition is None else [(topic, partition)]
    to = read_position(inputs, "to", "latest")
    return console.mq.groups.reset_offsets(read_text(inputs, "group"), topics, to=to, dry_run=dry_run)


def _preview_reset(console: Console, inputs: Inputs) -> list[Part]:
    changes = _reset_offsets(console, inputs, dry_run=True)
    text = f"The group {inputs['group']} will go on from these offsets. Messages in between are skipped, or come again."
    moves = [(c.before, c.after) for c in changes]
    skipped = sum(max(0, after - before) for before, after in moves if before is not None and after is not None)
    loss = [Notice(f"It skips {skipped:,} offsets that it has not read.", "bad")] if skipped else []
    columns, none = "topic, partition, before, after", "No offset would change."
    return [*loss, Notice(text), list_records("Changes", changes[:_MOST_ROWS], columns, none)]


# -- dead letters ---------------------------------------------------------------------------------------


def _make_condition(inputs: Inputs) -> str | None:
    group = read_text(inputs, "group", default="")
    return "consumer_group = '" + group.replace("'", "''") + "'" if group else None


def _preview_redrive(console: Console, inputs: Inputs) -> list[Part]:
    topic = read_text(inputs, "topic")
    redriven = console.mq.dead_letters.redrive(topic, _make_condition(inputs), dry_run=True)
    text = f"{redriven.messages:,} dead letters of {topic} will be sent back to the ends of their source topics."
    stay = f"{redriven.without_topic:,} stay, because their source topic does not exist."
    return [Notice(text), *([Notice(stay)] if redriven.without_topic else [])]


def _preview_purge(console: Console, inputs: Inputs) -> list[Part]:
    topic = read_text(inputs, "topic")
    count = console.mq.dead_letters.purge(topic, _make_condition(inputs), dry_run=True)
    text = f"{count:,} dead letters of {topic} will be purged: they are listed no more, and cannot be sent back."
    stay = "Their messages stay in the topic for as long as its retention says."
    return [Notice(text, "bad"), Notice(stay)]


# -- delayed messages -----------------------------------------------------------------------------------


def _preview_cancel(console: Console, inputs: Inputs) -> list[Part]:
    if read_text(inputs, "receipt", ""):
        return [Notice("The message with this receipt will be cancelled, if it still waits.")]
    topic = read_text(inputs, "topic", default="")
    if not topic:
        raise BadInput("Give a receipt, or a topic.")
    count = console.mq.delayed.cancel_where(topic, _read_key(inputs), dry_run=True).num_rows
    return [Notice(f"{count:,} messages that wait for {topic} will be cancelled. They will not be delivered.")]


def _apply_cancel(console: Console, inputs: Inputs) -> None:
    receipt = read_text(inputs, "receipt", "")
    if receipt:
        console.mq.delayed.cancel(receipt)
    else:
        console.mq.delayed.cancel_where(read_text(inputs, "topic"), _read_key(inputs))


def _read_key(inputs: Inputs) -> str | None:
    return read_text(inputs, "key", "") or None


# -- transactions ---------------------------------------------------------------------------------------


def _preview_abort(console: Console, inputs: Inputs) -> list[Part]:
    info = console.mq.transactions.describe(read_text(inputs, "id"))
    places = ", ".join(info.partitions) or "no partition yet"
    text = f"The open transaction of {info.transactional_id} in {places} will be aborted, and its producer is fenced."
    return [Notice(text if info.state == "Ongoing" else f"{info.transactional_id} has no open transaction now.")]


# -- members --------------------------------------------------------------------------------------------


def _preview_removal(console: Console, inputs: Inputs) -> list[Part]:
    group, member_id = read_text(inputs, "group"), read_text(inputs, "member")
    for member in console.mq.groups.members(group):
        if member.member_id == member_id:
            has = ", ".join(member.partitions) or "no partition"
            text = f"The member {member_id} of {group} will be removed. It has {has}: other members get that at once."
            return [Notice(text), Notice("A member that lives joins again with its next poll.")]
    return [Notice(f"{member_id} has left {group} already.")]


# -- settings -------------------------------------------------------------------------------------------


def _read_setting(inputs: Inputs) -> dict[str, str | None]:
    return {read_text(inputs, "setting"): read_text(inputs, "value", "") or None}


def _preview_setting(subject: str, current: Mapping[str, Any], inputs: Inputs) -> list[Part]:
    ((name, value),) = _read_setting(inputs).items()
    if name not in current:
        raise BadInput(f"There is no setting {name!r}. Expected one of: {', '.join(sorted(current))}.")
    rows = [[name, format_setting(current[name]), "its default" if value is None else value]]
    table = Table("Change", ("setting", "now", "new"), rows, note=MEANINGS[name])
    return [Notice(f"This setting of {subject} will change."), table]


def _preview_topic(console: Console, inputs: Inputs) -> list[Part]:
    topic = console.mq.topics.describe(read_text(inputs, "topic"))
    parts = _preview_setting(f"the topic {topic.topic}", topic.settings, inputs)
    losers = name_losers(console.mq, topic.topic, _read_setting(inputs))
    text = f"With this setting, retention deletes unread messages of {losers}. This cannot be undone."
    return [Notice(text, "bad"), *parts] if losers else parts


def _preview_deletion(console: Console, inputs: Inputs) -> list[Part]:
    topic = console.mq.topics.describe(read_text(inputs, "topic"))
    size, readers = f"{topic.offset_count:,} offsets", name_readers(console.mq, topic.topic)
    return [Notice(f"The topic {topic.topic} with {size}{readers} will be deleted. This cannot be undone.", "bad")]


def _preview_creation(console: Console, inputs: Inputs) -> list[Part]:
    topic, partitions = read_text(inputs, "topic"), _read_partitions(inputs)
    with console.observer.look() as observation:
        observation.state.check_new_topic(topic)
    about = f"The topic {topic} with {partitions:,} partitions will be created."
    return [Notice(f"{about} Its settings are the defaults.")]


def _read_partitions(inputs: Inputs) -> int:
    return read_number(inputs, "partitions", 1, low=1, high=MAX_PARTITIONS)


def _preview_partitions(console: Console, inputs: Inputs) -> list[Part]:
    topic, partitions = console.mq.topics.describe(read_text(inputs, "topic")), _read_partitions(inputs)
    if partitions <= topic.partitions:
        raise BadInput(f"{topic.topic} has {topic.partitions} partitions. Expected a larger number.")
    text = f"The topic {topic.topic} will have {partitions:,} partitions instead of {topic.partitions:,}."
    return [Notice(text), Notice("Keys may go to other partitions from then on. Later messages may overtake earlier.")]


def _preview_publish(console: Console, inputs: Inputs) -> list[Part]:
    topic = console.mq.topics.describe(read_text(inputs, "topic"))
    row = _read_message(inputs)
    headers = "\n".join(f"{header['key']}={header['value'].decode()}" for header in row["headers"])
    texts = {"Key": row.get("key"), "Headers": headers.encode() or None, "Value": row["value"]}
    about = f"A message with a value of {len(row['value']):,} bytes will be published to {topic.topic}."
    return [
        Notice(about),
        *(TextBlock(name, "none" if text is None else escape_invisible(text.decode())) for name, text in texts.items()),
    ]


def _read_message(inputs: Inputs) -> dict[str, Any]:
    """Return the row to publish. Browsers send each line end as CRLF; the message has LF."""
    key, value = _read_key(inputs), read_text(inputs, "text", "").replace("\r\n", "\n")
    lines = read_text(inputs, "headers", "").splitlines()
    if bad := [line for line in lines if "=" not in line]:
        raise BadInput(f"The input headers has the line {bad[0]!r}. Expected name=value in each line.")
    pairs = (line.split("=", 1) for line in lines)
    headers = [{"key": name, "value": text.encode()} for name, text in pairs]
    return {"value": value.encode(), "headers": headers, **({"key": key.encode()} if key else {})}


def _publish(console: Console, inputs: Inputs) -> None:
    rows = pa.Table.from_pylist([_read_message(inputs)])
    console.mq.publish(read_text(inputs, "topic"), rows, on_error="fail")


def _read_before(inputs: Inputs) -> dict[int, int]:
    text = read_text(inputs, "before")
    if not re.fullmatch(r"\d{1,9}=\d{1,18}( +\d{1,9}=\d{1,18})*", text, re.ASCII):
        raise BadInput(f"The input before is {text!r}. Expected PARTITION=OFFSET, more of them after spaces.")
    pairs = [(int(partition), int(offset)) for partition, offset in (pair.split("=") for pair in text.split())]
    if len(dict(pairs)) < len(pairs):
        raise BadInput(f"The input before is {text!r}. Expected each partition once.")
    return dict(pairs)


def _preview_record_deletion(console: Console, inputs: Inputs) -> list[Part]:
    topic, before = console.mq.topics.describe(read_text(inputs, "topic")), _read_before(inputs)
    if unknown := [partition for partition in before if partition >= len(topic.end_offsets)]:
        raise BadInput(f"The topic {topic.topic} has no partition {unknown[0]}.")
    rows = [(part, topic.beginning_offsets[part], before[part], topic.end_offsets[part]) for part in sorted(before)]
    if beyond := [row for row in rows if row[2] > row[3]]:
        raise BadInput(f"{topic.topic}-{beyond[0][0]} ends at offset {beyond[0][3]}. Expected no offset beyond that.")
    count = sum(max(0, offset - start) for _, start, offset, _ in rows)
    about = f"{count:,} offsets of {topic.topic}{name_readers(console.mq, topic.topic)} will be deleted."
    table = Table("Offsets", ("partition", "start", "before", "end"), rows)
    return [Notice(f"{about} This cannot be undone.", "bad"), table]


def _preview_group(console: Console, inputs: Inputs) -> list[Part]:
    group = console.mq.groups.describe(read_text(inputs, "group"))
    return _preview_setting(f"the group {group.group}", group.settings, inputs)


def _preview_group_deletion(console: Console, inputs: Inputs) -> list[Part]:
    group = console.mq.groups.describe(read_text(inputs, "group"))
    text = f"The group {group.group} with its committed offsets and its settings will be deleted."
    loss = Notice(f"{text} It has {group.lag:,} offsets left to read. This cannot be undone.", "bad")
    members = f"It has {group.members:,} member{'' if group.members == 1 else 's'}"
    return [loss, *([Notice(f"{members}, and cannot be deleted while it has any.", "bad")] if group.members else [])]


CHANGES: dict[str, Change] = {
    "reset-offsets": Change(
        "Reset offsets",
        {
            "group": "group",
            "topic": "topic (empty: all)",
            "partition": "partition (empty: all)",
            "to": "earliest, latest, an offset or a time",
        },
        _preview_reset,
        lambda console, inputs: _reset_offsets(console, inputs, dry_run=False),
        lambda inputs: make_link("/group", name=inputs["group"]),
        "The offsets are reset.",
    ),
    "redrive": Change(
        "Send dead letters back",
        {"topic": "topic", "group": "only those of this group (empty: all)"},
        _preview_redrive,
        lambda console, inputs: console.mq.dead_letters.redrive(read_text(inputs, "topic"), _make_condition(inputs)),
        lambda inputs: "/dead-letters",
        "The dead letters are sent back.",
    ),
    "purge": Change(
        "Purge dead letters",
        {"topic": "topic", "group": "only those of this group (empty: all)"},
        _preview_purge,
        lambda console, inputs: console.mq.dead_letters.purge(read_text(inputs, "topic"), _make_condition(inputs)),
        lambda inputs: "/dead-letters",
        "The dead letters are purged.",
    ),
    "cancel-delayed": Change(
        "Cancel delayed messages",
        {"receipt": "receipt of one message", "topic": "or a topic", "key": "with this key (empty: all keys)"},
        _preview_cancel,
        _apply_cancel,
        lambda inputs: "/delayed",
        "The messages that still waited are cancelled.",
    ),
    "abort": Change(
        "Abort a transaction",
        {"id": "transactional id"},
        _preview_abort,
        lambda console, inputs: console.mq.transactions.abort(read_text(inputs, "id")),
        lambda inputs: "/transactions",
        "The transaction is aborted.",
    ),
    "remove-member": Change(
        "Remove a member",
        {"group": "group", "member": "member"},
        _preview_removal,
        lambda console, inputs: console.mq.groups.remove_members(
            read_text(inputs, "group"), [read_text(inputs, "member")]
        ),
        lambda inputs: make_link("/group", name=inputs["group"]),
        "The member is removed.",
    ),
    "alter-topic": Change(
        "Change a setting of the topic",
        {"topic": "topic", "setting": "setting", "value": "new value; empty: the default"},
        _preview_topic,
        lambda console, inputs: console.mq.topics.alter(read_text(inputs, "topic"), _read_setting(inputs)),
        lambda inputs: make_link("/topic", name=inputs["topic"]),
        "The setting is changed.",
    ),
    "create-topic": Change(
        "Create a topic",
        {"topic": "name", "partitions": "partitions"},
        _preview_creation,
        lambda console, inputs: console.mq.topics.create(read_text(inputs, "topic"), _read_partitions(inputs)),
        lambda inputs: make_link("/topic", name=inputs["topic"]),
        "The topic is created.",
    ),
    "add-partitions": Change(
        "Add partitions",
        {"topic": "topic", "partitions": "new number of partitions"},
        _preview_partitions,
        lambda console, inputs: console.mq.topics.alter(
            read_text(inputs, "topic"), partitions=_read_partitions(inputs)
        ),
        lambda inputs: make_link("/topic", name=inputs["topic"]),
        "The topic has more partitions.",
    ),
    "publish": Change(
        "Publish a message",
        {
            "topic": "topic",
            "key": "key (empty: none)",
            "headers": "headers, a line each: name=value",
            "text": "value: a short text",
        },
        _preview_publish,
        _publish,
        lambda inputs: make_link("/messages", topic=inputs["topic"]),
        "The message is published.",
    ),
    "delete-records": Change(
        "Delete records",
        {"topic": "topic", "before": "all before these offsets: PARTITION=OFFSET, more of them after spaces"},
        _preview_record_deletion,
        lambda console, inputs: console.mq.topics.delete_records(read_text(inputs, "topic"), _read_before(inputs)),
        lambda inputs: make_link("/topic", name=inputs["topic"]),
        "The records are deleted.",
    ),
    "delete-topic": Change(
        "Delete the topic",
        {"topic": "topic"},
        _preview_deletion,
        lambda console, inputs: console.mq.topics.delete(read_text(inputs, "topic")),
        lambda inputs: "/topics",
        "The topic is deleted.",
    ),
    "alter-group": Change(
        "Change a setting of the group",
        {
            "group": "group",
            "setting": "setting",
            "value": "new value; empty: the default",
        },
        _preview_group,
        lambda console, inputs: console.mq.groups.alter(read_text(inputs, "group"), _read_setting(inputs)),
        lambda inputs: make_link("/group", name=inputs["group"]),
        "The setting is changed.",
    ),
    "delete-group": Change(
        "Delete the group",
        {"group": "group"},
        _preview_group_deletion,
        lambda console, inputs: console.mq.groups.delete(read_text(inputs, "group")),
        lambda inputs: "/groups",
        "The group is deleted.",
    ),
}
"""Each change by the name in its address."""
DESTROYING = (
    *("reset-offsets", "purge", "cancel-delayed", "abort", "remove-member"),
    *("delete-topic", "delete-records", "delete-group"),
)
"""Changes by which something is lost or cut off. Their buttons look different."""


_ROWS = {"text": 6, "headers": 2}
"""Input -> its lines, where a form has room for more than one."""


def offer_change(name: str, settings: Iterable[str] = (), **given: str) -> Form:
    """Return the form that leads to a change. settings: to choose from; given: inputs that the page knows already."""
    change = CHANGES[name]
    choices = {"setting": {setting: f"{setting}: {MEANINGS[setting]}" for setting in sorted(settings)}}
    fields = [
        Field(field, label, given.get(field, ""), choices.get(field, ()), _ROWS.get(field, 0), field in given)
        for field, label in change.fields.items()
    ]
    # an address is too short for a long text
    action, method = (f"/preview/{name}", "post") if "text" in change.fields else (f"/change/{name}", "get")
    return Form(change.title, action, fields, "Continue", method, is_change=True, destroys=name in DESTROYING)


# Commands of an advice that a change of the console does become links to its confirmation.


class _Cure(NamedTuple):
    """The change that does what a command does.

    subject: the input for what the command names; field: the input for the values of its option, or empty.
    """

    change: str
    subject: str
    field: str = ""


_CURES = {
    ("groups", "remove-members", "--member"): _Cure("remove-member", "group", "member"),
    ("groups", "alter", "--config"): _Cure("alter-group", "group", "setting"),
    ("topics", "create"): _Cure("create-topic", "topic"),
    ("topics", "alter", "--config"): _Cure("alter-topic", "topic", "setting"),
    ("topics", "delete-records", "--before"): _Cure("delete-records", "topic", "before"),
    ("transactions", "abort"): _Cure("abort", "id"),
    ("delayed", "purge"): _Cure("cancel-delayed", "topic"),
}
"""Words and option of a command -> the change. The third word is the subject, then come the option and its value."""


def list_cures(commands: Iterable[Sequence[str]]) -> list[Link]:
    """Return links to the changes that do what these commands do."""
    links: dict[str, Link] = {}
    for command in commands:
        cure = _CURES.get((*command[:2], *dict.fromkeys(command[3::2])))
        if cure is None:
            continue
        values = command[4::2]
        inputs = {cure.subject: command[2], **({cure.field: " ".join(values)} if cure.field else {})}
        if cure.field == "setting":
            inputs["setting"], _, inputs["value"] = values[0].partition("=")
        href = make_link(f"/change/{cure.change}", **inputs)
        about = inputs.get("member") or inputs.get("setting")
        links[href] = Link(f"{CHANGES[cure.change].title}: {command[2]}{f' ({about})' if about else ''}", href)
    return [*links.values()]


def offer_cures(console: Console, commands: Iterable[Sequence[str]]) -> list[Part]:
    """Return the links of an advice, if the console may change something."""
    links = list_cures(commands) if console.settings.allow_changes else []
    return [Actions(links)] if links else []
