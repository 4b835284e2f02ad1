"""Opens the place that a user named. Needs no torch."""

import re
from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.train.place import PLACE_HINT, DirectoryStorage, Storage
from holdfast.train.s3 import REQUEST_S_MAX, S3Storage

_SLIP = re.compile(r"[A-Za-z0-9]+:/")
"""A URL that lacks a slash."""


def opened_place(text: str, *, request_s: float | None = None) -> Storage:
    """The place that a user named. request_s: how long one request may take; by default long enough for a
    pack. Raises `InputError`.
    """
    scheme, separator, rest = text.partition("://")
    if not text or (not separator and _SLIP.match(text)):
        raise InputError(f"{text!r} does not name a place for checkpoints.", hint=PLACE_HINT)
    if not separator:
        return DirectoryStorage(Path(text))
    if "@" in rest.partition("/")[0]:  # do not quote it: logs would keep the secret
        raise InputError(
            "A place for checkpoints must not be named with credentials.",
            hint="Set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, and name s3://BUCKET/PREFIX.",
        )
    if scheme != "s3":
        raise InputError(f"Checkpoints cannot be kept in {text}.", hint=PLACE_HINT)
    return S3Storage.at(text, REQUEST_S_MAX if request_s is None else request_s)


def is_url(text: str) -> bool:
    return "://" in text
