"""What others say goes to a log file: not what we say, not what other threads say, and not if the user wants it."""

from __future__ import annotations

import errno
import io
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from daft_vllm.engine.setup import log as module
from daft_vllm.engine.setup.environment import prepare_environment
from daft_vllm.engine.setup.log import LogFile, log_on_screen, quiet_thread, route_vllm_logger
from daft_vllm.errors import EngineStartError, OptionError
from daft_vllm.udf.progress.queries import wants_display


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[LogFile]:
    """A log of the test's own, in an environment in which nobody wants it on the screen."""
    for name in (*module.VLLM_VARIABLES, module.WHERE):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    found = LogFile()
    monkeypatch.setattr(module, "log_file", lambda: found)
    yield found
    os.close(found.fd)


def speak(name: str) -> None:
    print(f"{name} prints")
    print(f"{name} complains", file=sys.stderr)
    logging.getLogger("others.library").warning("%s logs", name)


def test_only_what_others_say_in_this_thread_goes_to_the_log(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    out, err = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    handler = logging.StreamHandler(err)  # as logging.basicConfig has it
    logging.getLogger().addHandler(handler)
    try:
        with quiet_thread():
            speak("library")
            logging.getLogger("daft_vllm").warning("we log")
            user = threading.Thread(
                target=lambda: (print("user prints"), logging.getLogger("user").warning("user logs"))
            )
            user.start()
            user.join()
            kept = logging.StreamHandler(sys.stderr)  # a library sets up its loggers as it is imported
        speak("later")
        kept.stream.write("kept for good\n")
    finally:
        logging.getLogger().removeHandler(handler)
    assert (sys.stdout, sys.stderr) == (out, err)
    written = log.read(0)
    for what in ("prints", "complains", "logs"):
        assert f"library {what}" in written
        assert f"later {what}" not in written
        assert f"later {what}" in out.getvalue() + err.getvalue()
    assert out.getvalue() == "user prints\nlater prints\n"
    assert "user" not in written
    assert "library" not in err.getvalue()
    assert {"we log", "user logs", "kept for good"} <= set(err.getvalue().splitlines())


def test_a_process_without_a_console_prints_nowhere(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", None)
    monkeypatch.setattr(sys, "stderr", None)
    with quiet_thread():
        print("library prints")
        user = threading.Thread(target=lambda: sys.stdout.write("user prints"))
        user.start()
        user.join()
        sys.stdout.flush()
        assert not sys.stdout.isatty()
    assert sys.stdout is None
    assert log.read(0) == "library prints\n"


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({}, False),
        ({"VLLM_LOGGING_LEVEL": "INFO"}, True),
        ({"VLLM_LOGGING_CONFIG_PATH": "x.json"}, True),
        ({"VLLM_CONFIGURE_LOGGING": "0"}, True),
        ({"DAFT_VLLM_LOG": "screen"}, True),
        ({"DAFT_VLLM_LOG": "file", "VLLM_LOGGING_LEVEL": "INFO"}, False),
    ],
)
def test_who_wants_the_log_sees_it(
    log: LogFile,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    variables: dict[str, str],
    expected: bool,
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert log_on_screen() is expected
    vllm = logging.Logger("vllm")
    vllm.addHandler(logging.StreamHandler(sys.stdout))
    monkeypatch.setattr(logging, "getLogger", lambda name=None: vllm)
    route_vllm_logger()
    route_vllm_logger()
    vllm.warning("force killing remaining processes")
    with quiet_thread():
        print("from a library")
    assert capsys.readouterr().out.splitlines() == ["force killing remaining processes", "from a library"] * expected
    assert ("force killing" in log.read(0)) is not expected


def test_a_log_on_the_screen_is_copied_there_once(
    log: LogFile, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("DAFT_VLLM_LOG", "screen")
    log.write("before\n")
    log.follow()
    log.follow()
    os.write(log.fd, b"of the core\n")
    log.show()
    log.show()
    assert capsys.readouterr().err == "of the core\n"


def test_another_value_is_refused(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DAFT_VLLM_LOG", "syslog")
    with pytest.raises(OptionError, match="DAFT_VLLM_LOG is file or screen, got 'syslog'"):
        prepare_environment(cpu=True)


def test_it_stays_short(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    monkeypatch.setattr(module, "KEPT_BYTES", 100)
    for i in range(200):
        os.write(log.fd, f"line {i}\n".encode())
        log.trim()
    assert log.size() < 1100
    assert log.read(0).endswith("line 199\n")
    assert "line 199" in log.read(10_000), "what was read before the cut starts anew"


def test_a_full_disk_ends_no_engine(log: LogFile, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(fd: int, data: bytes) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    log.write("x" * 2000)
    monkeypatch.setattr(module, "MAX_BYTES", 1000)
    monkeypatch.setattr(os, "write", full)
    log.write("lost")
    log.trim()


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch) -> None:
    def none() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found in ['/tmp', '/var/tmp']")

    monkeypatch.setattr("tempfile.gettempdir", none)
    with pytest.raises(EngineStartError, match=r"No usable temporary directory.*set TMPDIR"):
        LogFile()
    monkeypatch.setattr("sys.stderr", type("Screen", (io.StringIO,), {"isatty": lambda self: True})())
    monkeypatch.delenv("DAFT_PROGRESS_BAR", raising=False)
    assert not wants_display()


def test_it_goes_with_the_process_unless_its_name_was_given(tmp_path: Path) -> None:
    code = (
        "import sys; from daft_vllm.engine.setup.log import log_file\n"
        "log = log_file(); log.write('x'); print(log.kept() if sys.argv[1] == 'failed' else log.path)"
    )
    for outcome in ("fine", "failed"):
        done = subprocess.run(
            [sys.executable, "-c", code, outcome],
            env={**os.environ, "TMPDIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        )
        assert Path(done.stdout.strip()).exists() is (outcome == "failed")


def test_old_logs_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    for i in range(30):
        (tmp_path / f"daft-vllm-{2**22 + 1 + i}-x.log").touch()  # above the highest id of a process
        os.utime(tmp_path / f"daft-vllm-{2**22 + 1 + i}-x.log", (i, i))
    (tmp_path / f"daft-vllm-{os.getpid()}-x.log").touch()
    os.utime(tmp_path / f"daft-vllm-{os.getpid()}-x.log", (0, 0))
    (tmp_path / "daft-vllm-of-another-kind.log").touch()
    log = LogFile()
    left = {path.name for path in tmp_path.iterdir()}
    assert len(left) == module.KEPT_FILES + 3
    assert {f"daft-vllm-{os.getpid()}-x.log", "daft-vllm-of-another-kind.log", log.path.name} <= left
    assert f"daft-vllm-{2**22 + 30}-x.log" in left
