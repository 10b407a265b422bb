"""``make audit``: it says what was not audited, and fails for a known vulnerability."""

from __future__ import annotations

import http.server
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[1] / ".ci" / "audit.py"


@pytest.fixture
def service() -> Iterator[tuple[str, dict[str, object]]]:
    """The address of a list of vulnerabilities, and its answer."""
    answer: dict[str, object] = {"vulnerabilities": [{"id": "PYSEC-1"}]}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def log_message(self, *_: object) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", answer
    server.shutdown()
    server.server_close()


def audit(tmp_path: Path, service: str, found: object = None, **more: str) -> tuple[int, str]:
    """Run the audit with a pip-audit that finds what it is told to."""
    uv = tmp_path / "uv"
    uv.write_text(f"#!/bin/sh\ncat <<'END'\n{json.dumps({'dependencies': found})}\nEND\n")
    uv.chmod(0o755)
    environment = {**os.environ, "AUDIT_SERVICE": service, "no_proxy": "*", **more}
    ran = subprocess.run(
        [sys.executable, str(SCRIPT), str(uv), "requirements.txt"], capture_output=True, text=True, env=environment
    )
    return ran.returncode, ran.stdout


def test_without_the_list_it_says_that_nothing_was_audited(tmp_path: Path, service: tuple[str, dict]) -> None:
    address, answer = service
    answer["vulnerabilities"] = []
    for place in ("http://127.0.0.1:9", address):
        code, text = audit(tmp_path, place)
        assert (code, text.split(":")[0]) == (0, "not audited")
        assert audit(tmp_path, place, AUDIT="required")[0] == 1


def test_a_vulnerability_fails(tmp_path: Path, service: tuple[str, dict]) -> None:
    good = {"name": "good", "version": "1", "vulns": []}
    lost = {"name": "lost", "skip_reason": "not found"}
    bad = {"name": "bad", "version": "2", "vulns": [{"id": "PYSEC-7", "fix_versions": ["3"]}]}
    code, text = audit(tmp_path, service[0], [good, lost, bad])
    assert code == 1
    assert "bad 2: PYSEC-7, fixed in 3" in text
    assert "doesn't know these releases: lost\n" in text
    assert audit(tmp_path, service[0], [good]) == (0, "audited: 1 of 1 packages, vulnerabilities: 0\n")
