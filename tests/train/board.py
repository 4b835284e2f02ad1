"""Where members of a group find each other's keys, as through the coordinator: for members in one process."""

import threading

from holdfast.train.group import Superseded

LOOKUP_S = 60.0


class Board:
    def __init__(self) -> None:
        self._keys: dict[str, bytes] = {}
        self._changed = threading.Condition()

    def publish(self, key: str, value: bytes) -> None:
        with self._changed:
            self._keys[key] = value
            self._changed.notify_all()

    def lookup(self, key: str) -> bytes:
        with self._changed:
            if not self._changed.wait_for(lambda: key in self._keys, LOOKUP_S):
                raise Superseded
            return self._keys[key]
