"""TLS for control connections, without a certificate authority and without files.

The coordinator makes a key and a self-signed certificate when it starts. No authority signs that certificate.
Instead, both proofs of the token (handshake.py) include its fingerprint, so both ends detect a
man-in-the-middle, who can only present another certificate. The first message, the coordinator's challenge,
is not encrypted and says that TLS follows. This module touches no socket: connections use threads in link.py,
asyncio in dial.py and coordinator.py, and one thread must not write a Python TLS socket while another reads.
"""

import hashlib
import os
import ssl
import subprocess
from contextlib import suppress

from holdfast.record.errors import HoldfastError
from holdfast.run.wire import MalformedFrame

UNPROVEN_BYTES_MAX = 16 << 10
"""The most TLS data from an unproven peer: a hello, a certificate and a proof are below 4 KiB."""
READ_BYTES = 1 << 16
OPENSSL_WAIT_S = 20.0
"""The limit for the command, which takes a few milliseconds."""
CERTIFICATE_DAYS = 3650
"""A certificate must have a lifetime, but nothing checks this one."""

_OPENSSL = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-sha256", "-days", str(CERTIFICATE_DAYS), "-subj", "/CN=holdfast", "-keyout", "-", "-out", "-"),
    # Without the machine's own settings, which may require a password or fields that we do not have.
    *("-config", "/dev/stdin"),
)
_OPENSSL_SETTINGS = b"[req]\ndistinguished_name=name\n[name]\n"


class Identity:
    """A coordinator's TLS identity: its key, only in memory, and its certificate's fingerprint."""

    def __init__(self, pem: bytes) -> None:
        """pem: the key and the certificate."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.num_tickets = 0  # sessions are never resumed
        file = os.memfd_create("holdfast-tls")  # OpenSSL needs a path, and the key must not be on disk
        try:
            os.write(file, pem)
            self.context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        start = pem.index(b"-----BEGIN CERTIFICATE-----")
        self.fingerprint = _fingerprint(ssl.PEM_cert_to_DER_cert(pem[start:].decode("ascii").strip()))


def make_identity() -> Identity:
    """Make a new identity. Raise `HoldfastError` if this machine cannot."""
    try:
        made = subprocess.run(
            _OPENSSL, input=_OPENSSL_SETTINGS, capture_output=True, timeout=OPENSSL_WAIT_S, check=True
        )
        return Identity(made.stdout)
    except FileNotFoundError:
        why = "the command `openssl` is not installed here"
    except subprocess.CalledProcessError as error:
        said = error.stderr.decode("utf-8", "replace").split("\n")[0]
        why = f"`openssl req` failed ({said})"
    except subprocess.TimeoutExpired:
        why = f"`openssl req` took longer than {OPENSSL_WAIT_S:g} s"
    except (OSError, ValueError) as error:
        why = f"the output of `openssl req` cannot be used ({error})"
    raise HoldfastError(
        f"--tls needs a certificate, and {why}.",
        hint="Install OpenSSL 1.1.1 or newer on the coordinator's machine, or leave --tls out on a network"
        " that no one else can listen on.",
    )


class Channel:
    """The data of one connection: unencrypted until TLS starts. Only one thread at a time may use it."""

    def __init__(self) -> None:
        self.is_ready = True
        """Whether data may be sealed: not while the two ends still negotiate keys."""
        self.fingerprint = b""
        """The fingerprint of the coordinator's certificate, as this end sees it; empty without TLS."""
        self.is_proven = False
        """Whether the other end has proved the token: then it may send any amount."""
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._taken_bytes = 0

    def host(self, identity: Identity) -> None:
        """Start TLS as the coordinator: treat all further data as TLS."""
        self._tls = identity.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.fingerprint = identity.fingerprint
        self.is_ready = False

    def join(self) -> bytes:
        """Start TLS as a client. Return the bytes to send."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the proofs include the certificate: see above
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self.is_ready = False
        self.open(b"")
        return self.pending()

    def open(self, data: bytes) -> bytes:
        """Decrypt received bytes. Raise `MalformedFrame` if they are not valid TLS."""
        if self._tls is None:
            return data
        self._taken_bytes += len(data)
        if not self.is_proven and self._taken_bytes > UNPROVEN_BYTES_MAX:
            raise MalformedFrame(f"{self._taken_bytes} bytes before the proof")
        self._incoming.write(data)
        said = bytearray()
        try:
            if not self.is_ready:
                self._tls.do_handshake()
                self.is_ready = True
                if not self.fingerprint:
                    self.fingerprint = _fingerprint(self._tls.getpeercert(binary_form=True) or b"")
            while piece := self._tls.read(READ_BYTES):
                said += piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise MalformedFrame(f"no TLS: {error.reason}") from None
        return bytes(said)

    def seal(self, data: bytes) -> bytes:
        """Encrypt bytes to send. Empty once TLS has failed, which `open` reports."""
        if self._tls is None:
            return data
        rest = memoryview(data)
        with suppress(ssl.SSLError):
            while rest:
                rest = rest[self._tls.write(rest) :]
        return self.pending()

    def pending(self) -> bytes:
        """Bytes that TLS itself has to send, such as for the key negotiation."""
        return self._outgoing.read()


def _fingerprint(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()
