"""A real S3 server on loopback: SeaweedFS, in a directory of its own, gone with the test."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import boto3
from botocore.config import Config
from botocore.exceptions import BotoCoreError, ClientError

BUCKET = "objects"
KEY, SECRET = "testkey", "testsecret"
_START_S = 60


def _free_ports(count: int) -> list[int]:
    """It listens on each port, and on that plus 10000."""
    found: list[int] = []
    for port in range(21000 + os.getpid() % 5000, 40000):
        try:
            for one in (port, port + 10000):
                with socket.socket() as probe:
                    probe.bind(("127.0.0.1", one))
        except OSError:
            continue
        found.append(port)
        if len(found) == count:
            break
    return found


@contextmanager
def s3_server(directory: Path) -> Iterator[str]:
    """Where it answers, with an empty bucket in it."""
    master, volume, filer, s3 = _free_ports(4)
    actions = ["Admin", "Read", "Write", "List", "Tagging"]
    identity = {"name": "t", "credentials": [{"accessKey": KEY, "secretKey": SECRET}], "actions": actions}
    (directory / "s3.json").write_text(json.dumps({"identities": [identity]}))
    argv = [
        *(Path(sys.executable).with_name("weed"), f"-logdir={directory}", "server", f"-dir={directory}"),
        *("-ip=127.0.0.1", "-ip.bind=127.0.0.1", f"-master.port={master}", f"-volume.port={volume}"),
        *("-filer", f"-filer.port={filer}", "-s3", f"-s3.port={s3}", f"-s3.config={directory}/s3.json"),
        *("-s3.port.iceberg=0", "-s3.port.lance=0", "-master.telemetry=false"),
        *("-master.electionTimeout=500ms", "-master.heartbeatInterval=100ms"),
        *("-volume.max=20", "-master.volumeSizeLimitMB=64"),
    ]
    endpoint = f"http://127.0.0.1:{s3}"
    with (directory / "weed.log").open("wb") as log:
        server = subprocess.Popen(argv, stdout=log, stderr=log, cwd=directory, start_new_session=True)
    try:
        _make_bucket(endpoint, server)
        yield endpoint
    finally:
        server.kill()  # told to stop, it takes half a minute
        server.wait(30)


def _make_bucket(endpoint: str, server: subprocess.Popen[bytes]) -> None:
    client = boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id=KEY,
        aws_secret_access_key=SECRET,
        region_name="us-east-1",
        config=Config(retries={"max_attempts": 0}, connect_timeout=2, read_timeout=5),
    )
    until = time.monotonic() + _START_S
    while True:
        assert server.poll() is None, "the S3 server ended"
        try:
            client.create_bucket(Bucket=BUCKET)
            client.put_object(Bucket=BUCKET, Key="probe", Body=b"")
            client.delete_object(Bucket=BUCKET, Key="probe")
        except (BotoCoreError, ClientError):
            assert time.monotonic() < until, "the S3 server does not come up"
            time.sleep(0.2)
        else:
            client.close()
            return
