"""The main loop of the process of a ``KillableFunction``."""

from __future__ import annotations

import pickle
from typing import Any

from daft_vllm.children import limited, own_connection


def main() -> None:
    """Take a function, and call it as often as is asked for, until the other end of the connection is closed."""
    connection = own_connection()
    function: Any = None
    while True:
        try:
            pickled, seconds, memory, arguments = pickle.loads(connection.recv_bytes())
        except EOFError:
            return
        try:
            if pickled is not None:
                function = pickle.loads(pickled)
                answer = b"ready"
            else:
                with limited(seconds, memory):
                    answer = pickle.dumps((function(*arguments), None))
        except Exception as e:
            answer = pickle.dumps((None, _text_of(e)))
        connection.send_bytes(answer)


def _text_of(error: Exception) -> str:
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:  # a user's class may raise anything when it is written
        return type(error).__name__


if __name__ == "__main__":
    main()
