"""Makes the passwords and keys of the cluster, once: `make_secrets.py FOLDER`.

Each file is mounted into the containers that need it, and into no other. The folder is closed to
other users of the machine. The files in it are readable for all, because each container has a user
of its own. Files that exist are left alone.
"""

from __future__ import annotations

import base64
import json
import os
import secrets
import sys
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
)

_HOSTS = ("host-1", "host-2")
_SSH_PORT = 2222


def build_secrets() -> dict[str, str]:
    """The contents of the files. Names in capitals become environment variables."""
    postgres, redis = secrets.token_hex(24), secrets.token_hex(24)
    database = f"postgresql+psycopg2://airflow:{postgres}@postgres/airflow"
    client_key, client = _make_ssh_key()
    host_keys = {host: _make_ssh_key() for host in _HOSTS}
    known = [f"[{host}]:{_SSH_PORT} {public}\n" for host, (_, public) in host_keys.items()]
    return {
        "postgres_password": postgres,
        "redis_password": redis,
        "airflow_passwords": json.dumps({"admin": secrets.token_urlsafe(18)}),
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database,
        "AIRFLOW__CELERY__RESULT_BACKEND": f"db+{database}",
        "AIRFLOW__CELERY__BROKER_URL": f"redis://:{redis}@redis:6379/0",
        "AIRFLOW__CORE__FERNET_KEY": base64.urlsafe_b64encode(secrets.token_bytes(32)).decode(),
        "AIRFLOW__API__SECRET_KEY": secrets.token_hex(32),
        "AIRFLOW__API_AUTH__JWT_SECRET": secrets.token_hex(64),
        "AWS_ACCESS_KEY_ID": secrets.token_hex(10),
        "AWS_SECRET_ACCESS_KEY": secrets.token_hex(20),
        "ssh_key": client_key,
        "authorized_keys": f"{client}\n",
        "known_hosts": "".join(known),
        **{f"ssh_{host}_key": private for host, (private, _) in host_keys.items()},
    }


def _make_ssh_key() -> tuple[str, str]:
    """A private key in OpenSSH's format, and the line of its public key."""
    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption())
    public = key.public_key().public_bytes(Encoding.OpenSSH, PublicFormat.OpenSSH)
    return private.decode(), public.decode()


def write_secrets(folder: Path) -> None:
    """Writes all files or none, so that keys and passwords belong together."""
    folder.chmod(0o700)
    if (folder / "complete").exists():
        return
    for name, content in build_secrets().items():
        file = folder / name
        file.unlink(missing_ok=True)
        file.write_text(content)
        file.chmod(0o444)
    (folder / "complete").touch()


if __name__ == "__main__":
    os.umask(0o077)
    write_secrets(Path(sys.argv[1]))
