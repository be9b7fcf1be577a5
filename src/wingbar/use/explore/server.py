"""The page and its answers by HTTP, for one person on this machine.

A browser lets any page send requests to this machine, so that being reachable from here alone protects from nobody's
page. Therefore: a request must name this machine as its host, or another name could be made to point here; it must not
come from another site's page; nothing but our own assets and rows of the album, by number, is ever handed out, and
nothing that is sent to us is written to a file. Whoever is let in from elsewhere must know the password.
"""

from __future__ import annotations

import base64
import gzip
import hmac
import json
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.resources import files
from secrets import token_hex
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from wingbar.errors import UserError
from wingbar.terminal import aside
from wingbar.use.explore.explorer import MOST_BYTES, Explorer
from wingbar.use.explore.options import is_loopback

OURS, REPORTS = "wingbar.use.explore", "wingbar.show.report"
ASSETS = {  # everything that is handed out besides answers
    **{name: OURS for name in ("page.html", "explore.css", "atlas.js", "asking.js", "explore.js")},
    **{name: REPORTS for name in ("report.css", "elements.js")},
}
KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript"}
POLICY = (
    "default-src 'none'; img-src 'self' data:; style-src 'self'; script-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
}
PATIENCE = 30  # seconds for a request to arrive
PAUSE = 1.0  # seconds that a wrong password costs
KEEP = "private, max-age=86400"


class Refused(Exception):
    """A request that is not answered: its status and why."""

    def __init__(self, status: int, why: str) -> None:
        super().__init__(why)
        self.status = status


class _Reply(NamedTuple):
    body: bytes
    kind: str
    cache: str = "no-store"


class _Request(NamedTuple):
    """What was asked for: words behind the first of the path, words behind `?`, what was sent."""

    rest: str
    said: Mapping[str, str]
    body: bytes

    def numbers(self, name: str) -> list[int]:
        """Whole numbers between commas."""
        with suppress(ValueError):
            return [int(one) for one in self.said.get(name, "").split(",") if one]
        raise Refused(400, f"{name} is {self.said[name]!r}; it needs whole numbers between commas")

    def rows(self) -> list[int]:
        """A list of rows that was sent."""
        with suppress(ValueError):
            rows = json.loads(self.body)
            if isinstance(rows, list) and all(type(row) is int for row in rows):
                return rows
        raise Refused(400, "this needs a JSON list of row numbers")


def bound(host: str, port: int) -> socket.socket:
    """A socket that nobody else has."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise UserError(f"{host} port {port} cannot be listened at ({error.strerror}); give another --port") from error


class ExploreServer(ThreadingHTTPServer):
    """Serves one explorer. A thread that computes is waited for at the end: torch would abort if it were killed."""

    daemon_threads = False

    def __init__(self, listening: socket.socket, explorer: Explorer, host: str, password: str) -> None:
        self.explorer, self.password = explorer, password
        self.names = {"localhost", "127.0.0.1", "[::1]", host} if is_loopback(host) else set()  # none: any
        self.visits = set[socket.socket]()
        self.token = token_hex(4)  # in addresses of pictures: another server at this port has others
        self.address_family = listening.family
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening

    @property
    def address(self) -> str:
        """What to type into a browser."""
        host, port = self.socket.getsockname()[:2]
        name = {"0.0.0.0": socket.gethostname(), "::": socket.gethostname()}.get(host, host)
        return f"http://{f'[{name}]' if ':' in name else name}:{port}/"

    def serve_until_stopped(self) -> None:
        """Until Ctrl-C, which is how this ends."""
        with suppress(KeyboardInterrupt):
            self.serve_forever(poll_interval=0.2)

    def process_request(self, request: Any, client_address: Any) -> None:
        """In a thread of its own."""
        self.visits.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        """A visit is over."""
        self.visits.discard(request)
        super().shutdown_request(request)

    def server_close(self) -> None:
        """Nothing more is heard; what was asked is still answered. Browsers keep connections open in advance."""
        for one in list(self.visits):
            with suppress(OSError):
                one.shutdown(socket.SHUT_RD)
        super().server_close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Somebody went away in the middle."""


# --- what there is ---------------------------------------------------------------------------------------------------


def _asset(server: ExploreServer, asked: _Request) -> _Reply:
    if asked.rest not in ASSETS:
        raise Refused(404, "there is no such file")
    kind = KINDS[asked.rest.rpartition(".")[2]]
    return _Reply((files(ASSETS[asked.rest]) / "assets" / asked.rest).read_bytes(), f"{kind}; charset=utf-8")


def _page(server: ExploreServer, asked: _Request) -> _Reply:
    return _asset(server, asked._replace(rest="page.html"))


def _about(server: ExploreServer, asked: _Request) -> _Reply:
    return _json(server.explorer.about | {"token": server.token})


def _picture(server: ExploreServer, asked: _Request) -> _Reply:
    return _Reply(server.explorer.thumbnail(_whole(asked.rest)), "image/jpeg", KEEP)


def _row(server: ExploreServer, asked: _Request) -> _Reply:
    return _json(server.explorer.ask(_whole(asked.rest), classes=asked.numbers("classes")))


def _image(server: ExploreServer, asked: _Request) -> _Reply:
    return _json(server.explorer.ask(asked.body, classes=asked.numbers("classes")))


def _twin(server: ExploreServer, asked: _Request) -> _Reply:
    try:
        scale = float(asked.said.get("noise", "1"))
    except ValueError:
        raise Refused(400, "noise must be a number") from None
    return _json(server.explorer.twin(asked.rest, scale=scale, on=asked.numbers("criteria")))


def _table(server: ExploreServer, asked: _Request) -> _Reply:
    return _Reply(server.explorer.table(asked.rows()), "text/csv; charset=utf-8")


def _sheet(server: ExploreServer, asked: _Request) -> _Reply:
    return _Reply(server.explorer.sheet(asked.rows()), "image/png")


def _json(content: Mapping[str, Any]) -> _Reply:
    return _Reply(json.dumps(content, ensure_ascii=True, allow_nan=False).encode(), "application/json")


def _whole(word: str) -> int:
    if not (word.isascii() and word.isdigit() and len(word) < 10):
        raise Refused(404, "images have numbers, and this is none")
    return int(word)


Answer = Callable[[ExploreServer, _Request], _Reply]
ANSWERS: dict[tuple[str, str], Answer] = {
    ("GET", ""): _page,
    ("GET", "assets"): _asset,
    ("GET", "about"): _about,
    ("GET", "picture"): _picture,
    ("GET", "row"): _row,
    ("GET", "twin"): _twin,
    ("POST", "image"): _image,
    ("POST", "table"): _table,
    ("POST", "sheet"): _sheet,
}


# --- who may ask, and how much ---------------------------------------------------------------------------------------


class _Handler(BaseHTTPRequestHandler):
    server: ExploreServer
    protocol_version = "HTTP/1.1"
    server_version, sys_version = "wingbar", ""
    timeout = PATIENCE

    def do_GET(self) -> None:
        self._answer()

    def do_POST(self) -> None:
        self._answer()

    def _answer(self) -> None:
        try:
            self._check_visitor()
            reply, status = self._found(), 200
        except Refused as refused:
            reply, status = _json({"error": str(refused)}), refused.status
        except UserError as error:
            reply, status = _json({"error": f"{str(error).rstrip('.')}."}), 400
        except Exception as error:  # a page is told what a command would be told, and goes on
            aside(f"wingbar explore: {type(error).__name__}: {error}")
            reply, status = _json({"error": f"this went wrong: {type(error).__name__}; the terminal says more."}), 500
        self._send(reply, status)

    def _check_visitor(self) -> None:
        """Refuse other names of this machine, pages of other sites, and whoever does not know the password."""
        host, site = self.headers.get("Host", ""), self.headers.get("Sec-Fetch-Site", "none")
        if self.server.names and not {host, host.rpartition(":")[0]} & self.server.names:
            raise Refused(403, "this page is for its own machine; open it as localhost")
        origin = self.headers.get("Origin")
        foreign = origin is not None and urlsplit(origin).netloc != host
        if foreign or (site not in ("same-origin", "none") and urlsplit(self.path).path != "/"):
            raise Refused(403, "this was asked by the page of another site")
        if self.server.password and not self._knows_password():
            time.sleep(PAUSE)
            raise Refused(401, "this needs the password")

    def _knows_password(self) -> bool:
        scheme, _, said = self.headers.get("Authorization", "").partition(" ")
        with suppress(ValueError):
            word = base64.b64decode(said, validate=True).partition(b":")[2]
            return scheme.lower() == "basic" and hmac.compare_digest(word, self.server.password.encode())
        return False

    def _found(self) -> _Reply:
        place = urlsplit(self.path)
        first, _, rest = place.path.removeprefix("/").partition("/")
        answer = ANSWERS.get((self.command, first))
        if answer is None:
            raise Refused(404, "there is nothing here; the page is at /")
        said = {name: values[-1] for name, values in parse_qs(place.query).items()}
        return answer(self.server, _Request(rest, said, self._body() if self.command == "POST" else b""))

    def _body(self) -> bytes:
        """What was sent; too much is not even read."""
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()):
            raise Refused(411, "what is sent must say its length")
        if int(length) > MOST_BYTES:
            raise Refused(413, f"{int(length) / 1e6:,.0f} MB are too many; send at most {MOST_BYTES / 1e6:.0f}")
        return self.rfile.read(int(length))

    def _send(self, reply: _Reply, status: int) -> None:
        body, packed = reply.body, len(reply.body) > 20_000 and "json" in reply.kind
        packed = packed and "gzip" in self.headers.get("Accept-Encoding", "")
        body = gzip.compress(body, 5) if packed else body
        self.send_response(status)
        told = {"Content-Type": reply.kind, "Content-Length": str(len(body)), "Cache-Control": reply.cache, **HEADERS}
        told |= {"Content-Encoding": "gzip"} if packed else {}
        told |= {"WWW-Authenticate": 'Basic realm="wingbar explore", charset="UTF-8"'} if status == 401 else {}
        told |= {"Connection": "close"} if status >= 400 else {}  # what was sent may not have been read
        for name, value in told.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: Any) -> None:
        """Nobody wants to read this."""
