"""What ranks do in the tests of a transport. Each function runs in every rank's process at once."""

import gc
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch
import torch.distributed as dist
from forked_ranks import Rank

from holdfast.train.group import Group, GroupBroken, Superseded, Work

KINDS = (torch.float32, torch.bfloat16, torch.int64, torch.uint8)
SIZES = (0, 1, 3, 17, 1024, (1 << 16) + 1)
"""In elements; of uint8, the second is a single byte."""
LARGE_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
KEPT_BYTES = 1 << 22
"""Large enough that it is unmapped when it is freed."""
SUPERSEDE_S = 0.4
PROMPT_S = 0.5
"""How long a call that does not wait for others may take on a busy machine."""
GENERATIONS = 50
WARM_UP = 5
"""Generations after which everything that is opened only once is open."""
SETTLE_S_MAX = 8.0
"""Background frees are done by then."""

Letter = tuple[int, int, int, int]
"""Sender, receiver, tag and number."""


def content(dtype: torch.dtype, elements: int, letter: Letter) -> torch.Tensor:
    """Whole numbers below 251, which all of these types hold, different in every letter."""
    begin = letter[0] * 31 + letter[1] * 17 + letter[2] * 5 + letter[3] * 3
    return ((torch.arange(elements) * 7 + begin) % 251).to(dtype)


def empty(dtype: torch.dtype, elements: int, offset: int, device: torch.device) -> torch.Tensor:
    """Memory that begins `offset` elements after the beginning of an allocation."""
    return torch.zeros(elements + offset, dtype=dtype, device=device)[offset:]


def finish(group: Group, *works: Work) -> None:
    """Wait until all exchanged tensors are in memory, or raise."""
    for work in works:
        work.wait()
    group.settle()


def talk(rank: Rank, group: Group, *, tag: int = 2, elements: int = 5000) -> None:
    """Every rank sends something to every other, and it arrives."""
    peers = [peer for peer in range(group.size) if peer != group.rank]
    sends = [content(torch.float32, elements, (group.rank, peer, tag, 0)).to(rank.device) for peer in peers]
    arrived = [empty(torch.float32, elements, 0, rank.device) for _ in peers]
    work = group.exchange(list(zip(sends, peers, strict=True)), list(zip(arrived, peers, strict=True)), tag)
    finish(group, work)
    for peer, tensor in zip(peers, arrived, strict=True):
        expected = content(torch.float32, elements, (peer, group.rank, tag, 0))
        assert torch.equal(tensor.cpu(), expected), f"from {peer}: {tensor[:8]} for {expected[:8]}"


def meet_and_talk(rank: Rank, name: str, members: Sequence[int] | None = None) -> None:
    """A group is made, works, and is closed when it is no longer needed."""
    group = rank.form(name, members)
    talk(rank, group)
    rank.meet(f"{name}/talked", members)
    group.close()


def waits_until_broken(group: Group, device: torch.device, peers: Iterable[int]) -> float:
    """Wait for data that are never sent. Returns when that ended; it must end with `GroupBroken`."""
    try:
        finish(group, group.exchange([], [(torch.zeros(8, device=device), peer) for peer in peers], 9))
    except GroupBroken:
        return time.monotonic()
    raise AssertionError("data that were never sent have arrived")


def refuses(group: Group, device: torch.device) -> None:
    """After an abort nothing can be exchanged any more."""
    try:
        finish(group, group.exchange([], [(torch.zeros(8, device=device), 1 - min(group.rank, 1))], 11))
    except GroupBroken:
        return
    raise AssertionError("a broken group exchanges")


def abort_when(rank: Rank, key: str, *groups: Group) -> threading.Thread:
    """Abort from another thread, as when the coordinator opens a generation."""

    def wait_and_abort() -> None:
        rank.board.hear(key)
        for group in groups:
            group.abort()

    thread = threading.Thread(target=wait_and_abort, daemon=True)
    thread.start()
    return thread


def later(seconds: float, what: Callable[[], None]) -> threading.Timer:
    timer = threading.Timer(seconds, what)
    timer.daemon = True
    timer.start()
    return timer


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# ---- arrivals ----------------------------------------------------------------------------------------------


def everything_arrives(rank: Rank) -> None:
    """In both directions at once, between all, in order, for every type, size and alignment."""
    group = rank.form("g")
    assert (group.rank, group.size) == (rank.index, rank.size)
    peers = [peer for peer in range(rank.size) if peer != rank.index]
    expected: list[tuple[torch.Tensor, torch.Tensor]] = []
    works: list[Work] = []
    for tag, (dtype, offset) in enumerate((dtype, offset) for dtype in KINDS for offset in (0, 1, 3)):
        sends, receives = [], []
        for peer in peers:
            for number, elements in enumerate((*SIZES, 17, 17)):  # the last ones differ only by their order
                sent = empty(dtype, elements, offset, rank.device)
                sent.copy_(content(dtype, elements, (rank.index, peer, tag, number)))
                sends.append((sent, peer))
                arrived = empty(dtype, elements, offset, rank.device)
                receives.append((arrived, peer))
                expected.append((arrived, content(dtype, elements, (peer, rank.index, tag, number))))
        works.append(group.exchange(sends, receives, tag))
    finish(group, *works)
    for number, (arrived, wanted) in enumerate(expected):
        assert torch.equal(arrived.cpu(), wanted), f"{number}: {wanted.dtype} of {wanted.numel()}"
    rank.meet("arrived")
    group.close()


def a_chain_of_sums(rank: Rank) -> list[float]:
    """Received data are added to and passed on, without the host having seen them: as a reduction does."""
    group = rank.form("g")
    total = torch.full((1 << 20,), 1.0 + rank.index, device=rank.device)
    peer = 1 - rank.index
    for tag in range(20):
        arrived = torch.zeros_like(total)
        group.exchange([(total, peer)], [(arrived, peer)], tag).wait()
        with group.along():
            total = (total + arrived) / 2 + tag
    group.settle()
    found = [float(total.min()), float(total.max())]
    rank.meet("summed")
    group.close()
    return found


def what_is_under_way_is_kept(rank: Rank) -> None:
    """Otherwise freed memory would be sent, or written to."""
    group = rank.form("g")
    rounds = 3
    if rank.index == 0:
        works = [
            group.exchange([(torch.full((KEPT_BYTES,), n, dtype=torch.uint8, device=rank.device), 1)], [], n)
            for n in range(1, rounds + 1)
        ]
        gc.collect()
        others = fill_memory(rank.device)
        rank.board.publish("sent")
        finish(group, *works)
        assert all(bool((tensor == 250).all()) for tensor in others)
    else:
        rank.board.hear("sent")
        arrived = [torch.zeros(KEPT_BYTES, dtype=torch.uint8, device=rank.device) for _ in range(rounds)]
        finish(group, *(group.exchange([], [(tensor, 0)], n) for n, tensor in enumerate(arrived, start=1)))
        assert all(bool((tensor == n).all()) for n, tensor in enumerate(arrived, start=1))
    receive_into_nothing(rank, group)
    rank.meet("kept")
    group.close()


def receive_into_nothing(rank: Rank, group: Group) -> None:
    """The receiving memory has no other reference; memory that is allocated meanwhile must stay unchanged."""
    if rank.index == 1:
        work = group.exchange([], [(torch.zeros(KEPT_BYTES, dtype=torch.uint8, device=rank.device), 0)], 20)
        gc.collect()
        others = fill_memory(rank.device)
        rank.board.publish("dropped")
        finish(group, work)
        assert all(bool((tensor == 250).all()) for tensor in others)
    else:
        rank.board.hear("dropped")
        sent = torch.ones(KEPT_BYTES, dtype=torch.uint8, device=rank.device)
        finish(group, group.exchange([(sent, 1)], [], 20))


def fill_memory(device: torch.device) -> list[torch.Tensor]:
    return [torch.full((KEPT_BYTES,), 250, dtype=torch.uint8, device=device) for _ in range(8)]


def waiting_holds_up(rank: Rank) -> tuple[bool, float]:
    """Whether the group says that a wait only orders the device, and how long a wait took the host."""
    group = rank.form("g")
    peer = 1 - rank.index
    arrived = torch.zeros(1000, device=rank.device)
    if rank.index == 0:
        work = group.exchange([], [(arrived, peer)], 1)
        begun = time.monotonic()
        rank.board.publish("waiting")
        work.wait()
        took_s = time.monotonic() - begun
        group.settle()
        assert bool((arrived == 3).all())
    else:
        rank.board.hear("waiting")
        time.sleep(2 * PROMPT_S)
        finish(group, group.exchange([(torch.full((1000,), 3.0, device=rank.device), peer)], [], 1))
        took_s = 0.0
    rank.meet("waited")
    group.close()
    return group.is_ordered, took_s


def confirm_needs_all(rank: Rank) -> bool:
    """All confirm; then one leaves instead. Returns whether the other noticed."""
    group = rank.form("g")
    talk(rank, group)
    group.confirm()
    rank.meet("confirmed")
    has_noticed = False
    if rank.index == 1:
        time.sleep(PROMPT_S)
    else:
        try:
            group.confirm()
        except GroupBroken:
            has_noticed = True
    group.close()
    return has_noticed


# ---- aborts ------------------------------------------------------------------------------------------------


def abort_wakes(rank: Rank) -> float:
    """One aborts; both wait for data that are never sent. Returns how long after the abort this one was
    awake.
    """
    group = rank.form("g")
    rank.meet("formed")

    def abort() -> None:
        rank.board.publish("aborted", repr(time.monotonic()).encode())
        begun = time.monotonic()
        group.abort()
        assert time.monotonic() - begun < SETTLE_S_MAX, "abort() waited"

    if rank.index == 0:
        later(0.5, abort)
    woken = waits_until_broken(group, rank.device, [1 - rank.index])
    aborted = float(rank.board.hear("aborted"))
    group.abort()
    refuses(group, rank.device)
    group.abort()
    group.close()
    group.abort()  # allowed also after it is closed
    return woken - aborted


def aborts_of_all_sorts(rank: Rank) -> None:
    """In an exchange with several peers, between two, twice, from two threads; the next group works."""
    peers = [peer for peer in range(rank.size) if peer != rank.index]
    for number, aborters in enumerate((1, 2, 4)):
        group = rank.form(f"in/{number}")
        talk(rank, group)
        rank.meet(f"in/{number}/ready")
        with ThreadPoolExecutor(aborters) as pool:
            aborting = [pool.submit(abort_after, group, 0.2) for _ in range(aborters)]
            if rank.index == 1:  # some of the awaited data do come
                group.exchange([(torch.ones(8, device=rank.device), peer) for peer in peers], [], 9)
            waits_until_broken(group, rank.device, [peer for peer in peers if peer != 1 or rank.index == 0])
            for done in aborting:
                done.result()
        group.close()
    group = rank.form("between")
    talk(rank, group)
    rank.meet("between/talked")
    group.abort()
    group.abort()
    refuses(group, rank.device)
    group.close()
    meet_and_talk(rank, "at last")


def abort_after(group: Group, seconds: float) -> None:
    time.sleep(seconds)
    group.abort()


def aborts_race_with_exchanges(rank: Rank, trials: int) -> int:
    """The abort comes during, before or after the call of an exchange. Returns how often it was noticed."""
    noticed = 0
    with ThreadPoolExecutor(1) as other:
        for trial in range(trials):
            group = rank.form(f"race/{trial}")
            rank.meet(f"race/{trial}/formed")
            later(0.0007 * trial, group.abort)
            use = other.submit(talk_until_broken, rank, group) if trial % 2 else None
            noticed += use.result() if use else talk_until_broken(rank, group)
            group.close()
        meet_and_talk(rank, "here")
        other.submit(meet_and_talk, rank, "there").result()
    return noticed


def talk_until_broken(rank: Rank, group: Group) -> int:
    try:
        for tag in range(100_000):
            talk(rank, group, tag=tag % 1000)
    except GroupBroken:
        return 1
    return 0


def threads_of_backward(rank: Rank) -> None:
    """Exchanges of a thread that did not make the group, before and after one broke during its exchange."""
    with ThreadPoolExecutor(1) as backward:
        group = rank.form("first")
        backward.submit(talk, rank, group).result()
        talk(rank, group, tag=4)
        rank.meet("talked")
        later(0.2, group.abort)
        backward.submit(waits_until_broken, group, rank.device, [1 - rank.index]).result()
        backward.submit(refuses, group, rank.device).result()
        refuses(group, rank.device)
        group.close()
        for number in range(2):
            group = rank.form(f"next/{number}")
            backward.submit(talk, rank, group).result()
            talk(rank, group, tag=4)
            backward.submit(talk, rank, group, tag=6).result()
            rank.meet(f"next/{number}/talked")
            group.close()


# ---- deaths ------------------------------------------------------------------------------------------------


def no_peer_comes(rank: Rank) -> float:
    """A peer never comes. Returns how long after it was superseded the attempt ended; the next
    group works.
    """
    took_s = 0.0
    for trial in range(3):
        if rank.index == 0:
            took_s = max(took_s, superseded_after(rank, f"alone/{trial}", SUPERSEDE_S))
        meet_and_talk(rank, f"both/{trial}")
    return took_s


def superseded_after(rank: Rank, name: str, seconds: float) -> float:
    due = time.monotonic() + seconds
    try:
        rank.form(name, superseded=lambda: time.monotonic() > due)
    except Superseded:
        return time.monotonic() - due
    raise AssertionError("a group was formed without its peer")


def dies_being_made(rank: Rank, delays_s: Sequence[float]) -> float:
    """Rank 2 + n dies while generation n is being made. Returns the longest time survivors took to give it
    up.
    """
    took_s = 0.0
    for number, delay_s in enumerate(delays_s):
        victim = 2 + number
        if rank.index == victim:
            rank.on_look = partial(later, delay_s, die)
            rank.form(f"doomed/{number}", [0, 1, victim])
            time.sleep(10)  # the group was made before it died: it dies as a member
        if rank.index < 2:
            took_s = max(took_s, survive_making(rank, f"doomed/{number}", victim))
            meet_and_talk(rank, f"survivors/{number}", [0, 1])
    return took_s


def survive_making(rank: Rank, name: str, victim: int) -> float:
    """The death is known a moment after it happened, as from a coordinator."""
    died = threading.Event()

    def watch() -> None:
        rank.board.hear(f"dead/{victim}")
        died.set()

    threading.Thread(target=watch, daemon=True).start()
    try:
        group = rank.form(name, [0, 1, victim], died.is_set)
    except (Superseded, GroupBroken):
        assert died.wait(10)
        return 0.0
    died.wait(10)
    begun = time.monotonic()
    group.abort()
    group.close()
    return time.monotonic() - begun


def dies_in_exchange(rank: Rank, is_idle: bool) -> tuple[float, int]:
    """Rank 2 dies in the middle of a large exchange, or while idle. Returns how long the survivors took to
    leave once they knew, and how many exchanges were complete before.
    """
    group = rank.form("g")
    elements = LARGE_BYTES[rank.device.type] // 4
    talk(rank, group)
    rank.meet("formed")
    if rank.index == 2:
        rank.board.publish("begun")  # the test kills it from here on
        exchange_large(rank, group, elements) if not is_idle else time.sleep(60)
        raise AssertionError("this rank was not killed")
    aborting = abort_when(rank, "abort", group)
    whole = exchange_large(rank, group, elements, wait_for="dead/2" if is_idle else "")
    awake = time.monotonic()
    aborting.join(10)
    refuses(group, rank.device)
    group.close()
    meet_and_talk(rank, "survivors", [0, 1])
    known = float(rank.board.hear("abort"))
    return awake - known, whole


def exchange_large(rank: Rank, group: Group, elements: int, wait_for: str = "") -> int:
    """Exchange until the group breaks. Whatever settles before must be complete, and nothing
    else may count.
    """
    if wait_for:
        rank.board.hear(wait_for)
    peers = [peer for peer in range(group.size) if peer != group.rank]
    arrived = [torch.zeros(elements, device=rank.device) for _ in peers]
    for number in range(1, 1000):
        sent = torch.full((elements,), float(number * 10 + group.rank), device=rank.device)
        for tensor in arrived:
            tensor.zero_()
        try:
            pairs = list(zip(arrived, peers, strict=True))
            finish(group, group.exchange([(sent, peer) for peer in peers], pairs, 5))
        except GroupBroken:
            return number - 1
        for tensor, peer in pairs:
            assert bool((tensor == number * 10 + peer).all()), f"garbage from {peer} was taken for a result"
    raise AssertionError("no rank died")


# ---- many generations, and the script's own group ----------------------------------------------------------


def fifty_generations(rank: Rank) -> tuple[dict[str, int], dict[str, int]]:
    """What this process holds after a warm-up, and after fifty generations."""
    for number in range(WARM_UP):
        one_generation(rank, number)
    before = settled_holdings(rank, None)
    for number in range(WARM_UP, GENERATIONS):
        one_generation(rank, number)
    return before, settled_holdings(rank, before)


def one_generation(rank: Rank, number: int) -> None:
    """Every tenth is abandoned while it is made, every other one broken in an exchange, the rest closed."""
    if number % 10 == 3:
        if rank.index == number // 10 % 2:
            superseded_after(rank, f"abandoned/{number}", 0.03)
        return
    group = rank.form(f"generation/{number}")
    talk(rank, group, elements=100_000)
    if number % 2:
        rank.meet(f"generation/{number}/talked")
        later(0.02, group.abort)
        waits_until_broken(group, rank.device, [1 - rank.index])
    rank.meet(f"generation/{number}/done")
    group.close()


def settled_holdings(rank: Rank, wanted: dict[str, int] | None) -> dict[str, int]:
    """What is held after background frees: when it is as wanted, or no longer shrinks."""
    due = time.monotonic() + SETTLE_S_MAX
    while True:
        time.sleep(1.0)
        gc.collect()
        found = holdings(rank)
        is_as_wanted = wanted is not None and all(found[name] <= wanted[name] for name in found)
        if is_as_wanted or time.monotonic() > due or wanted is None:
            return found


def descriptors() -> Iterator[str]:
    """The target of each descriptor of this process."""
    for path in Path("/proc/self/fd").iterdir():
        with suppress(OSError):  # the descriptor of this listing is gone
            yield str(path.readlink())


def holdings(rank: Rank) -> dict[str, int]:
    links = list(descriptors())
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    found = {
        "threads": len(list(Path("/proc/self/task").iterdir())),
        "descriptors": len(links),
        "sockets": sum(link.startswith("socket:") for link in links),
        "resident_mb": int(status["VmRSS"].split()[0]) >> 10,
    }
    if rank.is_gpu:
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info()
        found["device_mb"] = (total - free) >> 20
    return found


def beside_the_script_s_own(rank: Rank, folder: str) -> None:
    """The default group existed before ours, and continues while ours are aborted and replaced."""
    backend = "nccl" if rank.is_gpu else "gloo"
    dist.init_process_group(
        backend, init_method=f"file://{folder}/script", rank=rank.index, world_size=rank.size
    )
    sum_of_all(rank, 1.0)
    for number in range(3):
        group = rank.form(f"g/{number}")
        talk(rank, group)
        sum_of_all(rank, 10.0 + number)
        rank.meet(f"g/{number}/talked")
        later(0.1, group.abort)
        waits_until_broken(group, rank.device, [1 - rank.index])
        sum_of_all(rank, 20.0 + number)
        group.close()
    sum_of_all(rank, 30.0)
    dist.destroy_process_group()


def sum_of_all(rank: Rank, value: float) -> None:
    tensor = torch.full((1000,), value, device=rank.device)
    dist.all_reduce(tensor)
    assert bool((tensor == value * rank.size).all())
