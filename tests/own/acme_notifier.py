"""A user's notifier. It writes each notification to a file in a folder, and fails while the folder
contains a file named `down`."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path

from airflow.sdk import BaseNotifier


class Mailbox(BaseNotifier):
    template_fields = ("subject",)

    def __init__(self, folder: str, subject: str = ""):
        super().__init__()
        self.folder, self.subject = Path(folder), subject

    def notify(self, context) -> None:
        if (self.folder / "down").exists():
            raise ConnectionError("the mailbox is down")
        letter = self.folder / f".{uuid.uuid4().hex}"
        letter.write_text(
            json.dumps({"subject": self.subject, **context["notification"].model_dump(mode="json")})
        )
        os.rename(letter, self.folder / f"{letter.name[1:]}.json")
