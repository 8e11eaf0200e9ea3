"""A namespace that a group of users shares: what any of them writes, all of them can read and replace, whatever umask.

The kernel sees to it, so that it holds for delta-rs and Spark too: folders pass on their group (setgid) and an access
list for all that is made in them, which stands in for the umask. Source: acl(5), inode(7).
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
    """The folder and all in it are for the group of the folder, now and later; for others as it is now.

    The folder is made where it is not there. OSError: EOPNOTSUPP, the file system has no access lists; or it refuses.
    """
    os.makedirs(root, exist_ok=True)
    found = os.stat(root)
    group, others = found.st_gid, stat.S_IMODE(found.st_mode) & 0o007
    _share_folder(root, group, others)
    for folder, folders, files in os.walk(root):
        for path in (os.path.join(folder, name) for name in folders + files):
            if os.path.islink(path):
                continue
            if os.path.isdir(path):
                _share_folder(path, group, others)
            else:
                os.chown(path, -1, group)
                os.chmod(path, 0o660 | others & 0o006)


def _share_folder(path: str, group: int, others: int) -> None:
    rights = [(_OWNER, 0o7), (_GROUP, 0o7), (_OTHERS, others)]
    entries = [_ENTRY.pack(tag, may, _NOBODY_IN_PARTICULAR) for tag, may in rights]
    os.chown(path, -1, group)
    os.setxattr(path, _DEFAULT_LIST, _VERSION + b"".join(entries))
    os.chmod(path, 0o2770 | others)
    if stat.S_IMODE(os.stat(path).st_mode) != 0o2770 | others:  # by who is not of the group
        raise OSError(errno.EPERM, "the folder's group cannot be passed on to what is made in it", path)
