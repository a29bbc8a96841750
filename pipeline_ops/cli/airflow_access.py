"""Who may use the UI of an embedded Airflow, and at which address it listens."""

from __future__ import annotations

import ipaddress
import re

from pydantic import ConfigDict

from pipeline_ops.errors import ConfigError
from pipeline_ops.storage.parsing import JsonModel

USER = "admin"
LOOPBACK = "127.0.0.1"
_ROLES = ("viewer", "user", "op", "admin")
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9._-]{0,63}")


class Access(JsonModel):
    """The address of the UI, and its users besides the administrator: roles by name.

    Without a `port`, it is that of the last time.
    """

    model_config = ConfigDict(frozen=True)

    host: str = LOOPBACK
    port: int | None = None
    users: dict[str, str] = {}

    @property
    def reached_at(self) -> str:
        """An address at which programs of this machine reach the UI."""
        if is_loopback(self.host) or not ipaddress.ip_address(self.host).is_unspecified:
            return self.host
        return LOOPBACK

    def list_users(self) -> str:
        """The users as Airflow's setting takes them."""
        return ",".join(f"{name}:{role}" for name, role in {USER: "admin", **self.users}.items())


def is_loopback(host: str) -> bool:
    return ipaddress.ip_address(host).is_loopback


def parse_host(text: str) -> str:
    """Returns an IPv4 address. Raises ConfigError for anything else."""
    try:
        return str(ipaddress.IPv4Address(text))
    except ValueError:
        raise ConfigError(
            f"--host must be an IPv4 address of this machine, such as {LOOPBACK}, or 0.0.0.0 for "
            f"all of them, got {text!r}"
        ) from None


def parse_users(text: str) -> dict[str, str]:
    """Parses `anna:op,vera:viewer`. Raises ConfigError with what is wrong."""
    users = dict[str, str]()
    for entry in filter(None, text.split(",")):
        name, _, role = (part.strip() for part in entry.partition(":"))
        if not _NAME.fullmatch(name) or role not in _ROLES:
            raise ConfigError(
                f"--users must be names with roles, such as anna:op,vera:viewer, got {entry!r}. "
                f"Roles are {', '.join(_ROLES)}, and names have letters, digits, dots and dashes"
            )
        if name == USER or name in users:
            why = "is there anyway" if name == USER else "is named twice"
            raise ConfigError(f"--users: {name} {why}")
        users[name] = role
    return users
