"""The environment in which vLLM starts."""

from __future__ import annotations

import os
import socket
import uuid
from pathlib import Path

import pytest

from daft_vllm.engine.setup.environment import MAX_SOCKET_FOLDER, prepare_environment


@pytest.mark.parametrize(("more", "elsewhere"), [(0, False), (1, True)])
def test_sockets_are_where_their_names_fit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, more: int, elsewhere: bool
) -> None:
    monkeypatch.setattr(os, "environ", {"PATH": os.environ["PATH"]})
    folder = Path("/tmp") / f"{uuid.uuid4().hex:x<{MAX_SOCKET_FOLDER + more - len('/tmp/')}}"
    folder.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(folder))
    try:
        prepare_environment(cpu=True)
        assert (os.environ.get("VLLM_RPC_BASE_PATH") == "/tmp") is elsewhere
        with socket.socket(socket.AF_UNIX) as opened:
            if elsewhere:
                with pytest.raises(OSError, match="too long"):
                    opened.bind(str(folder / str(uuid.uuid4())))
            else:
                name = folder / str(uuid.uuid4())
                opened.bind(str(name))
                name.unlink()
        os.environ["VLLM_RPC_BASE_PATH"] = "/of/the/user"
        prepare_environment(cpu=True)
        assert os.environ["VLLM_RPC_BASE_PATH"] == "/of/the/user"
    finally:
        folder.rmdir()
