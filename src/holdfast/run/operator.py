"""A question, or a wish, of the operator's to the coordinator of a live run, and its answer."""

import asyncio

from holdfast.record.errors import HoldfastError
from holdfast.run.dial import dial
from holdfast.run.endpoint import Endpoint
from holdfast.run.wire import Answer, Replace, Strike

ANSWER_WAIT_S = 10.0


async def asked(endpoint: Endpoint, run: str, message: Strike | Replace) -> Answer:
    """`HoldfastError` where none comes."""
    connection = await dial(endpoint.host, endpoint.port, endpoint.token, role="operator")
    try:
        connection.send(message)
        async with asyncio.timeout(ANSWER_WAIT_S):
            answer = await connection.receive()
    except TimeoutError:
        raise HoldfastError(
            f"The run {run!r} does not answer.", hint="Its `holdfast run` may be suspended."
        ) from None
    finally:
        await connection.close()
    if not isinstance(answer, Answer):
        raise HoldfastError(f"The run {run!r} ended before it could answer.")
    return answer
