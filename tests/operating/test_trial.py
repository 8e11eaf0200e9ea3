"""The operator's trial: a namespace broken in eight ways, asked with the command alone and with the console alone.

The commands are those of docs/troubleshooting.md. What they print must name who, which, how many, and what to do.
"""

import json
import os
import re
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from operating.broken_namespace import BrokenNamespace, mount_disk, open_broken_namespace, unmount_disk
from unit.browsing import Browser, facts, notices, table_rows

# A command takes a second, but many on a machine that does other work.
pytestmark = pytest.mark.timeout(900)

PAGE = (Path(__file__).parents[2] / "docs/troubleshooting.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokenNamespace]:
    disk = tmp_path_factory.mktemp("trial") / "disk"
    reason = mount_disk(disk)
    if reason is not None:
        pytest.skip(f"no small disk can be mounted here: {reason}")
    try:
        with open_broken_namespace(disk) as namespace:
            yield namespace
    finally:
        unmount_disk(disk)


@pytest.fixture(scope="module")
def browser(broken: BrokenNamespace) -> Iterator[Browser]:
    visitor = Browser(broken.console.replace("127.0.0.1", "localhost"))
    with visitor.client:
        yield visitor


def blocks(heading: str) -> list[str]:
    """Return the commands of a section of the page, block by block."""
    section = PAGE[PAGE.index(f"\n## {heading}\n") :].split("\n## ", 2)[1]
    commands = re.findall(r"^```sh\n(.*?)^```$", section, re.DOTALL | re.MULTILINE)
    assert commands, heading
    return commands


def member_of(broken: BrokenNamespace) -> str:
    """Return the id of the member that hangs."""
    (member,) = set(re.findall(r"billing-2-[\w-]+", broken.run("lakemq groups members billing")))
    return member


def test_every_section_of_troubleshooting_has_a_test() -> None:
    tested = set(re.findall(r"blocks\([\"']([^\"']+)[\"']\)", Path(__file__).read_text(encoding="utf-8")))
    assert tested == set(re.findall(r"^## (.+)$", PAGE, re.MULTILINE))


# -- with the command alone -----------------------------------------------------------------------------


def test_command_shows_everything_on_one_page(broken: BrokenNamespace) -> None:
    shown = broken.run(blocks("Start here")[0])
    for answer in (
        r"leader +\S+, epoch 1\b",
        r"standby +none",
        r"last step +[\d,]+, \d\.\d s ago",
        r"disk +\d+% full, [\d.]+ MB of 96 MB free",
        r"delayed, due in .* 60 min: 1[12],\d\d\d\b",
        r"shipping +Stable +1 +3,\d\d\d",
        r"exporter +[\d,]+ +900,000 +exports-1",
        r"mails\.dlq +mailer +given_up +mails +1",
        r"billing +Stable .*Member billing-2-\S+ polls, .*; and 1 more: lakemq groups describe GROUP --state",
        r"groups .*Member billing-2-\S+ polls, and has acknowledged nothing of orders-\d",
        r"partition 3 of clicks has 81% of the offsets",
    ):
        assert re.search(answer, shown), (answer, shown)


def test_command_names_the_member_that_hangs(broken: BrokenNamespace) -> None:
    shown, member = broken.run(blocks("A member hangs")[0]), member_of(broken)
    assert re.search(rf"billing .*Member {member} polls, and has acknowledged nothing of orders-(\d)", shown)
    assert f"lakemq groups remove-members billing --member {member}" in shown
    held = re.findall(rf"^billing +orders +(\d) .* (\d+) +{member} ", shown, re.MULTILINE)
    assert len(held) == 2
    assert all(int(count) > 100 for _, count in held)
    assert re.search(rf"{member} .*billing-2 +\S+ +\d+ ", shown), "its client id, machine and process"


def test_command_names_the_transaction_that_holds_readers_up(broken: BrokenNamespace) -> None:
    shown = broken.run(blocks("A transaction stays open")[0])
    assert re.search(r"^exporter +Ongoing .*exports-1", shown, re.MULTILINE)
    assert re.search(r"exporter +1$", shown, re.MULTILINE), "first_offset of describe-producers"
    assert re.findall(r"^exports +1 +(\d+)", shown, re.MULTILINE) == ["2", "1"]


def test_command_names_the_message_that_cannot_be_processed(broken: BrokenNamespace) -> None:
    shown = broken.run(blocks("A message cannot be processed")[0])
    assert re.search(r"^mails\.dlq +mailer +given_up +mails +1$", shown, re.MULTILINE)
    for answer in (
        '"error":"ValueError: the mail has no recipient"',
        '"delivery_count":3',
        '"source_topic":"mails","source_partition":0,"source_offset":1',
        '"value":"not a mail"',
    ):
        assert answer in shown


def test_command_names_the_hot_key(broken: BrokenNamespace) -> None:
    shown = broken.run(blocks("One key is hot")[0])
    assert re.search(r"spread +advice +partition 3 of clicks has 81% of the offsets, fair is 25%", shown)
    assert "robot" in shown
    assert "One key has 75% of the messages of clicks, in partition 3: more partitions do not spread it." in shown


def test_command_names_the_group_that_lags(broken: BrokenNamespace) -> None:
    shown = broken.run(blocks("A group lags")[0])
    groups = re.findall(r"^(\w+) +Stable +(\d) +([\d,]+)", shown[shown.index("Groups: 3") :], re.MULTILINE)
    assert groups[0][:2] == ("shipping", "1"), "the one with the most lag comes first"
    lags = re.findall(r"^shipping +orders +\d .* (\d+) +0 +shipping-1-\S+ ", shown, re.MULTILINE)
    assert len(lags) == 4
    assert sum(map(int, lags)) > 3_000


def test_command_counts_what_is_released_in_the_next_hour(broken: BrokenNamespace) -> None:
    shown = broken.run(blocks("A flood of delayed messages")[0])
    assert re.search(r"60 min: 1[12],\d\d\d\b", shown)
    assert re.search(r"^reminders +1[12]\d\d\d +0 ", shown, re.MULTILINE)


def test_command_shows_the_past(broken: BrokenNamespace, tmp_path: Path) -> None:
    script = f"cd {tmp_path}; {blocks('What did it look like at 02:10?')[0].replace('AT', broken.broken_at)}"
    shown = broken.run(script)
    owners = re.findall(r"^billing +orders +(\d) +ready +(billing-[12])-", shown, re.MULTILINE)
    assert [partition for partition, _ in owners] == ["0", "1", "2", "3"] * 2, "of the assignments, and of the report"
    assert {owner for _, owner in owners} == {"billing-1", "billing-2"}
    lags = re.findall(r"^shipping +(3\d\d\d) ", shown, re.MULTILINE)
    assert len(lags) == 1, "the tables of the report"
    report = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "shipping" in report
    assert "billing-2" in report


# -- with the console alone -----------------------------------------------------------------------------


def test_console_shows_everything_on_its_overview(broken: BrokenNamespace, browser: Browser) -> None:
    page = browser.get("/")
    shown = facts(page)
    assert shown["leader"] in broken.run("lakemq status --once")
    assert re.fullmatch(r"\d+ ms ago|[\d.]+ s ago", shown["last step"])
    assert shown["standby"] == "none"
    assert re.fullmatch(r"\d+% full, [\d.]+ MB of 96 MB free", shown["disk"])
    assert (shown["open transactions"], shown["dead letters"]) == ("1", "1")
    assert 10_000 < int(shown["due within 60 min"].replace(",", "")) <= 12_000
    lags = {row[0]: row for row in table_rows(page, "Groups with the most lag")}
    assert next(iter(lags)) == "shipping"
    assert f"Member {member_of(broken)} polls, and has acknowledged nothing of orders-" in lags["billing"][-1]


def test_console_names_the_owner_of_partition_3(broken: BrokenNamespace, browser: Browser) -> None:
    page = browser.get("/group", name="billing")
    (row,) = [row for row in table_rows(page, "Partitions: who owns what") if row[1] == "3"]
    owner = re.search(
        r"^billing +orders +3 .*(billing-[12]-\S+)", broken.run("lakemq groups lag billing"), re.MULTILINE
    )
    assert owner
    assert owner[1] in row
    stall = next(text for text in notices(page) if "acknowledged nothing" in text)
    assert f"lakemq groups remove-members billing --member {member_of(broken)}" in stall


def test_console_names_transaction_and_dead_letter(browser: Browser) -> None:
    (row,) = table_rows(browser.get("/transactions", state="Ongoing"), "Transactional ids")
    assert (row[0], row[1], row[5]) == ("exporter", "Ongoing", "exports-1")
    (row,) = table_rows(browser.get("/dead-letters"), "Dead letters")
    assert row == ["mails.dlq", "mailer", "given_up", "mails", "1"]
    (row,) = table_rows(browser.get("/dead-letter-topic", topic="mails.dlq"), "Open dead letters")
    assert "ValueError: the mail has no recipient" in row
    assert "mails-0, offset 1" in row


def test_console_names_the_hot_key(browser: Browser) -> None:
    page = browser.get("/topic", name="clicks", keys="yes")
    assert any("One key has 75% of the messages of clicks" in text for text in notices(page))
    (row,) = [row for row in table_rows(page, "Spread of keys") if row[0] == "3"]
    assert row[-1] == "robot"


def test_console_counts_what_is_released_in_the_next_hour(browser: Browser) -> None:
    (text,) = [text for text in notices(browser.get("/delayed")) if "within the next hour" in text]
    assert 10_000 < int(text.split()[0].replace(",", "")) <= 12_000


def test_console_shows_the_past(broken: BrokenNamespace, browser: Browser) -> None:
    page = browser.get("/history", at=broken.broken_at[11:19], minutes=10)  # the time of day alone
    assert not [text for text in notices(page) if "cannot be read" in text]
    owners = table_rows(page, "Who owned what at the end")
    assert len([row for row in owners if row[0] == "billing" and row[4].startswith("billing-")]) == 4
    lags = {row[0]: row[1] for row in table_rows(page, "Groups")}
    assert int(lags["shipping"].replace(",", "")) > 3_000
    assert browser.get("/history", 400, at="yesterday")


# -- the sequencer stands still, the disk is full -------------------------------------------------------


def test_stopped_sequencer_is_named(broken: BrokenNamespace, browser: Browser) -> None:
    with broken.stopped_sequencer():
        shown = broken.run(blocks("The sequencer stands still")[0])
        assert re.search(
            r"The leader \S+ is silent: its lease is 1 s\. Its last step, [\d,]+, was put \d+ s ago\.", shown
        )
        assert re.search(r"last step +[\d,]+, ([3-9]|\d\d)\.\d s ago", shown)
        assert re.search(r"sequencer +FINDING +\S+ leads with epoch 1; the last step.*", shown)
        assert (
            "It seems to be dead or stopped. Start another one, which takes over. Command: "
            f"`lakemq --path {broken.path}" in shown
        )
        for path in ("/", "/groups", "/transactions"):
            assert any("is silent: its lease is 1 s" in text for text in notices(browser.get(path))), path
        assert "FINDING" in broken.run("lakemq doctor --no-spark | grep '^sequencer'")


def test_full_disk_is_named(broken: BrokenNamespace, browser: Browser) -> None:
    with broken.full_disk():
        shown = broken.run(blocks("The disk is full")[0])
        assert re.search(r"disk +100% full, 0 B of 96 MB free", shown)
        assert re.search(r"standby +none", shown), "a leader that cannot write is no spare one"
        assert re.search(
            r"writable +FINDING +cannot be written: No space left on device .*make room on the disk", shown
        )
        assert re.search(r"space +FINDING +100% full.*Make room", shown)
        assert "Start another one" not in shown, "it would not help"
        assert re.search(r"^shipping +\w+", shown, re.MULTILINE), "the rest of the page is there"
        page = browser.get("/")
        assert any(text.startswith("space: 100% full") for text in notices(page))
        assert table_rows(page, "Groups with the most lag")[0][0] == "shipping"
    broken.run("lakemq topics list")


# -- the cures of the page ------------------------------------------------------------------------------


def test_cures_of_troubleshooting_end_the_troubles(broken: BrokenNamespace) -> None:
    member = member_of(broken)
    assert member not in broken.run(blocks("A member hangs")[1].replace("MEMBER", member) + "lakemq groups lag mailer")
    assert re.search(r"exporter +true", broken.run(blocks("A transaction stays open")[1]))
    shown = broken.run(blocks("A message cannot be processed")[1])
    assert re.findall(r"^ *1\b", shown, re.MULTILINE), shown
    assert "mails.dlq" not in broken.run("lakemq dead-letters list")
    assert "86400000" in broken.run(blocks("The disk is full")[1] + "lakemq topics describe orders")
    # On a slow machine the group may have lost its member already.
    for shown in broken.run("lakemq groups members shipping --output json").splitlines():
        laggard = json.loads(shown)
        os.kill(laggard["process_id"], signal.SIGKILL)
        broken.run(f"lakemq groups remove-members shipping --member {laggard['member_id']}")
    assert re.search(r"^shipping +orders +3 ", broken.run(blocks("A group lags")[1]), re.MULTILINE)
    assert re.search(r"\b1[12]\d\d\d\b", broken.run(blocks("A flood of delayed messages")[1]))
