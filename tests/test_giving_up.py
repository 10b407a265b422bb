"""Work that is given up: its thread is another's no more, and it holds up nothing."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from daft_vllm import giving_up
from daft_vllm.giving_up import within


class TooSlow(Exception):
    """It took too long."""


def test_a_thread_is_used_again_but_not_one_that_hangs() -> None:
    assert len({within(5.0, threading.get_ident, TooSlow) for _ in range(50)}) < 10
    release = threading.Event()
    hanging: list[int] = []

    def hang() -> None:
        hanging.append(threading.get_ident())
        release.wait()

    with pytest.raises(TooSlow):
        within(0.05, hang, TooSlow)
    assert not {within(5.0, threading.get_ident, TooSlow) for _ in range(50)} & set(hanging)
    release.set()
    deadline = time.monotonic() + 10
    while len(giving_up._idle) < 2 and time.monotonic() < deadline:
        time.sleep(0.01)
    meet = threading.Barrier(2, timeout=10)  # two at once, so that both threads are used
    both = [threading.Thread(target=within, args=(10.0, meet.wait, TooSlow)) for _ in range(2)]
    before = {thread.ident for thread in threading.enumerate()}
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert not meet.broken
    assert {thread.ident for thread in threading.enumerate()} <= before, "it is back, and was used again"


@pytest.mark.parametrize("error", [TimeoutError("its own"), ValueError("wrong"), KeyboardInterrupt()])
def test_the_works_own_error(error: BaseException) -> None:
    def work() -> None:
        raise error

    with pytest.raises(type(error)) as caught:
        within(5.0, work, TooSlow)
    assert caught.value is error


def test_a_fork_starts_threads_of_its_own() -> None:
    within(5.0, int, TooSlow)
    child = os.fork()
    if child == 0:
        ok = False
        try:
            ok = within(5.0, int, TooSlow) == 0
        finally:
            os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_hanging_thread_does_not_hold_up_the_end() -> None:
    script = "from daft_vllm.giving_up import run; import time; run(lambda: time.sleep(60)); print('end')"
    started = time.monotonic()
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50)
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr
    assert time.monotonic() - started < 40
