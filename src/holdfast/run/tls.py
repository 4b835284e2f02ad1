"""TLS for control connections, without a certificate authority and without files.

The coordinator makes a key and a self-signed certificate when it starts. Nobody vouches for that certificate:
both proofs of the token (handshake.py) name its fingerprint, so somebody in between, who can only show
another one, is found out by both ends. The first message, the coordinator's challenge, goes in plain and says
that TLS follows. Nothing here touches a socket: connections have threads in link.py, asyncio in dial.py and
coordinator.py, and a TLS socket of Python's may not be written by one thread while another reads.
"""

import hashlib
import os
import ssl
import subprocess

from holdfast.record.errors import HoldfastError
from holdfast.run.wire import MalformedFrame

UNPROVEN_BYTES_MAX = 16 << 10
"""Of TLS from somebody who has proved nothing yet: a hello, a certificate and a proof are below 4 KiB."""
READ_BYTES = 1 << 16
OPENSSL_WAIT_S = 20.0
"""It takes a few milliseconds."""
CERTIFICATE_DAYS = 3650
"""Nobody looks at it; a certificate must have some."""

_OPENSSL = (
    *("openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"),
    *("-sha256", "-days", str(CERTIFICATE_DAYS), "-subj", "/CN=holdfast", "-keyout", "-", "-out", "-"),
    # The machine's own settings are left out: they may ask for a password, or for fields that we do not have.
    *("-config", "/dev/stdin"),
)
_OPENSSL_SETTINGS = b"[req]\ndistinguished_name=name\n[name]\n"


class Identity:
    """What a coordinator shows of itself: its key, in memory alone, and its certificate's fingerprint."""

    def __init__(self, pem: bytes) -> None:
        """pem: the key and the certificate."""
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.num_tickets = 0  # nobody comes back to a session
        file = os.memfd_create("holdfast-tls")  # OpenSSL takes a path, and the key shall be on no disk
        try:
            os.write(file, pem)
            self.context.load_cert_chain(f"/proc/self/fd/{file}")
        finally:
            os.close(file)
        start = pem.index(b"-----BEGIN CERTIFICATE-----")
        self.fingerprint = _fingerprint(ssl.PEM_cert_to_DER_cert(pem[start:].decode("ascii").strip()))


def make_identity() -> Identity:
    """A new one; `HoldfastError` where this machine cannot make it."""
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
        why = f"what `openssl req` made cannot be used ({error})"
    raise HoldfastError(
        f"--tls needs a certificate, and {why}.",
        hint="Install OpenSSL 1.1.1 or newer on the coordinator's machine, or leave --tls out on a network"
        " that nobody else can listen on.",
    )


class Channel:
    """What passes over one connection: plain, until TLS is begun. One thread at a time may use it."""

    def __init__(self) -> None:
        self.is_ready = True
        """Whether anything may be sealed: not while the two ends still agree on keys."""
        self.fingerprint = b""
        """Of the coordinator's certificate, as this end sees it; empty without TLS."""
        self.is_proven = False
        """Whether the other end has the token: then it may send as much as it likes."""
        self._tls: ssl.SSLObject | None = None
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._taken_bytes = 0

    def host(self, identity: Identity) -> None:
        """Take what comes from here on for TLS, as the coordinator."""
        self._tls = identity.context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.fingerprint = identity.fingerprint
        self.is_ready = False

    def join(self) -> bytes:
        """Begin TLS, as a client; what to send for it."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE  # the proofs name the certificate: see above
        self._tls = context.wrap_bio(self._incoming, self._outgoing)
        self.is_ready = False
        self.open(b"")
        return self.pending()

    def open(self, data: bytes) -> bytes:
        """What the other end said with this; `MalformedFrame` where it is not what TLS allows."""
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
        """What to send so that the other end is told this."""
        if self._tls is None:
            return data
        rest = memoryview(data)
        while rest:
            rest = rest[self._tls.write(rest) :]
        return self.pending()

    def pending(self) -> bytes:
        """What to send though there is nothing to tell: of the agreement on keys."""
        return self._outgoing.read()


def _fingerprint(certificate: bytes) -> bytes:
    return hashlib.sha256(certificate).digest()
