"""The page of a story: every mark is in its list, and as many as there is room for in its picture."""

from holdfast.dashboard.story_page import LEVELS, StoryMark, render

SECOND = 10**9
EVIL = "<script>alert(1)</script>"


def marks(*at_s: float) -> list[StoryMark]:
    return [
        StoryMark(at_ns=round(at * SECOND), what=f"mark at {at:g}", kind="done", detail="why") for at in at_s
    ]


def test_marks_are_listed_in_order_and_drawn_by_number() -> None:
    page = render("A title", "What it is about.", [at * SECOND for at in range(100)], marks(50, 10, 90))
    places = [page.index(f"<td>mark at {at}<") for at in (10, 50, 90)]
    assert places == sorted(places)
    assert page.count('<circle class="k-done" cx="') == 3 + 1  # and that of the key
    assert "Steps per second, at most" in page
    assert "100 steps" in page


def test_where_they_crowd_the_list_still_has_all() -> None:
    page = render("A title", "", [at * SECOND for at in range(100)], marks(*([50.0] * (LEVELS + 3))))
    assert page.count("mark at 50<span") == LEVELS + 3
    assert page.count('<line class="stem"') == LEVELS


def test_names_are_text_and_nothing_is_a_story_too() -> None:
    page = render(EVIL, EVIL, [], [StoryMark(at_ns=1, what=EVIL, kind="fault", detail=EVIL)])
    assert EVIL not in page
    assert "0 steps" in render("Empty", "", [], [])
