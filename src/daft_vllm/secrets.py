"""Tokens, keys and passwords: finds them where they don't belong, and takes them out of messages.

They belong into the environment of the process that uses them. What is written down by others (plans, logs, pickles,
messages) holds none of them.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator, Mapping
from typing import Any

_NAMES = re.compile(
    r"(?:^|_)(?:secret|secret_id|password|passwd|passphrase|credentials?|authorization|bearer|signature"
    r"|(?:api|access|secret|private|account|signing|shared|encryption|hash|watermark)_?key"
    r"|(?:hf|hub|auth|access|api|session|security|sas|bearer|refresh|id|github|gitlab|secret|user)_?token)$|^token$"
)
"""Names of settings that are secret, in snake case. Tokens of a tokenizer (``eos_token``) are none."""
_OF_VARIABLES = re.compile(r"(?:^|_)(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIALS?|PAT)$")
_WORD = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|[-. ]")
_USER = re.compile(r"([A-Za-z][A-Za-z0-9+.-]{0,20}://)[^/\s@'\"]{1,1000}@")
_SIGNED = re.compile(r"[?&][^\s?&=]*(?:signature|token|secret|password|credential|key|\bsig)=[^\s&]", re.IGNORECASE)
_TOKENS = re.compile(
    r"\bhf_[A-Za-z0-9]{20,}|\bsk-[A-Za-z0-9_-]{20,}|\bgh[opsu]_[A-Za-z0-9]{20,}|\bgithub_pat_\w{20,}"
    r"|\bAKIA[A-Z0-9]{16}\b|\b(?:Bearer|Basic)\s+[A-Za-z0-9._~+/-]{8,}=*"
)
"""What tokens look like: those of the hub, of APIs, of GitHub and AWS, and of HTTP's header."""
_QUERY = re.compile(r"(\w://[^\s?'\"]{1,2000})\?[^\s'\"()<>]+")
_SHORTEST = 8
"""Values of environment variables that are shorter aren't looked for in texts: they would be found in words."""


@functools.lru_cache(maxsize=4096)
def is_secret_name(name: str) -> bool:
    """Whether a setting or an environment variable with this name holds a secret: ``hf_token``, ``accessKey``."""
    return bool(_NAMES.search(_WORD.sub("_", name).lower()) or _OF_VARIABLES.search(name))


def secrets_in(value: Any, place: str = "") -> Iterator[str]:
    """Yield the places of secrets in a value: ``"hf_token"``, ``"model_loader_extra_config.access_key"``.

    A secret is what has the name of one, a URL with a password or a signature, or a text that looks like a token.

    Args:
        value: dicts, lists and plain values.
        place: the value's own name.
    """
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from secrets_in(inner, f"{place}.{name}" if place else str(name))
    elif isinstance(value, (list, tuple, set, frozenset)):
        for inner in value:
            yield from secrets_in(inner, place)
    elif isinstance(value, (str, bytes)):
        if value and (is_secret_name(place.rpartition(".")[2]) or (isinstance(value, str) and _looks_secret(value))):
            yield place
    elif value is not None and not isinstance(value, bool) and is_secret_name(place.rpartition(".")[2]):
        yield place  # pydantic's SecretStr, for example


def has_secrets(value: Any) -> bool:
    """Whether ``secrets_in`` finds something."""
    return any(True for _ in secrets_in(value))


def _looks_secret(text: str) -> bool:
    address = "://" in text
    return bool(_TOKENS.search(text) or (address and (_USER.search(text) or _SIGNED.search(text))))


def without_secrets(text: str) -> str:
    """Return a text in which stars stand for secrets.

    Of URLs the user and the query are left out. Secrets are what looks like a token, and the values of this process's
    environment variables that are named like secrets.
    """
    for name, value in os.environ.items():
        if len(value) >= _SHORTEST and is_secret_name(name):
            text = text.replace(value, "***")
    text = _QUERY.sub(r"\1?...", _USER.sub(r"\1", text)) if "://" in text else text
    return _TOKENS.sub("***", text)
