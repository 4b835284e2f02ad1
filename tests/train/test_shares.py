"""Members that have the same state share the writing of its checkpoints."""

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from listening import tell_nobody
from quantity import examples, sampled

from holdfast.record.errors import StoreError
from holdfast.run.wire import PlannedFault
from holdfast.train import checkpoint
from holdfast.train.checkpoint import DirectoryCheckpoints, Snapshot
from holdfast.train.chunks import CHUNK_BYTES, FOLDER, packs_in
from holdfast.train.manifest import stretches
from holdfast.train.manifest_file import ALL, INLINE_BYTES, Share, read_manifest

pytestmark = pytest.mark.slow

HISTORY = "0123456789abcdef"
LANES = 4


def state_of(step: int) -> dict[str, Any]:
    """Tensors of many sizes and layouts, some of them tied."""
    torch.manual_seed(step)
    large = torch.randn(3 * CHUNK_BYTES // 4 + 5)
    columns = torch.randn(700, 900).t()
    return {
        "step": step,
        "model": {"large": large, "tied": large, "small": torch.randn(3), "empty": torch.empty(0, 2)},
        "others": [columns, torch.randn(40_000, dtype=torch.bfloat16), torch.randn(9, 300_000)[::3]],
    }


def assert_same(one: Any, other: Any) -> None:
    if isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    elif isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            assert_same(one[key], other[key])
    elif isinstance(one, list):
        for left, right in zip(one, other, strict=True):
            assert_same(left, right)
    else:
        assert one == other


@settings(max_examples=examples(200))
@given(
    sizes=st.lists(
        st.sampled_from([0, 4, INLINE_BYTES, 2000, CHUNK_BYTES, 5 * CHUNK_BYTES + 12]), max_size=9
    ),
    count=st.integers(1, 9),
)
def test_every_byte_belongs_to_one_share(sizes: list[int], count: int) -> None:
    shares = [stretches(sizes, Share(number, count)) for number in range(count)]
    for size, *of_shares in zip(sizes, *shares, strict=True):
        at = 0
        for begin, end in (one for one in of_shares if one[0] < one[1]):
            assert begin == at
            assert begin % CHUNK_BYTES == 0
            at = end
        assert at == size


def save_shares(directory: Path, step: int, count: int, spares: list[Any]) -> None:
    """Save as this many members do, each with its own copy of its share."""
    state = state_of(step)

    def save(number: int) -> None:
        share = Share(number, count, HISTORY)
        spares[number] = Snapshot(state, spares[number], share)
        DirectoryCheckpoints(directory, told=tell_nobody).save(step, spares[number].state, share)

    with ThreadPoolExecutor(count) as members:
        list(members.map(save, range(count)))


@pytest.mark.parametrize("count", sampled([2, 3, 7], [3]))
def test_shares_make_the_checkpoint_that_one_member_makes(tmp_path: Path, count: int) -> None:
    spares: list[Any] = [None] * count
    for step in (1, 2, 3):
        save_shares(tmp_path / "shared", step, count, spares)
        alone = DirectoryCheckpoints(tmp_path / "alone", told=tell_nobody).save(
            step, Snapshot(state_of(step)).state
        )
        found = DirectoryCheckpoints(tmp_path / "shared", told=tell_nobody).newest()
        assert found is not None
        assert (found.step, found.digest) == (step, alone.digest)
        assert_same(found.state, state_of(step))
        model: Any = found.state["model"]
        assert model["large"].data_ptr() == model["tied"].data_ptr()
    manifest = read_manifest(tmp_path / "shared" / "step-000000000003.checkpoint")
    assert len(writers_of(manifest.packs)) == count
    assert not list((tmp_path / "shared").glob("*.share"))
    needed = {pack for path in (tmp_path / "shared").glob("step-*") for pack, _ in read_manifest(path).packs}
    assert set(packs_in(tmp_path / "shared" / FOLDER)) == needed


def writers_of(packs: Any) -> set[str]:
    return {pack.partition("-")[0] for pack, _ in packs}


def test_a_member_copies_its_share_alone() -> None:
    state = {"large": torch.ones(1 << 25), "small": torch.ones(2)}
    before = resident_bytes()
    kept = [Snapshot(state, share=Share(number, 8)) for number in range(2)]
    assert resident_bytes() - before < state["large"].nbytes / 2
    assert kept[0].state.keys() == state.keys()


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


def test_a_share_that_does_not_come_makes_no_checkpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(checkpoint, "SHARES_S_MIN", 0.2)
    kept = DirectoryCheckpoints(tmp_path, told=tell_nobody)
    kept.save(1, state_of(1))
    kept.save(2, state_of(2), Share(1, 3, HISTORY))
    with pytest.raises(StoreError, match="the member of rank 2 did not write its share"):
        kept.save(2, state_of(2), Share(0, 3, HISTORY))
    kept.save(2, state_of(2), Share(2, 3, "aaaa"))  # of another attempt at this step
    with pytest.raises(StoreError, match="the member of rank 2 did not write its share"):
        kept.save(2, state_of(2), Share(0, 3, HISTORY))
    found = kept.newest()
    assert found is not None
    assert found.step == 1
    kept.save(2, state_of(2), Share(2, 3, HISTORY))
    kept.save(2, state_of(2), Share(0, 3, HISTORY))
    assert kept.steps() == [1, 2]
    kept.save(3, state_of(3), ALL)
    assert not list(tmp_path.glob("*.share"))


def test_shares_of_different_states_make_no_checkpoint(tmp_path: Path) -> None:
    kept = DirectoryCheckpoints(tmp_path, told=tell_nobody)
    kept.save(2, {**state_of(2), "more": 1}, Share(1, 2, HISTORY))
    with pytest.raises(StoreError, match="the share of rank 1 is of another state"):
        kept.save(2, state_of(2), Share(0, 2, HISTORY))
    assert kept.steps() == []


def test_a_run_shares_the_writing_and_goes_on_with_any_number(cluster: Any) -> None:
    undisturbed = cluster.undisturbed("heavy", steps=6, lanes=LANES)
    first = cluster.train("heavy", members=3, steps=4, lanes=LANES, checkpoint_every=2, pace_s=0.3)
    assert first.ending.outcome == "completed", first.story
    folder = first.folder / "checkpoints"
    shared = [path for path in folder.glob("step-*") if len(writers_of(read_manifest(path).packs)) == 3]
    assert shared, first.story  # one member alone may write the last one
    for members, steps in ((1, 5), (2, 6)):
        run = cluster.train(
            "heavy", members=members, steps=steps, lanes=LANES, checkpoint_every=2, going_on_with=first
        )
        assert run.ending.outcome == "completed", run.story
        assert run.losses.items() <= undisturbed.losses.items()
    assert run.digest == undisturbed.digest


def test_a_member_that_dies_before_it_has_written_costs_a_checkpoint_and_no_more(cluster: Any) -> None:
    undisturbed = cluster.undisturbed("heavy", steps=6, lanes=LANES)
    kill = PlannedFault(id=1, step=4, moment="commit", rank=1, fault="kill")
    run = cluster.train(
        "heavy", members=2, steps=6, lanes=LANES, checkpoint_every=2, pace_s=0.3, faults=[kill]
    )
    assert run.ending.outcome == "completed", run.story
    assert run.digest == undisturbed.digest
    assert "the member of rank 1 did not write its share" in run.story
    again = cluster.train("heavy", members=2, steps=6, lanes=LANES, checkpoint_every=2, going_on_with=run)
    assert again.losses == {}, again.story
    assert again.digest == undisturbed.digest
