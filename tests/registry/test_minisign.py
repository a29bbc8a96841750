"""Signatures in minisign's format: its own vectors, its own program where there is one, and every
way to be wrong."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from signing_keys import make_pair

from pipeline_ops.errors import ConfigError, DataError
from pipeline_ops.registry.minisign import read_public_key, read_secret_key

PUBLIC = """untrusted comment: minisign public key E7620F1842B4E81F
RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3
"""
SIGNATURE = """untrusted comment: signature from minisign secret key
RUQf6LRCGA9i559r3g7V1qNyJDApGip8MfqcadIgT9CuhV3EMhHoN1mGTkUidF/z7SrlQgXdy8ofjb7bNJJylDOocrCo8KLzZwo=
trusted comment: timestamp:1556193335\tfile:test
y/rUw2y8/hOUYjZU71eHp/Wo1KZ40fGy2VJEDl34XMJM+TX48Ss/17u3IvIfbVR1FkZZSNCisQbuQY+bHwhEBg==
"""
"""The signature of the content `test` by the author of minisign."""


@pytest.fixture
def public(tmp_path) -> Path:
    (tmp_path / "minisign.pub").write_text(PUBLIC)
    return tmp_path / "minisign.pub"


@pytest.fixture
def pair(tmp_path) -> tuple[Path, Path]:
    """A public and a secret key, made as minisign makes them."""
    return make_pair(tmp_path / "own")


def test_a_signature_of_minisigns_author_is_valid(public):
    read_public_key(public).verify(b"test", SIGNATURE.encode(), "there")


@pytest.mark.parametrize(
    "content, signature, message",
    [
        (
            b"Test",
            SIGNATURE,
            (
                "there: its signature is not valid .*minisign.pub, because "
                "the content or the signature was changed"
            ),
        ),
        (b"test", SIGNATURE.replace("1556193335", "1556193336"), "is not valid"),
        (b"test", SIGNATURE.replace("y/rU", "y/rV"), "is not valid"),
        (b"test", SIGNATURE.replace("559r", "559s"), "is not valid"),
        (
            b"test",
            SIGNATURE.replace("RUQf6L", "RUQf6M"),
            "signed by the key E7620F1842C4E81F, and .* is the key E7620F1842B4E81F",
        ),
        (b"test", SIGNATURE.replace("RUQ", "RWQ"), "with a prehashed content"),
        (b"test", SIGNATURE[:200], "not in the format of minisign"),
        (b"test", SIGNATURE + "more\n", "not in the format of minisign"),
        (b"test", SIGNATURE.replace("Zwo=", "Zw=="), "not in the format of minisign"),
        (b"test", "", "not in the format of minisign"),
        (b"test", SIGNATURE * 100, "not in the format of minisign"),
    ],
)
def test_whatever_was_changed_is_refused(public, content, signature, message):
    with pytest.raises(DataError, match=message):
        read_public_key(public).verify(content, signature.encode(), "there")


def test_what_is_not_signed_is_refused(public):
    with pytest.raises(
        DataError, match="there is not signed, and .*minisign.pub requires a signature"
    ):
        read_public_key(public).verify(b"test", None, "there")


def test_what_is_signed_here_is_valid_here_and_for_no_other_key(pair, public):
    signature = read_secret_key(pair[1]).sign(b"content", "model/1/manifest.json")
    read_public_key(pair[0]).verify(b"content", signature, "there")
    with pytest.raises(DataError, match="is signed by the key"):
        read_public_key(public).verify(b"content", signature, "there")


@pytest.mark.parametrize(
    "text, message",
    [
        ("", "not a public key of minisign"),
        ("untrusted comment: x\nRWQ=\n", "it has 2 bytes, not 42"),
        ("untrusted comment: x\n!\n", "not base64"),
        (PUBLIC.replace("RWQ", "RUQ"), "begins with RW"),
    ],
)
def test_a_file_that_is_no_public_key_is_refused(public, text, message):
    public.write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_public_key(public)


def test_a_secret_key_that_others_can_read_or_that_is_damaged_or_missing_is_refused(pair):
    secret = pair[1]
    secret.chmod(0o644)
    with pytest.raises(ConfigError, match=r"can be read by other users .mode 044.\. Run chmod 600"):
        read_secret_key(secret)
    secret.chmod(0o600)
    text = secret.read_text()
    secret.write_text(text[:130] + "AAAA" + text[134:])
    with pytest.raises(ConfigError, match="the secret key is damaged"):
        read_secret_key(secret)
    secret.unlink()
    with pytest.raises(ConfigError, match="cannot read a secret key: no such file"):
        read_secret_key(secret)


def test_a_secret_key_does_not_appear_in_a_message(pair):
    assert "seed" not in repr(read_secret_key(pair[1]))


def test_minisign_itself_agrees(tmp_path):
    """Its program, where it is installed, makes the keys and checks the signature; else the vectors
    above have to do."""
    if not shutil.which("minisign"):
        return
    public, secret, content = (tmp_path / name for name in ("own.pub", "own.key", "manifest.json"))
    subprocess.run(
        ["minisign", "-G", "-W", "-p", public, "-s", secret], check=True, capture_output=True
    )
    content.write_bytes(b"{}" * 1000)
    secret.chmod(0o600)
    (tmp_path / "manifest.json.minisig").write_bytes(
        read_secret_key(secret).sign(content.read_bytes(), "manifest.json")
    )
    subprocess.run(["minisign", "-V", "-p", public, "-m", content], check=True, capture_output=True)
    subprocess.run(
        ["minisign", "-S", "-s", secret, "-m", content, "-x", tmp_path / "theirs"],
        check=True,
        capture_output=True,
    )
    read_public_key(public).verify(
        content.read_bytes(), (tmp_path / "theirs").read_bytes(), "there"
    )
