"""Prints a line for each file of the image that it runs in: all that a build could change."""

from __future__ import annotations

import hashlib
import os
import stat

MOUNTED = {
    *("/proc", "/sys", "/dev", "/.dockerenv"),
    *("/etc/hosts", "/etc/hostname", "/etc/resolv.conf", "/etc/mtab", "/list_files.py"),
}
"""Docker makes these when it starts a container."""


def describe(path: str) -> str:
    found = os.lstat(path)
    text = f"{path} {found.st_mode:o} {found.st_uid}:{found.st_gid}"
    if stat.S_ISDIR(found.st_mode):
        return text  # a builder sets the time of a folder that it makes
    if stat.S_ISLNK(found.st_mode):
        return f"{text} {found.st_mtime:.0f} {os.readlink(path)}"
    with open(path, "rb") as file:
        return f"{text} {found.st_mtime:.0f} {hashlib.file_digest(file, 'sha256').hexdigest()}"


for folder, folders, files in os.walk("/"):
    folders[:] = sorted(each for each in folders if os.path.join(folder, each) not in MOUNTED)
    for name in sorted([*folders, *files]):
        if (path := os.path.join(folder, name)) not in MOUNTED:
            print(describe(path))
