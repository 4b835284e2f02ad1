"""Parse a Redfish service from the command line: `cdu-0000=https://10.0.0.7`, or the URL alone."""

from holdfast.signals.collectors.redfish_service import Service
from holdfast.signals.credentials import secret, spelled_out
from holdfast.signals.http_client import checked


def redfish_service(
    text: str, *, session: bool = False, verify: bool = True, authority: str | None = None
) -> Service:
    """Credentials come from the URL, a file or the environment, and are never shown."""
    name, separator, url = text.partition("=")
    if not separator or "/" in name:
        name, url = "", text
    url = spelled_out(url, what="--redfish")
    hint = "Write https://HOST or NAME=https://HOST."
    address = checked(url, what="--redfish", hint=hint, is_quoted=True)
    return Service(
        url=str(address.copy_with(userinfo=b"")),
        name=name,
        user=address.username or secret("HOLDFAST_REDFISH_USER"),
        password=address.password or secret("HOLDFAST_REDFISH_PASSWORD"),
        session=session,
        verify=verify,
        authority=authority,
    )
