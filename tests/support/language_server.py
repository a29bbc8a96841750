"""The YAML language server, which editors check, complete and explain YAML with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

from npm_packages import install_package

_VERSION = "1.25.0"
_CAPABILITIES = {"completion": {"completionItem": {"snippetSupport": True}}, "hover": {}}
_LOCAL = {"schemaStore": {"enable": False}}
_SETTINGS = {"yaml": {"completion": True, "hover": True, "validate": True} | _LOCAL}


class LanguageServer:
    """A server in a process of its own, which is asked one question after the other."""

    def __init__(self, folder: Path):
        program = install_package("yaml-language-server", _VERSION) / "bin" / "yaml-language-server"
        command = ["node", str(program), "--stdio"]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number, self._diagnostics = 0, {}
        capabilities = {"textDocument": _CAPABILITIES | {"publishDiagnostics": {}}}
        root = {"processId": None, "rootUri": folder.as_uri(), "capabilities": capabilities}
        self._ask("initialize", root)
        self._send(method="initialized", params={})
        self._send(method="workspace/didChangeConfiguration", params={"settings": _SETTINGS})

    def __enter__(self) -> LanguageServer:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.communicate()

    def open(self, file: Path) -> list[tuple[int, str]]:
        """Opens a file. Returns line, from 0, and text of each problem."""
        document = {"uri": file.as_uri(), "languageId": "yaml", "version": 1}
        document |= {"text": file.read_text()}
        self._send(method="textDocument/didOpen", params={"textDocument": document})
        while file.as_uri() not in self._diagnostics:
            self._answer(self._receive())
        found = self._diagnostics[file.as_uri()]
        return [(each["range"]["start"]["line"], each["message"]) for each in found]

    def complete(self, file: Path, line: int, character: int) -> list[str]:
        """Returns what may stand at a place of an open file."""
        found = self._ask_at("completion", file, line, character)
        return [each["label"] for each in found["items"]]

    def hover(self, file: Path, line: int, character: int) -> str:
        """Returns the Markdown about a place of an open file."""
        return self._ask_at("hover", file, line, character)["contents"]["value"]

    def _ask_at(self, question: str, file: Path, line: int, character: int) -> Any:
        place = {"position": {"line": line, "character": character}}
        return self._ask(
            f"textDocument/{question}", {"textDocument": {"uri": file.as_uri()}} | place
        )

    def _ask(self, method: str, params: dict[str, Any]) -> Any:
        self._number += 1
        self._send(id=self._number, method=method, params=params)
        while True:
            message = self._receive()
            if "method" not in message and message["id"] == self._number:
                return message["result"]
            self._answer(message)

    def _answer(self, message: dict[str, Any]) -> None:
        """Keeps diagnostics, and answers a question of the server."""
        if message["method"] == "textDocument/publishDiagnostics":
            self._diagnostics[message["params"]["uri"]] = message["params"]["diagnostics"]
        elif message["method"] == "workspace/configuration":
            sections = [each["section"] for each in message["params"]["items"]]
            self._send(id=message["id"], result=[_SETTINGS.get(name) for name in sections])
        elif "id" in message:
            self._send(id=message["id"], result=None)

    def _send(self, **message: Any) -> None:
        body = json.dumps({"jsonrpc": "2.0", **message}).encode()
        self._process.stdin.write(b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
        self._process.stdin.flush()

    def _receive(self) -> dict[str, Any]:
        length = 0
        while line := self._process.stdout.readline().strip():
            name, _, value = line.partition(b":")
            length = int(value) if name == b"Content-Length" else length
        assert length, "the language server has ended"
        return json.loads(self._process.stdout.read(length))
