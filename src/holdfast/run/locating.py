"""Find a run for its operator: on this machine, or on another one that took it over from here."""

from pathlib import Path

from holdfast.record.errors import InputError
from holdfast.run.dial import dial
from holdfast.run.endpoint import Endpoint, find_endpoint, kept_line
from holdfast.run.handshake import Rejected, Stranger, Unreachable
from holdfast.run.seeking import SEEK_WAIT_S


async def located(home: Path, run: str, token: str) -> Endpoint:
    """The run's endpoint. Raise `InputError` if the run is neither here nor, as far as the token gives
    access, on a machine to which it may have moved. For a coordinator on another machine, `pid` is 0.
    """
    try:
        return find_endpoint(home, run)
    except InputError as unknown:
        line = kept_line(home, run)
        for host, port in line if token else ():
            try:
                found = await dial(host, port, token, role="operator", wait_s=SEEK_WAIT_S)
            except (Unreachable, Stranger, Rejected):
                continue
            await found.close()
            if found.run == run:
                return Endpoint(host=host, port=port, token=token, pid=0)
        if line:
            places = " or ".join(dict.fromkeys(host for host, _ in line))
            raise InputError(
                f"No run {run!r} is running on this machine; another machine may have taken it over.",
                hint=f"Ask at {places}, or set HOLDFAST_TOKEN here to the run's token.",
            ) from None
        raise unknown from None
