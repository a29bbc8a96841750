"""Signatures of published versions, in the format of minisign.

See https://jedisct1.github.io/minisign/. An author signs a manifest, which holds a SHA-256 of every
file of a version. `minisign -G -W` makes the key files, and `minisign -V` verifies these
signatures. A signature is Ed25519 over the BLAKE2b-512 of the manifest. A second one covers the
first and its trusted comment.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import hashlib
import os
import stat
import time
from pathlib import Path
from types import ModuleType

from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.storage.local_files import describe_os_error

_KEY, _PREHASHED = b"Ed", b"ED"
_UNENCRYPTED = b"\0\0"
_MAX_BYTES = 4096
_PUBLIC_BYTES, _SECRET_BYTES, _SIGNATURE_BYTES = 42, 158, 74


@dataclasses.dataclass(frozen=True)
class PublicKey:
    """The key that verifies signatures. `key_id` are eight bytes that name the key pair."""

    key_id: bytes
    key: bytes
    file: str

    def verify(self, content: bytes, signature: bytes | None, source: str) -> None:
        """Verifies the signature of a content. `source` is for messages.

        Raises:
          DataError: there is no signature, it is by another key, or it is wrong.
        """
        if signature is None:
            raise DataError(
                f"{source} is not signed, and {self.file} requires a signature. "
                "Publish the model again with export.signing_key."
            )
        wrong = DataError(
            f"{source}: its signature is not valid for {self.file}, because the content or "
            "the signature was changed. Do not use it."
        )
        key_id, signed, comment, signed_comment = _parse_signature(signature, source)
        if key_id != self.key_id:
            raise DataError(
                f"{source} is signed by the key {_format_key_id(key_id)}, and {self.file} is the "
                f"key {_format_key_id(self.key_id)}. Use the public key of the publisher."
            )
        verify = _import_ed25519().Ed25519PublicKey.from_public_bytes(self.key).verify
        from cryptography.exceptions import InvalidSignature

        for signature_bytes, message in (
            (signed, hashlib.blake2b(content).digest()),
            (signed_comment, signed + comment),
        ):
            try:
                verify(signature_bytes, message)
            except InvalidSignature:
                raise wrong from None


@dataclasses.dataclass(frozen=True)
class SecretKey:
    """The key that signs."""

    key_id: bytes
    seed: bytes = dataclasses.field(repr=False)

    def sign(self, content: bytes, file: str) -> bytes:
        """The content of a signature file. `file` goes into the trusted comment, with the time."""
        sign = _import_ed25519().Ed25519PrivateKey.from_private_bytes(self.seed).sign
        signed = sign(hashlib.blake2b(content).digest())
        comment = f"timestamp:{int(time.time())}\tfile:{file}\thashed".encode()
        return b"\n".join(
            [
                b"untrusted comment: signature of a model that trainyard published",
                base64.b64encode(_PREHASHED + self.key_id + signed),
                b"trusted comment: " + comment,
                base64.b64encode(sign(signed + comment)),
                b"",
            ]
        )


def read_public_key(path: Path) -> PublicKey:
    """Reads a public key. Raises ConfigError if the file does not hold one."""
    value = _decode(
        _read_lines(path, "public")[1], _PUBLIC_BYTES, f"{path}: not a public key of minisign"
    )
    if value[:2] != _KEY:
        raise ConfigError(f"{path}: not a public key of minisign, which begins with RW")
    return PublicKey(value[2:10], value[10:], str(path))


def read_secret_key(path: Path) -> SecretKey:
    """Reads an unencrypted secret key.

    Raises:
      ConfigError: the file does not hold such a key, or other users can read it.
    """
    lines = _read_lines(path, "secret")
    if mode := stat.S_IMODE(os.stat(path).st_mode) & 0o077:
        raise ConfigError(
            f"{path} can be read by other users (mode {mode:03o}). Run chmod 600 on it."
        )
    value = _decode(lines[1], _SECRET_BYTES, f"{path}: not a secret key of minisign")
    if value[:2] != _KEY or value[2:4] != _UNENCRYPTED:
        raise ConfigError(
            f"{path} is encrypted by a password, which a job can't enter. Create a key "
            "with minisign -G -W, and protect its file."
        )
    key_id, seed, public = value[54:62], value[62:94], value[94:126]
    private = _import_ed25519().Ed25519PrivateKey.from_private_bytes(seed)
    if private.public_key().public_bytes_raw() != public:
        raise ConfigError(
            f"{path}: the secret key is damaged, because its two halves do not belong together. "
            "Restore the file."
        )
    return SecretKey(key_id, seed)


def _parse_signature(content: bytes, source: str) -> tuple[bytes, bytes, bytes, bytes]:
    """Key, signature, trusted comment and the signature that covers both."""
    rule = f"{source}: its signature is not in the format of minisign"
    lines = content.replace(b"\r\n", b"\n").rstrip(b"\n").split(b"\n")
    prefix = b"trusted comment: "
    if len(content) > _MAX_BYTES or len(lines) != 4 or not lines[2].startswith(prefix):
        raise DataError(f"{rule}. Publish the model again.")
    try:
        value = _decode(lines[1], _SIGNATURE_BYTES, rule)
        signed_comment = _decode(lines[3], 64, rule)
    except ConfigError as error:
        raise DataError(str(error)) from None
    if value[:2] != _PREHASHED:
        raise DataError(f"{rule} with a prehashed content. Sign it with minisign 0.10 or later.")
    return value[2:10], value[10:], lines[2].removeprefix(prefix), signed_comment


def _read_lines(path: Path, kind: str) -> list[bytes]:
    try:
        with open(path, "rb") as file:
            lines = file.read(_MAX_BYTES).splitlines()
    except OSError as error:
        raise ConfigError(f"{path}: cannot read a {kind} key: {describe_os_error(error)}") from None
    if len(lines) < 2 or not lines[0].startswith(b"untrusted comment:"):
        raise ConfigError(f"{path}: not a {kind} key of minisign. Create one with minisign -G -W.")
    return lines


def _decode(text: bytes, num_bytes: int, rule: str) -> bytes:
    try:
        value = base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError):
        raise ConfigError(f"{rule}: not base64") from None
    if len(value) != num_bytes:
        raise ConfigError(f"{rule}: it has {len(value)} bytes, not {num_bytes}")
    return value


def _format_key_id(key_id: bytes) -> str:
    """The name of a key as minisign writes it."""
    return key_id[::-1].hex().upper()


def _import_ed25519() -> ModuleType:
    """Imports the package late, because every DAG file reads manifests and few are signed."""
    try:
        from cryptography.hazmat.primitives.asymmetric import ed25519
    except ImportError as error:
        raise ConfigError(
            f"signatures need the package {error.name}. Install cryptography for this interpreter."
        ) from None
    return ed25519
