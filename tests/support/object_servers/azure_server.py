"""Azure Blob Storage: Azurite, which is fetched from npm once for each user."""

from __future__ import annotations

import base64
import hashlib
import hmac
from email.utils import formatdate
from pathlib import Path

from npm_packages import install_package

from .servers import ServerProcess, send

ACCOUNT = "devstoreaccount1"
KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
"""The account of Azurite. Everybody has this key: it is in Azurite's documentation."""
_VERSION = "3.35.0"
_API_VERSION = "2021-08-06"
_RUN = "process.stdin.resume().on('end', () => process.exit()); require(process.argv[1])"
_OPTIONS = ["--inMemoryPersistence", "--skipApiVersionCheck", "--silent", "--disableTelemetry"]


class AzureServer(ServerProcess):
    """Azurite in a process of its own, with all objects in memory. It checks every signature."""

    def __init__(self) -> None:
        listens = ["--blobHost", "127.0.0.1", "--blobPort", "0"]
        super().__init__(["node", "-e", _RUN, "--", install_azurite(), *_OPTIONS, *listens])

    def make_bucket(self, name: str) -> None:
        path = f"/{ACCOUNT}/{name}"
        headers = {"x-ms-date": formatdate(usegmt=True), "x-ms-version": _API_VERSION}
        signed = "PUT" + "\n" * 12
        signed += "".join(f"{name}:{value}\n" for name, value in sorted(headers.items()))
        signed += f"/{ACCOUNT}{path}\nrestype:container"
        digest = hmac.digest(base64.b64decode(KEY), signed.encode(), hashlib.sha256)
        headers["Authorization"] = f"SharedKey {ACCOUNT}:{base64.b64encode(digest).decode()}"
        status = send(f"{self.address}{path}?restype=container", "PUT", headers)
        assert status == 201, f"the container {name} could not be made: {status}"

    def build_environment(self, address: str | None = None) -> dict[str, str]:
        """Returns the variables with which a client reaches the server, or a proxy before it."""
        return {
            "AZURE_STORAGE_ACCOUNT_NAME": ACCOUNT,
            "AZURE_STORAGE_ACCOUNT_KEY": KEY,
            "AZURE_STORAGE_ENDPOINT": f"{address or self.address}/{ACCOUNT}",
            "AZURE_ALLOW_HTTP": "true",
            "AZURE_MSI_ENDPOINT": "http://127.0.0.1:9",  # obstore asks it if it has no key
        }


def install_azurite() -> Path:
    """The program, fetched if this user does not have it yet: about half a minute, 190 MB."""
    return install_package("azurite", _VERSION) / "dist" / "src" / "blob" / "main.js"
