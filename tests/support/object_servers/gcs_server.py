"""Google Cloud Storage: gcp-storage-emulator behind a front that speaks the XML API."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from .servers import ServerProcess, send


class GcsServer(ServerProcess):
    """The emulator with its front, in a process of its own. `gcs_process.py` says who does what.

    Args:
      folder: where the files of `build_environment` are written.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__([sys.executable, Path(__file__).with_name("gcs_process.py")])
        self._folder = folder

    def make_bucket(self, name: str) -> None:
        status = send(f"{self.address}/{name}", "PUT")
        assert status == 200, f"the bucket {name} could not be made: {status}"

    def build_environment(self, address: str | None = None) -> dict[str, str]:
        """Returns the variables with which a client reaches the server, or a proxy before it.

        It is the path of a service account's file, which is the only place where Google's clients
        look for the address and for leave not to ask for a token.
        """
        address = address or self.address
        file = self._folder / f"service_account_{address.rpartition(':')[2]}.json"
        account = {"gcs_base_url": address, "disable_oauth": True}
        secrets = {"client_email": "", "private_key": "", "private_key_id": ""}
        file.write_text(json.dumps(account | secrets))
        return {"GOOGLE_SERVICE_ACCOUNT": str(file)}
