"""Find a run for its operator: on this machine, or on another one that took it over from here."""

import asyncio
from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.run.dial import dial
from holdfast.run.endpoint import Endpoint, find_endpoint, kept_line
from holdfast.run.handshake import Elsewhere, Rejected, Stranger, Unreachable
from holdfast.run.seeking import SEEK_INTERVAL_S, SEEK_S, SEEK_WAIT_S


async def located(home: Path, run: str, token: str, *, seek_s: float = SEEK_S) -> Endpoint:
    """The run's endpoint. Raise `InputError` if the run is neither here nor, as far as the token gives
    access, on a machine to which it may have moved. For a coordinator on another machine, `pid` is 0.
    seek_s: how long to look while its heirs choose a coordinator.
    """
    loop = asyncio.get_running_loop()
    due_s = loop.time() + seek_s
    while True:
        try:
            return find_endpoint(home, run)
        except InputError as unknown:
            line, is_to_be_chosen = kept_line(home, run), False
            for host, port in line if token else ():
                try:
                    found = await dial(host, port, token, role="operator", wait_s=SEEK_WAIT_S)
                except (Unreachable, Stranger, Rejected) as error:
                    is_to_be_chosen |= isinstance(error, Elsewhere)
                    continue
                await found.close()
                if found.run == run:
                    return Endpoint(host=host, port=port, token=token, pid=0)
            if not line:
                raise unknown from None
            if not is_to_be_chosen or loop.time() >= due_s:
                places = " or ".join(dict.fromkeys(host for host, _ in line))
                raise InputError(
                    f"No run {run!r} is running on this machine; another machine may have taken it over.",
                    hint=f"Ask at {places}, or set HOLDFAST_TOKEN here to the run's token.",
                ) from None
        await asyncio.sleep(SEEK_INTERVAL_S)
