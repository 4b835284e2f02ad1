"""The policy for XIDs: what the sources say, where they disagree, and what a site makes of it."""

from contextlib import suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quantity import examples

from holdfast.detect.xids import (
    CATALOGUE,
    Action,
    Override,
    Severity,
    Source,
    XidPolicy,
    parse_overrides,
    policy,
    verdict,
)
from holdfast.record.errors import HoldfastError, InputError
from holdfast.signals.collectors.kernel_log import KernelEvent, Recovery, parse_line

COUNTS = {
    "restart-app": 48,
    "reset-gpu": 14,
    "reboot": 1,
    "restart-vm": 1,
    "mechanical": 1,
    "update": 1,
    "workflow": 12,
    "ignore": 21,
    "unlisted": 11,
}
"""Of NVIDIA's catalogue of 2025-10-29, counted by hand; the rest go to support."""


def test_the_catalogue_is_whole() -> None:
    actions = [policy(code).action for code in range(1, 173)]
    assert {action: actions.count(action) for action in set(actions) - {"contact-support"}} == COUNTS


@pytest.mark.parametrize(
    ("code", "action", "severity"),
    [
        (8, "restart-app", "fatal"),
        (40, "restart-app", "fatal"),
        (94, "restart-app", "fatal"),
        (119, "reset-gpu", "fatal"),
        (79, "reboot", "fatal"),
        (151, "restart-vm", "fatal"),
        (54, "mechanical", "degraded"),
        (78, "update", "degraded"),
        (74, "workflow", "degraded"),
        (63, "ignore", "none"),
        (165, "unlisted", "degraded"),
        (1, "contact-support", "degraded"),
        (61, "contact-support", "degraded"),
        (99_999, "contact-support", "degraded"),
    ],
)
def test_the_catalogue_counts_unless_asked_otherwise(code: int, action: Action, severity: Severity) -> None:
    found = policy(code)
    assert (found.code, found.action, found.severity, found.source) == (code, action, severity, CATALOGUE)


@pytest.mark.parametrize(
    ("code", "source", "action", "severity"),
    [
        (63, "gpud", "unlisted", "fatal"),
        (63, "aznhc", "drain", "fatal"),
        (38, "gpud", "unlisted", "fatal"),
        (44, "gpud", "unlisted", "fatal"),
        (121, "gpud", "unlisted", "fatal"),
        (69, "gpud", "unlisted", "fatal"),
        (69, "aznhc", "drain", "fatal"),
        (109, "gpud", "unlisted", "degraded"),
        (136, "gpud", "unlisted", "degraded"),
        (92, "aznhc", "drain", "fatal"),
    ],
)
def test_sources_disagree(code: int, source: Source, action: Action, severity: Severity) -> None:
    found = policy(code, source=source)
    assert (found.action, found.severity, found.source) == (action, severity, source)
    assert (found.action, found.severity) != (policy(code).action, policy(code).severity)


@pytest.mark.parametrize("source", ["gpud", "aznhc"])
def test_where_a_source_is_silent_the_catalogue_is_named(source: Source) -> None:
    assert policy(79, source=source) == policy(79)


def test_a_site_has_the_last_word() -> None:
    overrides = parse_overrides(
        '[xid.63]\naction = "drain"\ntext = "we do not wait"\n[xid.31]\nseverity = "none"'
    )
    assert policy(63, overrides=overrides) == XidPolicy(
        code=63, action="drain", severity="fatal", source="site", text="we do not wait"
    )
    found = policy(31, overrides=overrides)
    assert (found.action, found.severity, found.source) == ("restart-app", "none", "site")
    assert policy(79, overrides=overrides) == policy(79)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (f"[xid.{'9' * 5000}]", "is not an XID"),
        (f"a = {'[' * 5000}", "This is not TOML"),
        ("[xid.63]\naction = 'dance'", "Invalid enum value 'dance'"),
        ("[xid.63]\nactoin = 'drain'", "unknown field `actoin`"),
        ("[xid.sixty]\naction = 'drain'", "'sixty' is not an XID"),
        ("[xid.-1]\naction = 'drain'", "'-1' is not an XID"),
        ("xid = 3", "Expected `object`"),
        ("[xid.63", "not TOML"),
        ("", "missing required field `xid`"),
    ],
)
def test_a_mistake_in_a_sites_file_is_told(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=complaint):
        parse_overrides(text)


@settings(max_examples=examples(100))
@given(st.text(max_size=80))
def test_no_file_raises_anything_else(text: str) -> None:
    with suppress(HoldfastError):
        parse_overrides(text)


@pytest.mark.parametrize(
    ("line", "fault", "action", "severity"),
    [
        ("NVRM: Xid (PCI:0000:9b:00): 79, GPU has fallen off the bus.", "xid-79", "reboot", "fatal"),
        ("NVRM: Xid (PCI:0000:9b:00): 63, Row Remapper", "xid-63", "ignore", "none"),
        ("NVRM: Xid (PCI:0000:9b:00): 145, RLW Nonfatal XC0 i0 Link 13", "xid-145", "workflow", "degraded"),
        ("NVRM: Xid (PCI:0000:9b:00): 149, NETIR Fatal XC0 i0 Link 1", "xid-149", "workflow", "fatal"),
        ("nvidia-nvswitch0: SXid (PCI:0000:cd:00.0): 20034, Fatal, Link 30", "sxid-20034", "reboot", "fatal"),
        ("nvidia-nvswitch0: SXid (PCI:0000:cd:00.0): 1, Non-fatal, Link 3", "sxid-1", "workflow", "degraded"),
        (
            "mlx5_core 0000:41:00.0: device's health compromised - reached miss count",
            "mlx5-health-compromised",
            "contact-support",
            "fatal",
        ),
        (
            "mlx5_core 0000:5c:00.0: Port module event[error]: module 0, Cable error, High Temperature",
            "mlx5-module-high-temperature",
            "mechanical",
            "degraded",
        ),
    ],
)
def test_a_line_is_judged_by_what_it_says(line: str, fault: str, action: Action, severity: Severity) -> None:
    judged = verdict(parse_line(f"[  1.5] {line}"))
    assert judged is not None
    assert (judged.fault, judged.action, judged.severity) == (fault, action, severity)
    assert judged.source


@pytest.mark.parametrize(
    ("recovery", "action", "severity"),
    [
        ("none", "ignore", "none"),
        ("reset-gpu", "reset-gpu", "fatal"),
        ("reboot", "reboot", "fatal"),
        ("drain-p2p", "drain", "degraded"),
        ("drain-and-reset", "drain", "fatal"),
        ("unknown", "workflow", "degraded"),
    ],
)
def test_what_the_driver_wants_counts(recovery: Recovery, action: Action, severity: Severity) -> None:
    event = KernelEvent(source="xid", code=154, message="", recovery=recovery)
    judged = verdict(event)
    assert judged is not None
    assert (judged.action, judged.severity) == (action, severity)
    ours = verdict(event, overrides={154: Override(action="contact-support")})
    assert ours is not None
    assert (ours.action, ours.severity, ours.source) == ("contact-support", "degraded", "site")


def test_a_line_without_a_fault_has_no_verdict() -> None:
    assert verdict(parse_line("[  1.5] NVRM: loading NVIDIA UNIX Open Kernel Module")) is None
