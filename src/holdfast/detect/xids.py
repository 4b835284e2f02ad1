"""What to do about an XID: a policy kept as data, with its source, because the sources disagree.

`policy` answers for a code. `verdict` answers for a line of the kernel log, which may say more: whether an
NVLink error is fatal, or what the driver wants done (XID 154).
"""

import functools
import re
import tomllib
from collections.abc import Iterator, Mapping
from importlib import resources
from types import MappingProxyType
from typing import Any, Literal

import msgspec

from holdfast.record.errors import InputError
from holdfast.record.untrusted import UNDECODABLE
from holdfast.signals.collectors.kernel_log import KernelEvent, Recovery

Action = Literal[
    "restart-app",
    "reset-gpu",
    "reboot",
    "restart-vm",
    "drain",
    "mechanical",
    "update",
    "workflow",
    "contact-support",
    "unlisted",
    "ignore",
]
"""What to do. unlisted: the source knows the code and names no action."""
Severity = Literal["fatal", "degraded", "none"]
Source = Literal["nvidia-catalogue-2025-10-29", "gpud", "aznhc"]

CATALOGUE: Source = "nvidia-catalogue-2025-10-29"
SITE = "site"
FABRIC_MANAGER = "nvidia-fabric-manager"
"""The source for NVSwitch SXIDs: their lines say whether they are fatal; if so, only a restart helps."""
FIELD = "field"
"""The source for messages of network adapters: what operators watch for."""


class XidPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about one code. source: whose policy this is."""

    code: int
    action: Action
    severity: Severity
    source: str
    text: str


class Override(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A site's decision about a code; a field left out stays as the source has it."""

    action: Action | None = None
    severity: Severity | None = None
    text: str | None = None


class KernelVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """What to do about a line of the kernel log. fault: `xid-79`, `sxid-20034`, `mlx5-health-compromised`."""

    fault: str
    action: Action
    severity: Severity
    source: str
    text: str


Overrides = Mapping[int, Override]
NO_OVERRIDES: Overrides = MappingProxyType({})


def policy(code: int, *, source: Source = CATALOGUE, overrides: Overrides = NO_OVERRIDES) -> XidPolicy:
    """The policy of this source for the code; if it has none, the catalogue's, under the catalogue's name."""
    data = _data()
    stated = data.policies[source].get(code) or data.policies[CATALOGUE].get(code)
    text = data.texts.get(code, "")
    action, severity, said_by = stated or ("contact-support", data.severities["contact-support"], CATALOGUE)
    said = XidPolicy(code=code, action=action, severity=severity, source=said_by, text=text)
    return _overridden(said, overrides.get(code), data)


def verdict(
    event: KernelEvent, *, source: Source = CATALOGUE, overrides: Overrides = NO_OVERRIDES
) -> KernelVerdict | None:
    """What to do about the line; None if it reports no fault."""
    match event.source:
        case "xid" if event.code is not None:
            return _xid_verdict(event, policy(event.code, source=source, overrides=overrides))
        case "sxid" if event.code is not None:
            return _sxid_verdict(event.code, event.fatal)
        case "mlx5":
            return _mlx5_verdict(event.sign)
    return None


def parse_overrides(text: str) -> Overrides:
    """A site's decisions, in TOML: `[xid.63]` with any of `action`, `severity` and `text`."""
    hint = "Write [xid.63] with action, severity or text; docs/collectors.md has the words."
    try:
        site = msgspec.convert(tomllib.loads(text), _SiteFile)
    except msgspec.ValidationError as error:
        raise InputError(f"The XID policy cannot be read: {error}.", hint=hint) from None
    except UNDECODABLE as error:
        raise InputError(f"This is not TOML: {error}.", hint=hint) from None
    unknown = [code for code in site.xid if not _CODE.fullmatch(code)]
    if unknown:
        raise InputError(f"{unknown[0]!r} is not an XID.", hint=hint)
    return {int(code): override for code, override in site.xid.items()}


_CODE = re.compile(r"[0-9]{1,9}")
"""As many digits as the parser of log lines reads."""


class _SiteFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    xid: dict[str, Override]


_Stated = tuple[Action, Severity, Source]


class _Data(msgspec.Struct, frozen=True, kw_only=True):
    """The policy file, by code."""

    policies: dict[Source, dict[int, _Stated]]
    severities: dict[Action, Severity]
    texts: dict[int, str]


class _SourceTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    actions: dict[Action, str] = {}
    severities: dict[Severity, str] = {}


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    sources: dict[Source, _SourceTable]
    severities: dict[Action, Severity]
    texts: dict[str, str]


@functools.cache
def _data() -> _Data:
    text = resources.files("holdfast.detect").joinpath("xids.toml").read_text(encoding="utf-8")
    file = msgspec.convert(tomllib.loads(text), _File)
    return _Data(
        policies={source: _by_code(source, table, file.severities) for source, table in file.sources.items()},
        severities=file.severities,
        texts={int(code): told for code, told in file.texts.items()},
    )


def _by_code(
    source: Source, table: _SourceTable, severities: Mapping[Action, Severity]
) -> dict[int, _Stated]:
    stated: dict[int, _Stated] = {}
    for action, codes in table.actions.items():
        stated.update((code, (action, severities[action], source)) for code in _codes(codes))
    for severity, codes in table.severities.items():
        stated.update((code, ("unlisted", severity, source)) for code in _codes(codes))
    return stated


def _codes(text: str) -> Iterator[int]:
    for part in text.split():
        low, _, high = part.partition("-")
        yield from range(int(low), int(high or low) + 1)


def _overridden(said: XidPolicy, override: Override | None, data: _Data) -> XidPolicy:
    if override is None:
        return said
    changes: dict[str, Any] = {
        name: value for name, value in msgspec.structs.asdict(override).items() if value is not None
    }
    if override.action is not None:
        changes.setdefault("severity", data.severities[override.action])
    return msgspec.structs.replace(said, source=SITE, **changes)


_RECOVERIES: dict[Recovery, tuple[Action, Severity]] = {
    "none": ("ignore", "none"),
    "reset-gpu": ("reset-gpu", "fatal"),
    "reboot": ("reboot", "fatal"),
    "drain-p2p": ("drain", "degraded"),
    "drain-and-reset": ("drain", "fatal"),
}
_MLX5: dict[str, tuple[Action, Severity]] = {
    "health-compromised": ("contact-support", "fatal"),
    "unrecoverable-hardware-error": ("contact-support", "fatal"),
    "module-high-temperature": ("mechanical", "degraded"),
}


def _xid_verdict(event: KernelEvent, said: XidPolicy) -> KernelVerdict:
    action, severity = said.action, said.severity
    # A site's decision stands, whatever the line says.
    if said.source != SITE:
        if event.recovery in _RECOVERIES:
            action, severity = _RECOVERIES[event.recovery]
        elif event.fatal is not None:
            severity = "fatal" if event.fatal else "degraded"
    return KernelVerdict(
        fault=f"xid-{said.code}", action=action, severity=severity, source=said.source, text=said.text
    )


def _sxid_verdict(code: int, fatal: bool | None) -> KernelVerdict:
    return KernelVerdict(
        fault=f"sxid-{code}",
        action="reboot" if fatal else "workflow",
        severity="fatal" if fatal else "degraded",
        source=FABRIC_MANAGER,
        text="NVSwitch error" if fatal is None else f"{'fatal' if fatal else 'non-fatal'} NVSwitch error",
    )


def _mlx5_verdict(sign: str) -> KernelVerdict:
    action, severity = _MLX5[sign]
    text = f"network adapter: {sign.replace('-', ' ')}"
    return KernelVerdict(fault=f"mlx5-{sign}", action=action, severity=severity, source=FIELD, text=text)
