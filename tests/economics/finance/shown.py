"""The three amounts of money as a reader finds them: in the printed table, and in the boxes of the page."""

import html
import re

from holdfast import wording
from holdfast.economics.finance.invoice import LABELS, UNKNOWN, USEFUL
from holdfast.economics.finance.statement import Finance

_BOX = re.compile(r"<dt>([^<]+)</dt><dd>([^<]+)</dd>")
_ROW = re.compile(
    rf"^({'|'.join(map(re.escape, LABELS.values()))}|Accrued|Sum)  +(< )?([0-9,.]+) ", re.MULTILINE
)


def printed_usd(printed: str) -> dict[str, float]:
    """The amounts in the table *where it went*, by their labels. What is less than a cent counts as 0."""
    table = printed.partition("where it went")[2].partition("\n\n")[0]
    return {label: 0.0 if less else float(usd.replace(",", "")) for label, less, usd in _ROW.findall(table)}


def boxed(page: str) -> dict[str, str]:
    """The numbers at the top of the page, by their labels."""
    return {label: html.unescape(number) for label, number in _BOX.findall(page)}


def assert_three(told: Finance, printed: str, page: str) -> None:
    """The table and the page have the three amounts, each under its label and nothing but these."""
    rows = printed_usd(printed)
    unit = 0.01 if told.spend.usd < wording.USD_WITH_CENTS_MAX else 1.0
    labels = {LABELS[USEFUL]: told.useful, LABELS[UNKNOWN]: told.unknown, "Accrued": told.accrued}
    lost = [usd for label, usd in rows.items() if label not in (*labels, "Sum")]
    for label, amount in labels.items():
        assert (label in rows) == (amount.gpu_ns > 0 or label == LABELS[USEFUL])
        assert abs(rows.get(label, 0.0) - amount.usd) <= unit
    assert len(lost) == sum(cause.gpu_ns > 0 for cause in told.causes)
    assert abs(sum(lost) - told.waste.usd) <= unit * (1 + len(lost))
    assert abs(rows["Sum"] - told.spend.usd) <= unit
    boxes = boxed(page)
    assert boxes["Lost"] == wording.usd(told.waste.usd)
    assert boxes["Not known"] == wording.usd(told.unknown.usd)
    is_told = told.useful_share is not None
    assert boxes["Useful"] == (wording.usd(told.useful.usd) if is_told else "Not known")
    assert boxes["Spent"] == wording.usd(told.spend.usd)
