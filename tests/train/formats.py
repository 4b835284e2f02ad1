"""Manifests as another version of Holdfast would have written them."""

import hashlib
import struct

VERSION = struct.Struct(">I")
VERSION_AT = 16
DIGEST_AT, BODY_AT = 36, 68


def numbered(manifest: bytes, version: int) -> bytes:
    """Only the format number differs, as after a flipped bit."""
    return manifest[:VERSION_AT] + VERSION.pack(version) + manifest[VERSION_AT + VERSION.size :]


def of_format(manifest: bytes, version: int) -> bytes:
    """A whole manifest of another format."""
    head, body = numbered(manifest, version)[:DIGEST_AT], manifest[BODY_AT:]
    sealed = head + bytes(BODY_AT - DIGEST_AT) + body
    return head + hashlib.blake2b(sealed, digest_size=BODY_AT - DIGEST_AT).digest() + body
