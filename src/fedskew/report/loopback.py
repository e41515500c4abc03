"""A server of a few pages on the loopback address: a thread answers GET of known paths, and nothing else."""

import threading
from collections.abc import Callable
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from socketserver import TCPServer
from typing import Any, TypeAlias

ADDRESS = "127.0.0.1"
# A path -> type and content of what is there
Answer: TypeAlias = Callable[[str], tuple[str, bytes] | None]


class LoopbackServer(ThreadingHTTPServer):
    """A server that only this machine reaches, on a port that is given or free."""

    def __init__(self, answer: Answer, port: int = 0) -> None:
        self.answer = answer
        super().__init__((ADDRESS, port), _Handler)
        self.hosts = {f"{ADDRESS}:{self.server_port}", f"localhost:{self.server_port}"}
        self._thread = threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True
        )

    def start(self) -> None:
        """Begin to answer."""
        self._thread.start()

    def stop(self) -> None:
        """End, and free the port."""
        self.shutdown()
        self.server_close()
        self._thread.join()

    def server_bind(self) -> None:
        """Take the port; unlike the base class, without asking for the name of this machine."""
        TCPServer.server_bind(self)
        self.server_name, self.server_port = self.server_address[:2]  # type: ignore[assignment]

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a browser that went away."""


class _Handler(BaseHTTPRequestHandler):
    """Answers GET of the known paths, if the browser was told to ask this machine."""

    server: LoopbackServer
    timeout = 10  # seconds for a request

    def do_GET(self) -> None:
        """Answer a request."""
        hosts = self.headers.get_all("Host") or []
        # Another site whose name leads to this machine (DNS rebinding) is given away by the name.
        if len(hosts) != 1 or hosts[0] not in self.server.hosts:
            self.send_error(HTTPStatus.FORBIDDEN)
        elif page := self.server.answer(self.path):
            kind, content = page
            self.send_response(HTTPStatus.OK)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)
        else:
            self.send_error(HTTPStatus.NOT_FOUND)

    def end_headers(self) -> None:
        """Add to every answer what keeps other sites from using it."""
        self.send_header("Cache-Control", "no-store")
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Referrer-Policy", "no-referrer")
        self.send_header("Cross-Origin-Resource-Policy", "same-origin")
        self.send_header("Content-Security-Policy", "frame-ancestors 'none'")
        super().end_headers()

    def version_string(self) -> str:
        """Return the name of the server, without versions."""
        return "fedskew"

    def log_message(self, format: str, *args: Any) -> None:
        """Print nothing: the terminal shows the progress."""
