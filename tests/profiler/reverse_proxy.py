"""A reverse proxy as jupyter-server-proxy is one: `<prefix>proxy/<port>/x` is `/x` at that port of this machine."""

import contextlib
import http.client
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@contextlib.contextmanager
def proxied(prefix: str, pages: dict[str, str]) -> Iterator[tuple[str, list[str]]]:
    """Serve pages, and ports below a prefix.

    Args:
        prefix: begins and ends with a slash.
        pages: HTML by path. It may be added to later.

    Yields:
        the address, without a slash at its end, and the paths that were asked for and are not there.
    """
    lost: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            if (page := pages.get(self.path.partition("?")[0])) is not None:
                self._answer(200, [("Content-Type", "text/html")], page.encode())
                return
            port, slash, path = self.path.removeprefix(f"{prefix}proxy/").partition("/")
            if not (self.path.startswith(f"{prefix}proxy/") and slash and port.isdigit()):
                lost.append(self.path)
                self._answer(404, [], b"")
                return
            connection = http.client.HTTPConnection("127.0.0.1", int(port), timeout=60)
            kept = {k: v for k, v in self.headers.items() if k.lower() not in ("host", "connection")}
            connection.request("GET", f"/{path}", headers=kept)
            answer = connection.getresponse()
            body = answer.read()
            hop = ("connection", "transfer-encoding", "content-length", "date", "server")
            self._answer(answer.status, [(k, v) for k, v in answer.getheaders() if k.lower() not in hop], body)
            connection.close()

        def _answer(self, status: int, headers: list[tuple[str, str]], body: bytes) -> None:
            self.send_response(status)
            for name, value in headers:
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # the page went elsewhere meanwhile
                self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", lost
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
