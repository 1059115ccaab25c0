"""The HTTP client against servers that answer, and against those that do not."""

import base64
import time

import fake_server
import pytest

from refsd.engines import http_client
from refsd.engines.http_client import HttpClient, HttpError
from refsd.golden.engine import EngineDied, EngineFailure


def test_it_gets_posts_and_authenticates():
    seen = {}

    def answer(handler):
        seen["authorization"] = handler.headers["Authorization"]
        return {"asked": handler.body}

    with fake_server.serving({"/sub/x": answer}) as server:
        client = HttpClient(server.url.replace("//", "//me:p%40ss@") + "/sub/", 5)
        assert client.json("/x", {"a": 1}) == {"asked": {"a": 1}}
        assert client.json("/x") == {"asked": None}
    assert seen["authorization"] == "Basic " + base64.b64encode(b"me:p@ss").decode()
    assert "p@ss" not in client.address and "p%40ss" not in client.address


@pytest.mark.parametrize(
    "answer, said",
    [
        (b"<html>Gradio</html>\nmore", "answers no JSON: <html>Gradio</html>$"),
        (b"", "answers no JSON: nothing"),
        (b"[" * 20000, "answers no JSON"),
        (
            (500, b'{"error": "server_error", "message": "out of\\nmemory"}'),
            r"answers 500: server_error; out of\\?n? ?memory",
        ),
        ((422, b'{"detail": [{"loc": ["body"]}]}'), r'answers 422: \[\{"loc": \["body"\]\}\]'),
        ((302, b"elsewhere"), "answers 302: elsewhere"),
        (fake_server.close, "the server closed the connection without an answer"),
        (fake_server.promise_more, "closes the connection 97 bytes before the end"),
        (lambda h: h.wfile.write(b"220 mail.example ESMTP\r\n"), "no HTTP server: BadStatusLine"),
    ],
)
def test_a_bad_answer_is_one_line(answer, said):
    with fake_server.serving({"/x": answer}) as server, pytest.raises(EngineFailure, match=said) as raised:
        HttpClient(server.url, 5).json("/x")
    assert "\n" not in str(raised.value) and len(str(raised.value)) < 400


@pytest.mark.parametrize("answer", [fake_server.hang(2), fake_server.drip])
def test_a_slow_answer_ends_in_time(answer):
    with fake_server.serving({"/x": answer}) as server:
        begun = time.monotonic()
        with pytest.raises(EngineDied, match="did not answer within"):
            HttpClient(server.url, 0.3).json("/x")
        assert time.monotonic() - begun < 1.5


def test_a_huge_answer_ends(monkeypatch):
    monkeypatch.setattr(http_client, "_MAX_BODY", 1 << 20)
    with (
        fake_server.serving({"/x": b" " * (3 << 20)}) as server,
        pytest.raises(EngineFailure, match="more than 1 MiB"),
    ):
        HttpClient(server.url, 5).json("/x")


def test_nobody_there_and_no_place():
    with fake_server.serving({}) as server:
        client = HttpClient(server.url, 5)
        assert client.has("/x", 5) is None
        with pytest.raises(HttpError, match="answers 404: Not Found") as raised:
            client.json("/x")
        assert raised.value.status == 404
    with pytest.raises(EngineDied, match="nothing listens there"):
        client.has("/x", 5)
    with pytest.raises(EngineDied, match="no such host"):
        HttpClient("http://no-such-host.invalid", 5).json("/x")


@pytest.mark.parametrize("url", ["127.0.0.1:7860", "ftp://x", "http://", "http://x:port", "http://x/?a=b"])
def test_a_malformed_address(url):
    with pytest.raises(EngineFailure, match=r"expected a server's address|Port"):
        HttpClient(url, 5)
