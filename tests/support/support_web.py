# SPDX-License-Identifier: BSD-3-Clause
"""A web server of one file in a thread, which misbehaves as it is told."""

import contextlib
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server:
    """``http://127.0.0.1:PORT/image.fits`` serves ``data``.

    Attributes
    ----------
    requests : list of (path, Range or None)
    ranges : bool
        Ranges are honoured.
    cut : callable (request number) -> int or None
        Bytes of body after which the connection is closed.
    status : callable (request number) -> int
        Another status than 200 or 206.
    """

    def __init__(self, data):
        self.data, self.requests = data, []
        self.ranges, self.etag, self.total, self.shift, self.length = True, '"1"', None, 0, True
        self.cut = self.status = lambda number: None
        self.redirect = None
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *args):
                pass

            def do_GET(self):
                outer.answer(self)

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.base = f"http://127.0.0.1:{self._server.server_port}"
        self.url = f"{self.base}/image.fits"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

    @property
    def sent(self):
        """Bytes of the ranges asked for."""
        spans = [r.removeprefix("bytes=").split("-") for _, r in self.requests if r]
        return sum(min(int(b) + 1, len(self.data)) - int(a) for a, b in spans)

    def answer(self, handler):
        wanted = handler.headers.get("Range")
        number = len(self.requests)
        self.requests.append((handler.path, wanted))
        handler.close_connection = True
        if handler.path.startswith("/moved"):
            handler.send_response(302)
            handler.send_header("Location", self.redirect or "/image.fits?key=1")
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        status = self.status(number) or (200 if handler.path.startswith("/image.fits") else 404)
        if status != 200:
            handler.send_response(status)
            handler.send_header("Content-Length", "0")
            handler.end_headers()
            return
        body = self.data
        current = handler.headers.get("If-Range") in (None, self.etag)
        if wanted and self.ranges and current:
            a, b = (int(n) for n in wanted.removeprefix("bytes=").split("-"))
            if a >= len(body):
                handler.send_response(416)
                handler.send_header("Content-Length", "0")
                handler.end_headers()
                return
            b = min(b, len(body) - 1)
            body = body[a : b + 1]
            handler.send_response(206)
            handler.send_header("Content-Range", f"bytes {a + self.shift}-{b}/{self.total or len(self.data)}")
        else:
            handler.send_response(200)
        if self.etag:
            handler.send_header("ETag", self.etag)
        if self.length:
            handler.send_header("Content-Length", str(len(body)))
        handler.end_headers()
        with contextlib.suppress(OSError):  # the reader may have gone
            handler.wfile.write(body[: self.cut(number)])
