"""What a control connection does to bytes: nothing without TLS, and they arrive unchanged with it."""

import random
from pathlib import Path

import pytest

from holdfast.record.errors import HoldfastError
from holdfast.run.tls import UNPROVEN_BYTES_MAX, Channel, Identity, make_identity
from holdfast.run.wire import FRAME_BYTES_MAX, MalformedFrame


@pytest.fixture(scope="module")
def identity() -> Identity:
    return make_identity()


def agreed(identity: Identity) -> tuple[Channel, Channel]:
    """A client's and the coordinator's end."""
    client, host = Channel(), Channel()
    host.host(identity)
    to_host = client.join()
    while to_host:
        assert host.open(to_host) == b""
        assert client.open(host.pending()) == b""
        to_host = client.pending()
    assert client.is_ready
    assert host.is_ready
    return client, host


def test_without_tls_bytes_are_what_they_are() -> None:
    channel = Channel()
    assert (channel.is_ready, channel.fingerprint) == (True, b"")
    assert channel.seal(b"said") == channel.open(b"said") == b"said"


def test_what_is_sealed_arrives_in_whatever_pieces(identity: Identity) -> None:
    client, host = agreed(identity)
    client.is_proven = host.is_proven = True
    generator = random.Random(1)
    for sender, receiver in ((client, host), (host, client)):
        said = [generator.randbytes(size) for size in (1, 100, 0, 1 << 14, 100_000, FRAME_BYTES_MAX)]
        passed = b"".join(map(sender.seal, said))
        arrived, start = bytearray(), 0
        while start < len(passed):
            end = start + generator.choice((1, 7, 1000, 1 << 16))
            arrived += receiver.open(passed[start:end])
            start = end
        assert bytes(arrived) == b"".join(said)


def test_both_ends_know_the_certificate(identity: Identity) -> None:
    client, host = agreed(identity)
    assert client.fingerprint == host.fingerprint == identity.fingerprint
    assert identity.fingerprint != make_identity().fingerprint


def test_a_changed_byte_ends_it(identity: Identity) -> None:
    client, host = agreed(identity)
    passed = bytearray(client.seal(b"kill nothing"))
    passed[-5] ^= 1
    with pytest.raises(MalformedFrame, match=r"^no TLS: "):
        host.open(bytes(passed))
    host.pending()  # an alert
    assert host.seal(b"sent too late") == b""


def test_an_unproven_peer_may_send_little(identity: Identity) -> None:
    client, host = agreed(identity)
    passed = client.seal(bytes(2 * UNPROVEN_BYTES_MAX))
    with pytest.raises(MalformedFrame, match="before the proof"):
        host.open(passed)
    host.is_proven = True
    assert host.open(passed) == bytes(2 * UNPROVEN_BYTES_MAX)


def test_a_machine_without_openssl(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HoldfastError, match="the command `openssl` is not installed here") as caught:
        make_identity()
    assert "Install OpenSSL" in caught.value.hint


def test_an_openssl_that_fails(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    command = tmp_path / "openssl"
    command.write_text("#!/bin/sh\necho it is broken >&2\nexit 1\n", encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(HoldfastError, match=r"`openssl req` failed \(it is broken\)"):
        make_identity()
