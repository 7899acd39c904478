"""A web server of this machine, for tests."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from pathlib import Path


class _Handler(SimpleHTTPRequestHandler):
    """/signed/NAME sends the client to NAME, by another address each time."""

    signatures = count()

    def send_head(self):  # type: ignore[no-untyped-def]
        if not self.path.startswith("/signed/"):
            return super().send_head()
        self.send_response(302)
        address = self.path.removeprefix("/signed")
        self.send_header("Location", f"{address}?signature={next(self.signatures)}")
        self.end_headers()
        return None

    def end_headers(self) -> None:
        if self.path.partition("?")[0].endswith(".gz"):
            self.send_header("Content-Encoding", "gzip")  # as servers do that guess
        super().end_headers()

    def log_message(self, *args: object) -> None:
        pass


@contextmanager
def serving(folder: Path) -> Iterator[str]:
    """The address of a server that shows the folder's files."""
    handler = partial(_Handler, directory=str(folder))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as web:
        thread = threading.Thread(target=web.serve_forever)
        thread.start()
        try:
            yield f"http://127.0.0.1:{web.server_port}"
        finally:
            web.shutdown()
            thread.join()
