"""Keep credentials out of texts that people read."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from urllib.parse import quote, quote_plus

_SECRET_OPTION = re.compile(r"key|secret|token|sas|password|credential|proxy_url", re.IGNORECASE)
_SECRET_VARIABLE = re.compile(r"(AWS|AZURE|GOOGLE)_.*(SECRET|TOKEN|SAS|PASSWORD|KEY)")
"""Variables of the environment from which the libraries of stores take credentials that are no options."""
_SIGNATURE = re.compile(
    r"(?i)\b((?:sig|signature|x-amz-signature|x-amz-security-token|authorization)\s*[=:]\s*)[^\s&\"'<>]+"
)
_USER_OF_URL = re.compile(r"(://)[^/@\s'\"]*:(?!\d{1,5}/)(?:[^/@\s'\"]+|[^@\s'\"]+)@")
"""A password may have a slash that is not quoted, as keys of AWS do. Digits before a slash are a port."""
_SHORTEST = 4
"""Length below which a value is no secret: hiding `1` or `on` would only garble texts."""

_FLAGS = {"true", "false"}
HIDDEN = "***"


def has_user(url: str) -> bool:
    """Return whether a URL has a user and a password, also one with a slash that is not quoted."""
    return _USER_OF_URL.search(url) is not None


def hide_secrets(text: str, options: Mapping[str, str]) -> str:
    """Return the text with stars in place of secrets.

    Secrets are credentials among the storage options and in the environment, signatures of requests, and users and
    passwords in URLs.
    """
    named = [value for name, value in options.items() if _SECRET_OPTION.search(name)]
    named += [value for name, value in os.environ.items() if _SECRET_VARIABLE.fullmatch(name)]
    secrets = [value for value in named if len(value) >= _SHORTEST and value.lower() not in _FLAGS]
    spellings = {spelling for value in secrets for spelling in (value, quote(value, safe=""), quote_plus(value))}
    for spelling in sorted(spellings, key=len, reverse=True):
        text = text.replace(spelling, HIDDEN)
    return _USER_OF_URL.sub(rf"\g<1>{HIDDEN}@", _SIGNATURE.sub(rf"\g<1>{HIDDEN}", text))
