"""Which GPU a member sees if each should see only its own."""

from pathlib import Path

import pytest

from holdfast.run.visible import device_seen, narrow, too_few, virtual


def test_a_member_sees_the_gpu_of_its_seat() -> None:
    assert virtual({}, 3)["CUDA_VISIBLE_DEVICES"] == "3"
    assert virtual({"CUDA_VISIBLE_DEVICES": "7, GPU-5"}, 1)["CUDA_VISIBLE_DEVICES"] == "GPU-5"
    assert virtual({}, 3)["LOCAL_RANK"] == "0"


def test_a_warm_process_sees_all_until_it_has_a_seat() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "4,5,6,7", "HOLDFAST_LOCAL_NODE": "1/2"}
    environment |= virtual(environment, None)
    assert environment["CUDA_VISIBLE_DEVICES"] == "4,5,6,7"
    for _ in range(2):  # the second time it has one already
        narrow(environment, 1, 2)
        assert (environment["CUDA_VISIBLE_DEVICES"], environment["LOCAL_RANK"]) == ("7", "0")


def test_no_other_process_is_narrowed() -> None:
    environment = {"CUDA_VISIBLE_DEVICES": "4,5"}
    narrow(environment, 1, 2)
    assert environment == {"CUDA_VISIBLE_DEVICES": "4,5"}


def test_too_few_gpus_are_known_only_where_they_are_listed() -> None:
    assert too_few({"CUDA_VISIBLE_DEVICES": "0,1"}, 3)
    assert not too_few({"CUDA_VISIBLE_DEVICES": "0,1"}, 2)
    assert not too_few({}, 3)


@pytest.mark.parametrize(
    ("file", "variable", "device"),
    [
        ("nvidia0", None, "gpu"),
        ("kfd", None, "gpu"),
        ("null", None, "cpu"),
        ("null", "0", "cpu"),
        ("nvidia0", "0", "gpu"),
        ("nvidia0", "", "cpu"),
        ("nvidia0", "-1", "cpu"),
    ],
)
def test_a_machine_without_a_gpu_that_members_may_use_is_told(
    tmp_path: Path, file: str, variable: str | None, device: str
) -> None:
    (tmp_path / file).touch()
    environment = {} if variable is None else {"CUDA_VISIBLE_DEVICES": variable}
    assert device_seen(environment, tmp_path) == device
