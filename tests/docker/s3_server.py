"""moto as an S3 server of compose.yaml, on the port of the public image."""

from __future__ import annotations

from moto.server import DomainDispatcherApplication, create_backend_app
from moto_process import Handler, OneAtATime
from werkzeug.serving import make_server

_PORT = 8333

if __name__ == "__main__":
    app = OneAtATime(DomainDispatcherApplication(create_backend_app))
    make_server("0.0.0.0", _PORT, app, threaded=True, request_handler=Handler).serve_forever()
