"""Share a namespace with a group of users: each can read and replace the files of the others, whatever the umask.

The kernel enforces this, so that it also holds for delta-rs and Spark. Folders pass on their group (setgid) and a
default access list, which replaces the umask. Source: acl(5), inode(7).
"""

from __future__ import annotations

import errno
import os
import stat
import struct

_DEFAULT_LIST = "system.posix_acl_default"
_VERSION = struct.pack("<I", 2)
_ENTRY = struct.Struct("<HHI")
_OWNER, _GROUP, _OTHERS, _NOBODY_IN_PARTICULAR = 0x01, 0x04, 0x20, 0xFFFFFFFF


def share_with_group(root: str) -> None:
    """Give the folder's group access to the folder and everything in it, now and later. Others keep their access.

    Creates the folder if it does not exist.

    Raises OSError: EOPNOTSUPP if the file system has no access lists, or another refusal.
    """
    os.makedirs(root, exist_ok=True)
    status = os.stat(root)
    group, others_mode = status.st_gid, stat.S_IMODE(status.st_mode) & 0o007
    _share_folder(root, group, others_mode)
    for folder, folders, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in folders + files):
            if os.path.islink(path):
                continue
            if os.path.isdir(path):
                _share_folder(path, group, others_mode)
            else:
                os.chown(path, -1, group)
                os.chmod(path, 0o660 | others_mode & 0o006)


def _share_folder(path: str, group: int, others_mode: int) -> None:
    rights = [(_OWNER, 0o7), (_GROUP, 0o7), (_OTHERS, others_mode)]
    entries = [_ENTRY.pack(tag, may, _NOBODY_IN_PARTICULAR) for tag, may in rights]
    os.chown(path, -1, group)
    os.setxattr(path, _DEFAULT_LIST, _VERSION + b"".join(entries))
    os.chmod(path, 0o2770 | others_mode)
    if stat.S_IMODE(os.stat(path).st_mode) != 0o2770 | others_mode:  # chmod drops setgid for a user outside the group
        raise OSError(errno.EPERM, "the folder's group cannot be passed on to new files", path)
