"""The mailbox over every kind of Files: one suite of behaviours, then its bounds and several processes."""

from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest
from obstore.store import LocalStore

from lakemq.tables.storage.coordination import mailbox as mailbox_module
from lakemq.tables.storage.coordination.mailbox import LetterExists, LetterName, Mailbox, MailboxFull
from lakemq.tables.storage.object_stores.files import Files, LocalFiles, ObjectFiles

NOW_MS = 1_732_176_000_123

IMPLEMENTATIONS: dict[str, Callable[[str], Files]] = {
    "local": LocalFiles,
    "obstore": lambda root: ObjectFiles(LocalStore(root, automatic_cleanup=True), f"file://{root}"),
}


@pytest.fixture(params=IMPLEMENTATIONS)
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    return IMPLEMENTATIONS[request.param](str(tmp_path))


class Clock:
    """Monotonic seconds that pass only if a test says so."""

    def __init__(self) -> None:
        self.now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


def list_numbers(letters: list[LetterName]) -> list[tuple[str, int]]:
    return [(letter.client_id, letter.number) for letter in letters]


# -- names ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "alien",
    [
        "",
        "README",
        "1732176000000-c",
        "1732176000000-c-1",
        "173217600000-c-0000000001",
        "1732176000000--0000000001",
        "1732176000000-c-0000000000",
        "1732176000000-c-00000000001x",
        "1732176000000-c/d-0000000001",
        "1732176000000-c-0000000001\n",
        "１７３２１７６００００００-c-0000000001",
    ],
)
def test_invalid_names_are_not_letters(alien: str):
    assert LetterName.parse(alien) is None


@pytest.mark.parametrize("client_id", ["", ".", "..", "../x", "a/b", ".hidden", "-c", "x" * 129, "ä", "a b", "a\n"])
def test_invalid_client_id_is_refused(files: Files, client_id: str):
    mailbox = Mailbox(files)
    for call in (
        lambda: mailbox.put(client_id, 1, b"", NOW_MS),
        lambda: mailbox.put_answer(client_id, 1, b""),
        lambda: mailbox.poll_answer(client_id, 1),
        lambda: mailbox.forget_answer(client_id, 1),
        lambda: mailbox.forget_client(client_id),
    ):
        with pytest.raises(ValueError, match="client id: found"):
            call()
    assert files.list("mailbox") == []


# -- letters --------------------------------------------------------------------------------------------


def test_letters_are_ordered_by_coarse_time_client_and_number(files: Files):
    mailbox = Mailbox(files)
    order = [("b", 2, 5_999), ("a", 10, 7_000), ("a", 9, 7_900), ("c", 1, 7_100), ("b", 3, 6_000), ("a", 8, 20_000)]
    for client_id, number, now_ms in order:
        mailbox.put(client_id, number, b"", now_ms)
    expected = [("b", 2), ("b", 3), ("a", 9), ("a", 10), ("c", 1), ("a", 8)]
    assert list_numbers(mailbox.list_waiting(10)) == expected


def test_second_letter_with_a_number_is_refused(files: Files):
    mailbox = Mailbox(files)
    name = mailbox.put("c", 1, b"first", NOW_MS)
    with pytest.raises(LetterExists, match=f"found the letter '{name}' waiting, expected"):
        mailbox.put("c", 1, b"second", NOW_MS + 1)
    (letter,) = mailbox.list_waiting(10)
    assert mailbox.read(letter) == b"first"


def test_objects_that_are_no_letters_are_skipped_and_listed(files: Files):
    mailbox = Mailbox(files)
    aliens = ["0-first", "README.txt", "zz"]
    for alien in aliens:
        files.put(f"mailbox/{alien}", b"")
    files.put("mailbox/folder/1732176000000-c-0000000009", b"")
    assert mailbox.list_waiting(1) == []
    mailbox.put("c", 1, b"", NOW_MS)
    assert list_numbers(mailbox.list_waiting(10)) == [("c", 1)]
    assert list_numbers(mailbox.list_waiting(1)) == [("c", 1)]
    assert mailbox.list_unknown_names(10) == aliens
    assert mailbox.list_unknown_names(2) == aliens[:2]


def test_letter_above_the_bound_is_not_put_or_read(files: Files, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(mailbox_module, "MAX_LETTER_BYTES", 10)
    mailbox = Mailbox(files)
    with pytest.raises(ValueError, match="size of a letter: found 11 bytes, expected at most 10"):
        mailbox.put("c", 1, b"x" * 11, NOW_MS)
    name = mailbox.put("c", 1, b"x" * 10, NOW_MS)
    assert mailbox.read(LetterName(name, "c", 1)) == b"x" * 10
    files.put(f"mailbox/{LetterName.of('c', 2, NOW_MS).name}", b"x" * 11)
    ((unreadable, reason),) = mailbox.find_unreadable(10)
    assert unreadable.endswith("-c-0000000002")
    assert reason == "more than 10 bytes"


# -- answers --------------------------------------------------------------------------------------------


def test_a_reply_written_again_stands_in_place_of_the_first(files: Files):
    mailbox = Mailbox(files)
    mailbox.put_answer("c", 1, b"")  # as a loss of power may leave an answer
    mailbox.put_answer("c", 1, b"answer")
    assert mailbox.poll_answer("c", 1) == b"answer"


def test_a_forgotten_client_leaves_nothing_and_others_stay(files: Files, tmp_path: Path):
    mailbox = Mailbox(files)
    for client_id in ("c", "cc"):
        for number in (1, 2):
            mailbox.put_answer(client_id, number, b"answer")
    mailbox.forget_client("c")
    mailbox.forget_client("c")
    assert [path.name for path in (tmp_path / "replies").iterdir()] == ["cc"]
    assert mailbox.poll_answer("cc", 2) == b"answer"
    mailbox.put_answer("c", 3, b"late")
    assert mailbox.poll_answer("c", 3) == b"late"


# -- the limit ------------------------------------------------------------------------------------------


def test_full_mailbox_refuses_letters(files: Files):
    clock = Clock()
    mailbox = Mailbox(files, limit=3, monotonic_s=clock)
    for number in (1, 2, 3):
        mailbox.put("c", number, b"", NOW_MS)
    clock.now_s += 1
    with pytest.raises(MailboxFull, match="found 3 letters waiting, expected fewer than 3"):
        mailbox.put("c", 4, b"", NOW_MS)
    assert len(mailbox.list_waiting(10)) == 3

    mailbox.discard(mailbox.list_waiting(1))
    with pytest.raises(MailboxFull):  # by the count of a moment before
        mailbox.put("c", 4, b"", NOW_MS)
    clock.now_s += 1
    mailbox.put("c", 4, b"", NOW_MS)
    assert list_numbers(mailbox.list_waiting(10)) == [("c", 2), ("c", 3), ("c", 4)]


# -- a backlog ------------------------------------------------------------------------------------------


def test_iteration_to_the_end_includes_new_letters(tmp_path: Path):
    """Another sequencer took all letters of an old listing. New ones still come in the same call."""
    files = LocalFiles(str(tmp_path))
    stale, other = Mailbox(files), Mailbox(files)
    for number in range(1, 8):
        other.put("old", number, b"", 1_000)
    assert len(list(islice(stale.iterate_letters(), 5))) == 5
    other.discard(other.list_waiting(100))
    other.put("new", 1, b"", 9_000)
    letters = list(stale.iterate_letters())
    assert list_numbers(letters) == [("old", 6), ("old", 7), ("new", 1)]
    assert [stale.read(letter) is not None for letter in letters] == [False, False, True]
