"""Copies of a namespace as of one step, taken while it is used.

A backup is a manifest: it names the tables' logs up to some version, the files that these versions have, the steps
after the watermark that they hold, and the files that these steps name. A leader that starts on a restored copy finds
what it would have found after a crash at that step.

Invariant: an object of a backup never changes, and the manifest is put last. So a backup that is killed changes none of
those before, and the next one goes on with what it has copied. Manifests are in the order in which their backups began,
and then of their steps. Data files have random names, and are stored under these. Another history of the same
namespace, after a restore, may have other steps and log entries under the same names. So these are stored under their
content's hash, too. The same holds for a data file with rows of steps some of which a restore has left out.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import NamedTuple, TypeVar

import msgspec
import pyarrow as pa
import xxhash

from lakemq.tables.specs.journal import JOURNAL, WATERMARKS
from lakemq.tables.specs.messages import FINAL_MESSAGES, MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.coordination.step_objects import STEPS_FOLDER, StepsGone, list_steps, step_name
from lakemq.tables.storage.delta.delta_log import DeltaLog, log_folder
from lakemq.tables.storage.delta.store import NotATable, name_file
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.files import Files, LocalFiles, open_files

from ..namespace.data_file import file_name
from ..namespace.namespace import Namespace
from ..namespace.step_reader import take_snapshot
from ..protocol.codec.steps import decode_head, decode_step_object
from ..protocol.errors import InvalidRequest, NamespaceError, NewerFormat, StorageError, TableDamaged
from ..protocol.values.log import FilesAdded

FORMAT = 1
MANIFESTS = "manifests"
_MANIFEST = re.compile(r"manifests/(\d{20})-(\d{20})\.json")
_ROUNDS = 10
"""How often a backup starts again because a merge removed objects while it copied. Each round copies the rest."""
_COPIES = 8
"""Objects that are copied at a time."""
_PIECE_BYTES = 8 << 20


class StoredObject(NamedTuple):
    """An object of a backup: its name there, its size, and its hash (XXH3, 128 bits, in hex)."""

    stored_as: str
    size_bytes: int
    digest: str


class Manifest(msgspec.Struct, frozen=True):
    """What belongs to a backup.

    Attributes:
        least_step: the last one that the tables hold. Later ones are in step objects.
        step: the last one.
        decided_at_ms: when that was decided.
        objects: by their names in the namespace.
    """

    format_version: int
    namespace_id: str
    least_step: int
    step: int
    decided_at_ms: int
    objects: dict[str, StoredObject]


@dataclass(frozen=True)
class Copied:
    """What a backup or a restore has done. Objects that were there already are not copied again."""

    step: int
    decided_at_ms: int
    object_count: int
    copied_count: int
    copied_bytes: int


def take_backup(namespace: Namespace, destination: Files) -> Copied:
    """Copy the namespace as of its newest step. What an earlier backup has is copied again only if it is lost.

    Publishers and sequencers go on meanwhile.

    Raises:
        InvalidRequest: the destination has backups of another namespace.
        StorageError: objects are missing, or are removed faster than they can be copied.
    """
    _check_outside(namespace.files, destination)
    stored_before: dict[str, StoredObject] = {}
    for manifest in (manifests := read_manifests(destination)):
        if manifest.namespace_id != namespace.namespace_id:
            raise InvalidRequest(
                f"{destination.root} has backups of another namespace.",
                found=manifest.namespace_id,
                expected=f"backups of {namespace.namespace_id}, or an empty folder",
            )
        stored_before.update(manifest.objects)
    folders = {stored.stored_as.rpartition("/")[0] for stored in stored_before.values()}
    there = {name for folder in folders for name in destination.list(folder)}
    stored_before = {name: stored for name, stored in stored_before.items() if stored.stored_as in there}
    copier, missing = _Copier(namespace.files, destination, stored_before), ""
    for _ in range(_ROUNDS):
        number = max((number for number, _ in _list_manifests(destination)), default=0) + 1
        try:
            manifest = _take(namespace, copier)
            break
        except FileNotFoundError as error:
            missing = str(error)
        except StepsGone as error:
            missing = f"steps were removed: {error}"
        except NotATable as error:
            raise TableDamaged(f"{error}.", expected="all tables to be there: run lakemq doctor") from error
    else:
        raise StorageError(
            f"The namespace could not be copied: in {_ROUNDS} attempts an object was missing each time.",
            found=missing,
            expected="lakemq doctor to find nothing, or larger merge.grace.ms and reader.grace.ms where the sequencer"
            " runs",
        )
    if manifests[:1] != [manifest]:
        _put_manifest(destination, number, manifest)
    return copier.report(manifest)


def _check_outside(source: Files, destination: Files) -> None:
    """Raise InvalidRequest if backups would be in the namespace, and be lost with it."""
    roots = [files.root for files in (source, destination)]
    if isinstance(destination, LocalFiles):
        roots = [os.path.realpath(root) for root in roots]
    if f"{roots[1]}/".startswith(f"{roots[0]}/"):
        raise InvalidRequest(f"{destination.root} is in the namespace.", expected="a folder outside of it")


def _put_manifest(destination: Files, number: int, manifest: Manifest) -> None:
    """Put a manifest. Of backups that run at once, with one number, the one with the last step counts as newer."""
    while True:
        try:
            destination.put(_name_manifest(number, manifest.step), msgspec.json.encode(manifest))
            return
        except FileExistsError:  # another backup of this step, which has ended first
            number += 1


def _take(namespace: Namespace, copier: _Copier) -> Manifest:
    """Copy one consistent set of objects. Raises FileNotFoundError, StepsGone: something was removed meanwhile."""
    files, store = namespace.files, namespace.store
    # The newest watermark in the copy must be one whose rows all copied tables have. So its table is opened first.
    watermarks = store.open(WATERMARKS)
    snapshot = take_snapshot(store)
    handles = {**snapshot.handles, WATERMARKS.name: watermarks}
    before_steps = [store.open(spec) for spec in TABLES if spec.is_open_to_writers]
    first = watermarks.last_step()
    if max(handle.floor() for handle in handles.values()) > first:
        raise StepsGone(f"tables were merged beyond step {first}")
    last = max(list_steps(files), default=0)
    steps = {step_name(number): files.get(step_name(number)) for number in range(first, last + 1)}
    small = {name: copier.copy_small(name, body) for name, body in steps.items()}
    # Rows of the open tables come after the steps: what these have drained must not seem new there.
    handles |= {handle.spec.name: store.open(handle.spec) for handle in before_steps}
    copier.forget_others({name_file(MESSAGES, file): file.size_bytes for file in handles[MESSAGES.name].files()})
    names = [name_file(handle.spec, file) for handle in handles.values() for file in handle.files()]
    # A drain removes rows that it has published. If its step comes after the copied ones, they are needed.
    for before in before_steps:
        names += [name_file(before.spec, file) for file in before.files()]
        for version in range(before.version + 1, handles[before.spec.name].version + 1):
            names += DeltaLog(files, before.spec.name).list_added_files(version)
    names += _name_files_of_steps(steps.values())
    # Its log may have later checkpoints than the entries of the copy. No leader could commit behind these.
    folders = set(files.folders(FINAL_MESSAGES.name)) - {log_folder(FINAL_MESSAGES.name)}
    waiting = [name for folder in sorted(folders) for name in files.list(folder)]
    large = copier.copy_large(names, [name for name in waiting if name.endswith(".parquet")])
    logs = ((DeltaLog(files, handle.spec.name), handle.version) for handle in handles.values())
    entries = [name for log, version in logs for name in log.list_objects(version)]
    small |= dict(zip(entries, _call_at_once(copier.read_small, entries), strict=True))
    head = decode_head(steps[step_name(last)])
    least = max(handle.last_step() for handle in handles.values())
    manifest = Manifest(FORMAT, namespace.namespace_id, least, last, head.decided_at_ms, small | large)
    if least > last:
        raise StepsGone(f"the tables hold step {least}, and the last step is {last}")
    return manifest


def _name_files_of_steps(bodies: Iterable[bytes]) -> list[str]:
    """Return the names of the data files that steps name. Rows without a file yet are in the steps themselves."""
    records = (entry.record for body in bodies for entry in decode_step_object(body)[1].entries)
    return [file_name(file.file_id) for record in records if isinstance(record, FilesAdded) for file in record.files]


class _Copier:
    """Copies objects from a namespace to a backup, and counts them."""

    def __init__(self, source: Files, destination: Files, stored_before: dict[str, StoredObject]) -> None:
        """stored_before: objects that the backup has, by their names in the namespace. More come."""
        self._source, self.destination, self._known = source, destination, stored_before
        self._stored = {stored.stored_as for stored in stored_before.values()}
        self._copied: list[int] = []
        """Their sizes in bytes. Several threads append to it."""

    def read_small(self, name: str) -> StoredObject:
        """Copy an object whose name other objects may have had. Raises FileNotFoundError."""
        return self.copy_small(name, self._source.get(name))

    def copy_small(self, name: str, body: bytes) -> StoredObject:
        """Put the content of such an object, unless it is there."""
        digest = xxhash.xxh3_128_hexdigest(body)
        stored = StoredObject(f"{name}.{digest}", len(body), digest)
        if stored.stored_as not in self._stored:
            try:
                self.destination.put(stored.stored_as, body)
                self._copied.append(len(body))
            except FileExistsError:
                check_object(self.destination, stored)
            self._stored.add(stored.stored_as)
        return stored

    def copy_large(self, names: Iterable[str], waiting: Iterable[str]) -> dict[str, StoredObject]:
        """Copy data files that are not there yet. waiting: those that may be removed meanwhile, if nothing names them.

        Raises FileNotFoundError.
        """
        required = set(names)
        new = [name for name in sorted(required.union(waiting)) if name not in self._known]

        def copy(name: str) -> StoredObject | None:
            try:
                return self._copy_file(name)
            except FileNotFoundError:
                if name in required:
                    raise
                return None

        copies = zip(new, _call_at_once(copy, new), strict=True)
        self._known |= {name: stored for name, stored in copies if stored is not None}
        return {name: self._known[name] for name in required.union(waiting) if name in self._known}

    def forget_others(self, sizes_bytes: Mapping[str, int]) -> None:
        """Copy those of these files again that the backup has with another size: they are of another history."""
        for name, size_bytes in sizes_bytes.items():
            if name in self._known and self._known[name].size_bytes != size_bytes:
                del self._known[name]

    def _copy_file(self, name: str) -> StoredObject:
        try:
            stored = StoredObject(name, *copy_object(self._source, name, self.destination, name))
        except TableDamaged:  # the name is taken by another content, which stays
            digest = _hash_object(self._source, name)[1]
            as_name = f"{name}.{digest}"
            stored = StoredObject(as_name, *copy_object(self._source, name, self.destination, as_name))
        self._copied.append(stored.size_bytes)
        return stored

    def report(self, manifest: Manifest) -> Copied:
        counts = len(manifest.objects), len(self._copied), sum(self._copied)
        return Copied(manifest.step, manifest.decided_at_ms, *counts)


T = TypeVar("T")
R = TypeVar("R")


def _call_at_once(function: Callable[[T], R], items: Iterable[T]) -> list[R]:
    """Return what the function returns for each item. It is called for several at a time."""
    with Workers(_COPIES, "lakemq-copies") as pool:
        return list(pool.map(function, items))


def copy_object(source: Files, name: str, target: Files, as_name: str) -> tuple[int, str]:
    """Copy an object in pieces. Return its size and hash. One that is there already must be the same.

    Raises FileNotFoundError: it is gone. TableDamaged: another object has its name.
    """
    try:
        with source.open_input(name) as reader, target.open_output(as_name) as writer:
            return _hash_pieces(reader, writer.write)
    except FileExistsError:
        size_bytes, digest = _hash_object(source, name)
        check_object(target, StoredObject(as_name, size_bytes, digest))
        return size_bytes, digest


def _hash_object(files: Files, name: str) -> tuple[int, str]:
    """Return the size and the hash of an object. Raises FileNotFoundError."""
    with files.open_input(name) as reader:
        return _hash_pieces(reader, lambda piece: None)


def _hash_pieces(reader: pa.NativeFile, write: Callable[[bytes], object]) -> tuple[int, str]:
    """Read to the end, write each piece, and return the size and the hash of all."""
    size_bytes, digest = 0, xxhash.xxh3_128()
    while piece := reader.read(_PIECE_BYTES):
        digest.update(piece)
        size_bytes += len(piece)
        write(piece)
    return size_bytes, digest.hexdigest()


def check_object(files: Files, expected: StoredObject) -> None:
    """Read an object, and check that it is as it was copied. Raises TableDamaged."""
    try:
        size_bytes, digest = _hash_object(files, expected.stored_as)
    except FileNotFoundError:
        raise _make_missing_error(files, expected) from None
    _compare(files, expected, size_bytes, digest)


def _compare(files: Files, expected: StoredObject, size_bytes: int, digest: str) -> None:
    """Raise TableDamaged if an object of the backup has another size or hash than it had when it was copied."""
    if (size_bytes, digest) != (expected.size_bytes, expected.digest):
        raise TableDamaged(
            f"{expected.stored_as} in {files.root} is not as it was copied.",
            found=f"{size_bytes} bytes with hash {digest}",
            expected=f"{expected.size_bytes} bytes with hash {expected.digest}",
        )


def _make_missing_error(files: Files, expected: StoredObject) -> TableDamaged:
    return TableDamaged(f"{expected.stored_as} is missing in {files.root}.", expected="a whole copy")


def read_manifests(files: Files) -> list[Manifest]:
    """Return the backups in a folder, the newest first. Raises NewerFormat, TableDamaged."""
    return [_read_manifest(files, _name_manifest(*numbers)) for numbers in reversed(_list_manifests(files))]


def _list_manifests(files: Files) -> list[tuple[int, int]]:
    """Return the numbers and the steps of all manifests, in order."""
    found = (_MANIFEST.fullmatch(name) for name in files.list(MANIFESTS))
    return sorted((int(match[1]), int(match[2])) for match in found if match)


def _name_manifest(number: int, step: int) -> str:
    return f"{MANIFESTS}/{number:020d}-{step:020d}.json"


def _read_manifest(files: Files, name: str) -> Manifest:
    try:
        manifest = msgspec.json.decode(files.get(name), type=Manifest)
    except msgspec.MsgspecError as error:
        raise TableDamaged(
            f"{name} in {files.root} cannot be read: {error}.", expected="a backup: delete this file to give it up"
        ) from error
    if manifest.format_version != FORMAT:
        raise NewerFormat(
            f"Another version of LakeMQ wrote {name}.", found=str(manifest.format_version), expected=str(FORMAT)
        )
    return manifest


def verify_backups(files: Files) -> int:
    """Read all objects of all backups, and return how many there are. Raises TableDamaged: one is not as copied."""
    objects = {stored for manifest in read_manifests(files) for stored in manifest.objects.values()}
    _call_at_once(partial(check_object, files), objects)
    return len(objects)


# Restoring.


def restore_backup(source: Files, path: str, options: Mapping[str, str], until: int | datetime | None) -> Copied:
    """Make a namespace from the newest backup, or from the newest one that has a step or the time of one.

    It may be repeated if it was killed. The journal's log comes last, so a namespace that can be opened is whole.

    Args:
        path: of the new namespace: an empty folder, or one that is not there.
        options: of its store.
        until: the last step, or the time of the last one. None: all that the backup has.

    Raises:
        InvalidRequest: no backup has this step or time.
        NamespaceError: a namespace is there.
        TableDamaged: an object of the backup is missing, or not as it was copied.
    """
    target = open_files(path, options)
    manifest, last, decided_at_ms = _choose(source, until)
    later = {step_name(step) for step in range(last + 1, manifest.step + 1)}
    objects = {name: stored for name, stored in manifest.objects.items() if name not in later}
    journal = sorted((name for name in objects if name.startswith(f"{log_folder(JOURNAL.name)}/")), reverse=True)
    written = set(target.list(log_folder(JOURNAL.name)))
    if written and (journal[-1] in written or not written <= set(journal)):
        raise NamespaceError(f"{path} is a namespace already.", expected="an empty folder, or none")
    for folder in (STEPS_FOLDER, *(log_folder(spec.name) for spec in TABLES)):
        if others := set(target.list(folder)) - objects.keys():
            raise NamespaceError(
                f"{path} has steps or log entries that this backup does not have.",
                found=min(others),
                expected="an empty folder, none, or a part of the same copy",
            )
    copied: list[int] = []

    def copy(name: str) -> None:
        stored = objects[name]
        try:
            size_bytes, digest = copy_object(source, stored.stored_as, target, name)
        except FileNotFoundError:
            if source.size(stored.stored_as) is not None:  # it is the new namespace that cannot be written
                raise
            raise _make_missing_error(source, stored) from None
        _compare(source, stored, size_bytes, digest)
        copied.append(size_bytes)

    _call_at_once(copy, objects.keys() - set(journal))
    for name in journal:
        copy(name)
    return Copied(last, decided_at_ms, len(objects), len(copied), sum(copied))


def _choose(source: Files, until: int | datetime | None) -> tuple[Manifest, int, int]:
    """Return a backup, the last of its steps that is wanted, and when that was decided."""
    manifests = read_manifests(source)
    if not manifests:
        raise InvalidRequest(f"{source.root} has no backup.", expected="a folder that lakemq backup has written")
    for manifest in manifests:
        if until is None:
            return manifest, manifest.step, manifest.decided_at_ms
        if isinstance(until, int) and manifest.least_step <= until <= manifest.step:
            return manifest, until, _read_time(source, manifest, until)
        if isinstance(until, datetime):
            until_ms = int(until.timestamp() * 1000)
            steps = range(manifest.step, manifest.least_step - 1, -1)
            times = ((step, _read_time(source, manifest, step)) for step in steps)
            for step, decided_at_ms in times:
                if decided_at_ms <= until_ms:
                    return manifest, step, decided_at_ms
    ranges = ", ".join(f"{manifest.least_step} to {manifest.step}" for manifest in manifests[:5])
    raise InvalidRequest(
        f"No backup in {source.root} ends at this step or time.",
        found=str(until),
        expected=f"one of steps {ranges}" + (", and older ones" if len(manifests) > 5 else ""),
    )


def _read_time(source: Files, manifest: Manifest, step: int) -> int:
    """Return when a step was decided. Raises TableDamaged."""
    stored = manifest.objects[step_name(step)]
    check_object(source, stored)
    return decode_head(source.get(stored.stored_as)).decided_at_ms
