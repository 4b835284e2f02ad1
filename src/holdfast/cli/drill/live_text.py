"""The verdict of a live drill in the terminal."""

from rich.console import Console

from holdfast.cli.tables import figure, table, word
from holdfast.drills.live.judging import LiveVerdict
from holdfast.drills.live.scenarios import LIVE_SCENARIOS, title_of


def show(verdict: LiveVerdict) -> None:
    console = Console(highlight=False, markup=False)
    right, judged = verdict.score
    console.print(
        f"{title_of(verdict.scenario, verdict.target)} in {verdict.run}: {right} of {judged} right",
        style="bold",
    )
    console.print(f"{verdict.hypothesis}\n")
    rows = ((f"{one.at_s:.1f} s", one.what) for one in verdict.timeline)
    console.print(table(figure(), "", rows=rows), "")
    console.print(table(word(), word(style="bold"), "", rows=verdict.questions))


def show_live_list() -> None:
    console = Console(highlight=False, markup=False)
    rows = ((one.name, one.title, one.radius) for one in LIVE_SCENARIOS.values())
    console.print(table(word(style="bold"), "", "", rows=rows))
