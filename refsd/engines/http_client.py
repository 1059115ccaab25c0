"""Talk to a drawing server over HTTP: JSON both ways, limits on time and size, one line for each failure."""

import base64
import http.client
import json
import socket
import time
import urllib.error
import urllib.parse
import urllib.request
from typing import Any

from refsd.golden.engine import EngineDied, EngineFailure
from refsd.numerics.printable import printable

_MAX_BODY = 64 << 20
_CHUNK = 1 << 16
_LONGEST_WORDS = 200  # characters of an answer that an error message shows


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A redirected POST would become a GET of another place, so redirects are errors."""

    def redirect_request(self, *_):
        return None


class HttpError(EngineFailure):
    """The server answered with an error status. status: 404, ..."""

    def __init__(self, message: str, status: int):
        super().__init__(message)
        self.status = status


class HttpClient:
    """A server at a URL. No proxy is used, no redirect followed, and no path of this machine sent.

    url:     http://HOST:PORT, or https; http://NAME:PASSWORD@HOST:PORT for a server with basic authentication
    timeout: seconds that an answer may take

    Raises EngineFailure for a malformed URL.
    """

    def __init__(self, url: str, timeout: float):
        parts = urllib.parse.urlsplit(url)
        try:
            port = f":{parts.port}" if parts.port else ""
        except ValueError as error:
            raise EngineFailure(f"{url}: {error}") from None
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
            raise EngineFailure(f"{url}: expected a server's address, as http://127.0.0.1:7860")
        host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
        self.address = f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"
        self.timeout = timeout
        self._headers = {"User-Agent": "refsd", "Accept": "*/*"}
        if parts.username:
            words = f"{urllib.parse.unquote(parts.username)}:{urllib.parse.unquote(parts.password or '')}"
            self._headers["Authorization"] = f"Basic {base64.b64encode(words.encode()).decode()}"
        self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect)

    def json(self, place: str, body: Any = None, timeout: float | None = None) -> Any:
        """GET a place, or POST a body to it. -> the answer's JSON. Raises EngineFailure."""
        data = self.bytes(place, body, timeout)
        try:
            return json.loads(data)
        except (ValueError, RecursionError):
            raise EngineFailure(f"{self.address}{place} answers no JSON: {_words(data)}") from None

    def bytes(self, place: str, body: Any = None, timeout: float | None = None) -> bytes:
        """As `json`, the answer as it is."""
        seconds = self.timeout if timeout is None else min(timeout, self.timeout)
        data = None if body is None else json.dumps(body).encode()
        headers = self._headers | ({} if data is None else {"Content-Type": "application/json"})
        request = urllib.request.Request(f"{self.address}{place}", data, headers)
        until = time.monotonic() + seconds
        late = EngineDied(f"{self.address}{place} did not answer within {seconds:.0f} s")
        try:
            with self._opener.open(request, timeout=seconds) as answer:
                return _read(answer, until, late, f"{self.address}{place}")
        except urllib.error.HTTPError as error:
            with error:
                words = _words(error.read(_CHUNK))
            raise HttpError(f"{self.address}{place} answers {error.code}: {words}", error.code) from None
        except TimeoutError:
            raise late from None
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            reason = getattr(error, "reason", error)
            if isinstance(reason, TimeoutError):
                raise late from None
            raise EngineDied(f"{self.address}: {_reason(reason)}") from None

    def has(self, place: str, timeout: float) -> Any:
        """GET a place. -> its JSON, or None if the server has no such place or no JSON there."""
        try:
            return self.json(place, timeout=timeout)
        except EngineDied:
            raise
        except EngineFailure:
            return None


def _read(answer, until: float, late: EngineDied, where: str) -> bytes:
    """Read an answer that may come in drops."""
    data = bytearray()
    while chunk := answer.read1(_CHUNK):
        data += chunk
        if len(data) > _MAX_BODY:
            raise EngineFailure(f"{where} answers more than {_MAX_BODY >> 20} MiB")
        if time.monotonic() > until:
            raise late
    if answer.length:
        raise EngineDied(f"{where} closes the connection {answer.length} bytes before the end of its answer")
    return bytes(data)


def _reason(reason: Any) -> str:
    if isinstance(reason, ConnectionRefusedError):
        return "nothing listens there: start the server, or give its address"
    if isinstance(reason, socket.gaierror):
        return "no such host"
    if isinstance(reason, http.client.RemoteDisconnected | ConnectionResetError | BrokenPipeError):
        return "the server closed the connection without an answer"
    if isinstance(reason, http.client.HTTPException):
        return f"no HTTP server: {type(reason).__name__} {reason}"
    return str(getattr(reason, "strerror", None) or reason)


def _words(data: bytes) -> str:
    """The first line of an answer; of a JSON object what it says of the error."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        said = [found[key] for key in ("error", "message", "errors", "detail", "node_errors") if found.get(key)]
        text = "; ".join(one if isinstance(one, str) else json.dumps(one) for one in said)
    else:
        text = next((line for line in data.decode(errors="replace").splitlines() if line.strip()), "nothing")
    return printable(text or "nothing", _LONGEST_WORDS)
