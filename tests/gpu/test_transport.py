"""NCCL keeps what a transport promises, between members that share a GPU."""

from transport_contract import TransportContract


class TestNccl(TransportContract):
    """Over loopback, each member a host of its own."""
