"""Key pairs in minisign's format, for tests of signatures."""

from __future__ import annotations

import base64
import os
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def make_pair(folder: Path) -> tuple[Path, Path]:
    """The files of a public and of an unencrypted secret key, made as `minisign -G -W` makes
    them."""
    private, key_id = Ed25519PrivateKey.generate(), os.urandom(8)
    public_bytes = private.public_key().public_bytes_raw()
    secret = (
        b"Ed"
        + bytes(2)
        + b"B2"
        + bytes(48)
        + key_id
        + private.private_bytes_raw()
        + public_bytes
        + bytes(32)
    )
    folder.mkdir()
    public, file = folder / "key.pub", folder / "key"
    public.write_bytes(
        b"untrusted comment: public\n" + base64.b64encode(b"Ed" + key_id + public_bytes) + b"\n"
    )
    file.write_bytes(b"untrusted comment: secret\n" + base64.b64encode(secret) + b"\n")
    file.chmod(0o600)
    return public, file
