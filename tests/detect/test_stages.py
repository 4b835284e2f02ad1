"""Which regular part of a run some members are: how ranks are dealt to the stages of a pipeline."""

import pytest

from holdfast.detect.stages import StagePart, part_of

MEMBERS = [f"run/n{number}" for number in range(24)]


def part(numbers: list[int]) -> StagePart | None:
    return part_of({MEMBERS[number] for number in numbers}, MEMBERS)


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        (list(range(18, 24)), StagePart(6, 24, False)),
        (list(range(8, 12)), StagePart(4, 24, False)),
        (list(range(12)), StagePart(12, 24, False)),
        ([3, 7, 11, 15, 19, 23], StagePart(1, 4, True)),
        ([1, 13], StagePart(1, 12, True)),
        ([6, 7, 14, 15, 22, 23], StagePart(2, 8, True)),
        ([0, 1, 2, 6, 7, 8, 12, 13, 14, 18, 19, 20], StagePart(3, 6, True)),
    ],
)
def test_stages_are_regular_parts(numbers: list[int], expected: StagePart) -> None:
    assert part(numbers) == expected


@pytest.mark.parametrize(
    "numbers",
    [
        [],
        [5],
        list(range(24)),
        [2, 3, 4, 5],  # four neighbours, but no quarter begins at the second
        list(range(5)),  # 24 has no parts of five
        [1, 3, 5],  # regular, but not over all members
        [3, 7, 11, 15, 19],  # the last one is on time
        [0, 5, 9, 20],
        [0, 1, 5, 6, 7],
    ],
)
def test_what_is_not_regular_is_no_stage(numbers: list[int]) -> None:
    assert part(numbers) is None


def test_of_many_members_a_few_may_be_missed() -> None:
    members = [f"run/n{number}" for number in range(256)]
    late = set(members[3::4]) - {members[7], members[99]}
    assert part_of(late, members) == StagePart(1, 4, True)
    assert part_of(late - set(members[120:]), members) is None
