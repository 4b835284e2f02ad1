"""Coordinators and heirs over real connections, a piece at a time; whole machines are in test_heirs.py."""

import asyncio
import os
import socket
import threading
from pathlib import Path

import pytest
from waiting import free_port

from holdfast.run.distant import HeirOrder
from holdfast.run.heirs import MachineHeir

TOKEN = "0123456789abcdef"
WAIT_S = 30.0


def _order(port: int, home: Path, memory: int = 0) -> HeirOrder:
    return HeirOrder(
        host="127.0.0.1",
        port=port,
        token=TOKEN,
        machine="b",
        home=str(home),
        memory=memory,
        launcher=os.getpid(),
    )


def test_an_heir_that_is_started_again_looks_where_the_coordinator_is_by_now(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as second:
        places = [("127.0.0.1", free_port()), second.getsockname()]
        heir = MachineHeir(_order(places[0][1], tmp_path), lambda: places.pop(0))
        called = threading.Thread(target=lambda: (second.accept()[0].close(), second.close()))
        called.start()

        async def keep() -> None:
            with pytest.raises(IndexError):  # nobody asks a third time
                await heir.keep()
            await heir.finish(0.0)

        asyncio.run(keep())
        called.join(WAIT_S)
        assert not called.is_alive()
