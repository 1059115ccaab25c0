"""A store of goldens in S3: moto's server, really started, and two writers at once."""

import os
import socket
import subprocess
import sys
import time

import boto3
import pytest

pytestmark = pytest.mark.peer
_GLOB = ("--cases", "silu/f32/*", "--cases", "add/f32/*")


@pytest.fixture(scope="module")
def server():
    """The environment of a process that uses the server."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    secret = {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_DEFAULT_REGION": "us-east-1"}
    environment = os.environ | secret | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    command = [sys.executable, "-P", "-m", "moto.server", "-p", str(port)]
    quiet = subprocess.DEVNULL
    with subprocess.Popen(command, stdout=quiet, stderr=quiet, env=environment) as moto:
        until = time.monotonic() + 120
        while time.monotonic() < until:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", port)) == 0:
                    break
            time.sleep(0.1)
        yield environment
        moto.terminate()


@pytest.fixture
def bucket(server, request):
    name = request.node.name.replace("_", "-")[:60]
    boto3.client(
        "s3",
        endpoint_url=server["AWS_ENDPOINT_URL"],
        aws_access_key_id="key",
        aws_secret_access_key="secret",
        region_name="us-east-1",
    ).create_bucket(Bucket=name)
    return f"s3://{name}/goldens"


def _start(server, cache, *arguments):
    command = [sys.executable, "-P", "-m", "refsd", *arguments]
    pipe = subprocess.PIPE
    environment = server | {"REFSD_CACHE": str(cache)}
    return subprocess.Popen(command, env=environment, cwd=cache.parent, stdout=pipe, stderr=pipe, text=True)


def _run(server, cache, *arguments):
    process = _start(server, cache, *arguments)
    said, errors = process.communicate(timeout=300)
    assert process.returncode == 0, said + errors
    return said


def test_two_writers_at_once_and_a_reader(server, bucket, tmp_path):
    writers = [_start(server, tmp_path / name, "golden", "make", bucket, *_GLOB) for name in "ab"]
    said = [writer.communicate(timeout=300) for writer in writers]
    assert [writer.returncode for writer in writers] == [0, 0], said
    verified = _run(server, tmp_path / "c", "golden", "verify", bucket, *_GLOB)
    assert "0 problems" in verified
    again = _run(server, tmp_path / "d", "golden", "make", bucket, *_GLOB)
    assert "0 of them new" in again
    _run(server, tmp_path / "e", "conform", "refsd:float32", "--golden", bucket, *_GLOB)


def test_a_writer_that_is_killed_leaves_whole_goldens_and_another_ends_the_work(server, bucket, tmp_path):
    first = _start(server, tmp_path / "a", "golden", "make", bucket, "--cases", "silu/*", "--cases", "add/*")
    manifests = tmp_path / "a" / "fetched"
    until = time.monotonic() + 120
    while time.monotonic() < until and len([*manifests.rglob("*.json")]) < 3 and first.poll() is None:
        time.sleep(0.01)
    first.kill()
    first.communicate()
    _run(server, tmp_path / "b", "golden", "make", bucket, "--cases", "silu/*", "--cases", "add/*")
    whole = _run(server, tmp_path / "c", "golden", "verify", bucket, "--cases", "silu/*", "--cases", "add/*")
    assert "0 problems" in whole
