"""A prefix in S3-compatible object storage as a place for checkpoints, with obstore, the extra
`holdfast[s3]`.

The endpoint and the credentials come from the usual variables: AWS_ENDPOINT_URL, AWS_REGION,
AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY, AWS_SESSION_TOKEN, or from the machine's role.
"""

import contextlib
import os
import re
from collections.abc import Callable, Collection
from contextlib import AbstractContextManager
from datetime import timedelta
from typing import TYPE_CHECKING, TypeVar
from urllib.parse import urlsplit

from holdfast.record.errors import InputError
from holdfast.train.chunks import Lock
from holdfast.train.place import PLACE_HINT, StorageTrouble, StoredObject, is_key

if TYPE_CHECKING:
    from obstore.store import S3Config, S3Store

REQUEST_S_MAX = 300.0
"""How long a request may take: enough for a pack of 64 MiB at 220 kB/s."""
CONNECT_S_MAX = 10.0
RETRIES_MAX, RETRY_S_MAX = 3, 30.0
"""The client's own retries, after cut connections, 5xx and "slow down". After these the copying process
waits.
"""
GIST_CHARS_MAX = 200
_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._\-]{1,254}")
_CODE = re.compile(r"<Code>(\w{1,64})</Code>")
_STATUS = re.compile(r"status code: ([0-9]{3}(?: [A-Za-z ]{1,40})?)")

Answer = TypeVar("Answer")


class S3Storage:
    """Objects under a prefix. A put is atomic, and its object is listed at once (true of Amazon S3 since
    2020, and of MinIO, Ceph, R2 and GCS).
    """

    def __init__(self, name: str, store: "S3Store") -> None:
        self._name = name
        self._store = store

    @classmethod
    def at(cls, url: str, request_s: float = REQUEST_S_MAX) -> "S3Storage":
        """The storage at s3://BUCKET/PREFIX; no request is sent yet. Raises `InputError`."""
        told = urlsplit(url)
        bucket, prefix = told.netloc, told.path.strip("/")
        if not _BUCKET.fullmatch(bucket) or told.query or told.fragment or ".." in prefix.split("/"):
            raise InputError(f"{url} is not in the form s3://BUCKET/PREFIX.", hint=PLACE_HINT)
        try:
            from obstore.exceptions import BaseError
            from obstore.store import S3Store
        except ModuleNotFoundError:
            raise InputError(
                f"Keeping checkpoints in {url} needs the package obstore.",
                hint="Install it: pip install 'holdfast[s3]'.",
            ) from None
        endpoint = os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")
        if endpoint and not endpoint.startswith(("http://", "https://")):
            raise InputError(
                f"AWS_ENDPOINT_URL is {endpoint}, which is not a URL.",
                hint="It must begin with http:// or https://.",
            )
        config: S3Config = {"endpoint": endpoint} if endpoint else {}
        try:
            store = S3Store(
                bucket,
                prefix=prefix or None,
                client_options={
                    "allow_http": bool(endpoint and endpoint.startswith("http://")),
                    "timeout": timedelta(seconds=request_s),
                    "connect_timeout": timedelta(seconds=min(CONNECT_S_MAX, request_s)),
                },
                retry_config={
                    "max_retries": RETRIES_MAX,
                    "retry_timeout": timedelta(seconds=min(RETRY_S_MAX, request_s)),
                },
                config=config,
            )
        except (BaseError, ValueError) as error:
            raise InputError(f"{url} cannot be used: {_gist(error)}.", hint=PLACE_HINT) from None
        return cls(f"s3://{bucket}/{prefix}".rstrip("/"), store)

    @property
    def name(self) -> str:
        return self._name

    def listed(self, folder: str = "") -> dict[str, StoredObject]:
        import obstore

        found: dict[str, StoredObject] = {}
        for page in self._ask(lambda: list(obstore.list(self._store, prefix=folder or None))):
            for told in page:
                if is_key(key := told["path"]):
                    version = told["e_tag"] or told["last_modified"].isoformat()
                    found[key] = StoredObject(told["size"], told["last_modified"].timestamp(), version)
        return found

    def read(self, key: str) -> bytes:
        import obstore

        return self._ask(lambda: bytes(obstore.get(self._store, key).bytes()))

    def write(self, key: str, data: bytes | bytearray) -> None:
        import obstore

        self._ask(lambda: obstore.put(self._store, key, data, use_multipart=False))

    def remove(self, keys: Collection[str]) -> None:
        import obstore

        if keys:
            with contextlib.suppress(FileNotFoundError):
                self._ask(lambda: obstore.delete(self._store, sorted(keys)))

    def writing(self, part: str) -> AbstractContextManager[Lock]:  # there are no locks, only notes
        return contextlib.nullcontext("held")

    def collecting(self, part: str) -> AbstractContextManager[Lock]:
        return contextlib.nullcontext("held")

    def _ask(self, work: Callable[[], Answer]) -> Answer:
        """Do a request. Raises `FileNotFoundError` or `StorageTrouble`."""
        from obstore.exceptions import BaseError

        try:
            return work()
        except (BaseError, OSError) as error:
            text = str(error)
            code = found[1] if (found := _CODE.search(text)) else ""
            if code == "NoSuchBucket":
                raise StorageTrouble("there is no such bucket", is_mistake=True) from None
            if isinstance(error, FileNotFoundError):
                raise FileNotFoundError(None, "it does not exist") from None
            is_denied = bool(re.search(r"status code: 40[13]\b", text))
            why = f"access denied ({code})" if is_denied and code else _gist(error)
            raise StorageTrouble(why, is_denied=is_denied) from None


def _gist(error: BaseException) -> str:
    """The error in a few words: the client's messages can be pages long, and quote the request."""
    text = str(error)
    if (code := _CODE.search(text)) and (status := _STATUS.search(text)):
        return f"it answers {status[1].strip()} ({code[1]})"
    if status := _STATUS.search(text):
        return f"it answers {status[1].strip()}"
    if "HTTP error: " in text:
        return "it cannot be reached, or does not answer in time"
    first = (text.splitlines() or [type(error).__name__])[0]
    told = "".join(each for each in re.sub(r"^.* - ", "", first) if each.isprintable())
    return told[:GIST_CHARS_MAX].rstrip(" .:")
