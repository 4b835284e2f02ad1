"""Where every GPU-second of a run went: the accounts, their ratios and reference figures.

These are the public names of the room. Each is imported when it is first asked for.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from holdfast.ledger.categories import Category
    from holdfast.ledger.ledger import Ledger
    from holdfast.ledger.report import Report
    from holdfast.ledger.runs import fold_run, read_run

__all__ = ["Category", "Ledger", "Report", "fold_run", "read_run"]

_HOMES = {
    "categories": {"Category"},
    "ledger": {"Ledger"},
    "report": {"Report"},
    "runs": {"fold_run", "read_run"},
}

if not TYPE_CHECKING:

    def __getattr__(name: str) -> object:
        home = next((home for home, names in _HOMES.items() if name in names), None)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return getattr(import_module(f"holdfast.ledger.{home}"), name)
