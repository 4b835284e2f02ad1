"""A replica's ranks as torch sees them: a DeviceMesh whose process groups outlive the generations.

torch keeps process groups for the life of a model: FSDP2, DTensor and pipelines each remember theirs, and
cannot be given others. So these groups last, while the transport beneath them is replaced: a `Line` has the
replica's part of the current generation's group, or nothing while there is none.
"""

import importlib
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import _random
from torch.futures import Future

from holdfast.record.errors import InputError
from holdfast.run.mesh import MeshDimension, MeshShape
from holdfast.train.group import Transfer
from holdfast.train.sharding import Join, Line, Posted, combined

NAME = "holdfast"


_c10d: Any = torch._C._distributed_c10d
"""Untyped, because torch's type stubs for this module do not match its behaviour."""


class MeshGroup(_c10d.ProcessGroup):  # type: ignore[misc]
    """One dimension of a replica, as a process group. `ranks`: its members, by their rank in the replica."""

    def __init__(self, line: Line, ranks: Sequence[int], rank: int, device: torch.device) -> None:
        super().__init__(rank, len(ranks))
        self._line = line
        self._ranks = tuple(ranks)
        self._rank = rank
        self._device = device

    # ---- asked by torch ------------------------------------------------------------------------------------

    def name(self) -> str:
        return NAME

    # ---- collectives ---------------------------------------------------------------------------------------

    def all_gather_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        self._gather(_rows(output, self.size()), source)
        return _done(output)

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any = None
    ) -> Any:
        for output, source in zip(outputs, sources, strict=True):
            self._gather(_rows(output, self.size()), source)
        return _done(outputs)

    def allgather(
        self, outputs: list[list[torch.Tensor]], sources: list[torch.Tensor], opts: Any = None
    ) -> Any:
        for rows, source in zip(outputs, sources, strict=True):
            self._gather(rows, source)
        return _done(outputs)

    def reduce_scatter_single(self, output: torch.Tensor, source: torch.Tensor, opts: Any = None) -> Any:
        self._reduce_scatter(output, _rows(source.contiguous(), self.size()), _operation(opts))
        return _done(output)

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any = None
    ) -> Any:
        for output, source in zip(outputs, sources, strict=True):
            self._reduce_scatter(output, _rows(source.contiguous(), self.size()), _operation(opts))
        return _done(outputs)

    def reduce_scatter(
        self, outputs: list[torch.Tensor], sources: list[list[torch.Tensor]], opts: Any = None
    ) -> Any:
        for output, rows in zip(outputs, sources, strict=True):
            self._reduce_scatter(output, rows, _operation(opts))
        return _done(outputs)

    def allreduce(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        for tensor in tensors:
            rows = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in self._ranks]
            self._gather(rows, tensor.contiguous().clone())
            tensor.copy_(_combined(rows, _operation(opts)))
        return _done(tensors)

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Any:
        return self.allreduce(tensors, opts)

    def broadcast(self, tensors: list[torch.Tensor], opts: Any) -> Any:
        for tensor in tensors:
            self._from(opts.rootRank, [tensor] * self.size(), tensor)
        return _done(tensors)

    def scatter(self, outputs: list[torch.Tensor], sources: list[list[torch.Tensor]], opts: Any) -> Any:
        for number, output in enumerate(outputs):
            rows = sources[number] if self._rank == opts.rootRank else []
            self._from(opts.rootRank, rows, output)
        return _done(outputs)

    def all_to_all_single(
        self,
        output: torch.Tensor,
        source: torch.Tensor,
        output_sizes: list[int],
        source_sizes: list[int],
        opts: Any = None,
    ) -> Any:
        self.alltoall(
            list(torch.split(output, output_sizes or _even(output, self.size()))),
            list(torch.split(source.contiguous(), source_sizes or _even(source, self.size()))),
        )
        return _done(output)

    def alltoall(self, outputs: list[torch.Tensor], sources: list[torch.Tensor], opts: Any = None) -> Any:
        arriving = [(output, torch.empty_like(output)) for output in outputs]
        self._exchange(
            [(sources[peer], peer) for peer in self._peers],
            [(arriving[peer][1], peer) for peer in self._peers],
        )
        for peer, (output, came) in enumerate(arriving):
            output.copy_(sources[peer] if peer == self._rank else came)
        return _done(outputs)

    def barrier(self, opts: Any = None) -> Any:
        tokens = torch.zeros(self.size(), device=self._device)
        self._gather(list(tokens.unbind()), tokens[self._rank].clone())
        return _done(tokens)

    def send(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        """Send a copy: torch may change the tensors once it has waited, and the sender does not wait for
        delivery.
        """
        rank = self._ranks[peer]
        self._check(tensors)
        copies = [tensor.detach().clone(memory_format=torch.contiguous_format) for tensor in tensors]
        return _MeshWork(self._line.post([(copy, rank) for copy in copies], []))

    def recv(self, tensors: list[torch.Tensor], peer: int, tag: int) -> Any:
        """A pipeline may post a receive long before it needs the data."""
        self._check(tensors)
        places = [tensor.detach() for tensor in tensors]  # they may require gradients
        came = [
            place
            if place.is_contiguous()
            else torch.empty(place.shape, dtype=place.dtype, device=place.device)
            for place in places
        ]
        rank = self._ranks[peer]
        return _MeshWork(
            self._line.post([], [(one, rank) for one in came]), list(zip(places, came, strict=True))
        )

    # The names that torch had before 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # ---- building blocks -----------------------------------------------------------------------------------

    @property
    def _peers(self) -> list[int]:
        """All other ranks, beginning with the next."""
        size = len(self._ranks)
        return [(self._rank + distance) % size for distance in range(1, size)]

    def _check(self, tensors: Iterable[torch.Tensor]) -> None:
        kind = self._device.type
        if (other := next((one.device for one in tensors if one.device.type != kind), None)) is not None:
            raise InputError(
                f"A collective of run.mesh was given a tensor on {other}, but its ranks exchange on {kind}.",
                hint="Move it there first, with tensor.to(run.device).",
            )

    def _exchange(self, sends: Sequence[Transfer], receives: Sequence[Transfer]) -> None:
        self._check(tensor for tensor, _ in (*sends, *receives))
        if sends or receives:
            self._line.exchange(
                [(tensor, self._ranks[peer]) for tensor, peer in sends],
                [(tensor, self._ranks[peer]) for tensor, peer in receives],
            )

    def _gather(self, rows: Sequence[torch.Tensor], source: torch.Tensor) -> None:
        """Gather each rank's `source` in its row."""
        source = source.contiguous()
        self._exchange([(source, peer) for peer in self._peers], [(rows[peer], peer) for peer in self._peers])
        own = rows[self._rank]
        if own.data_ptr() != source.data_ptr():
            own.copy_(source.view_as(own))

    def _reduce_scatter(
        self, output: torch.Tensor, rows: Sequence[torch.Tensor], combine: "_Combine"
    ) -> None:
        """Add up all ranks' rows for this rank along a binary tree over the ranks, in the order of lanes."""
        came = {peer: torch.empty_like(rows[self._rank]) for peer in self._peers}
        self._exchange([(rows[peer], peer) for peer in self._peers], [(came[peer], peer) for peer in came])
        came[self._rank] = rows[self._rank]
        output.copy_(_combined([came[peer] for peer in range(self.size())], combine).view_as(output))

    def _from(self, root: int, rows: Sequence[torch.Tensor], output: torch.Tensor) -> None:
        if self._rank != root:
            self._exchange([], [(output, root)])
            return
        self._exchange([(rows[peer].clone(), peer) for peer in self._peers], [])
        if rows[root].data_ptr() != output.data_ptr():
            output.copy_(rows[root])


_Combine = tuple[Join, bool]
"""The operation on two rows, and whether the result is divided by their number."""


def _operation(opts: Any) -> _Combine:
    """opts: None means a sum, as in torch."""
    kind = dist.ReduceOp.SUM if opts is None else opts.reduceOp
    for known, combine in _OPERATIONS:
        if kind == known:
            return combine
    raise InputError(f"run.mesh cannot reduce by {kind}.", hint="It has sum, avg, max, min and product.")


_OPERATIONS: tuple[tuple[Any, _Combine], ...] = (
    (dist.ReduceOp.SUM, (torch.add, False)),
    (dist.ReduceOp.AVG, (torch.add, True)),
    (dist.ReduceOp.MAX, (torch.maximum, False)),
    (dist.ReduceOp.MIN, (torch.minimum, False)),
    (dist.ReduceOp.PRODUCT, (torch.mul, False)),
)


def _combined(rows: Sequence[torch.Tensor], combine: _Combine) -> torch.Tensor:
    join, is_mean = combine
    result = combined(rows, join)
    return result / len(rows) if is_mean else result


def _rows(flat: torch.Tensor, count: int) -> list[torch.Tensor]:
    return list(flat.view(-1).view(count, -1).unbind()) if flat.numel() else [flat] * count


def _even(tensor: torch.Tensor, count: int) -> list[int]:
    return [tensor.size(0) // count] * count


def _done(result: Any) -> Any:
    """The work of a finished operation. On a GPU, the stream is ordered after it."""
    future: Future[Any] = Future()
    future.set_result(result)
    return _c10d._create_work_from_future(future)


class _MeshWork(_c10d.Work):  # type: ignore[misc]
    """A transfer between two ranks. came: pairs of the tensor to fill and the tensor that the
    data arrive in.
    """

    def __init__(self, posted: Posted, came: Sequence[tuple[torch.Tensor, torch.Tensor]] = ()) -> None:
        super().__init__()
        self._posted = posted
        self._came = came

    def wait(self, timeout: Any = None) -> bool:
        self._posted.wait()
        for place, came in self._came:
            if place is not came:
                place.copy_(came)
        return True


# ---- the mesh --------------------------------------------------------------------------------------------


def make_mesh(line: Line, shape: MeshShape, rail: int, device: torch.device) -> DeviceMesh:
    """The replica's mesh, with the requested dimensions. Ranks count within the replica."""
    if dist.is_initialized():
        raise InputError(
            "The script has a default process group, but run.mesh needs one of its own.",
            hint="Leave out init_process_group: run.mesh is all that fully_shard and the like need.",
        )
    _init_default(rail, shape.ranks)
    names: tuple[MeshDimension, ...] = tuple(name for name, _ in shape.sizes)
    groups = [_register(line, shape.beside(rail, name), rail, f"{NAME}-{name}", device) for name in names]
    ranks = torch.arange(shape.ranks).view([size for _, size in shape.sizes])
    if len(groups) == 1:
        mesh = DeviceMesh.from_group(groups[0], device.type, mesh_dim_names=names)
    else:
        mesh = DeviceMesh.from_group(groups, device.type, mesh=ranks, mesh_dim_names=names)
    if device.type == "cuda":
        # By default it would ask rank 0 of the default group for a seed; every lane sets one anyway.
        _random._rng_tracker = _random.OffsetBasedRNGTracker(mesh, run_state_sync=False)
    return mesh


def _init_default(rank: int, size: int) -> None:
    """Give torch the default group it requires. This one has no connections and refuses every collective."""
    importlib.import_module("torch.testing._internal.distributed.fake_pg")  # registers the backend
    excepthook = sys.excepthook
    dist.init_process_group(
        "fake",
        rank=rank,
        world_size=size,
        store=_c10d.HashStore(),
        pg_options=_refusing(),
    )
    sys.excepthook = excepthook  # torch's hook prints a rank of this dummy group


def _refusing() -> Any:
    options = _c10d.FakeProcessGroup.Options()
    options.error_on_collective = True
    return options


def _register(line: Line, ranks: Sequence[int], rail: int, name: str, device: torch.device) -> Any:
    """Register a group like torch's own new_group, so that its name and its ranks can be looked up."""
    group: Any = MeshGroup(line, ranks, ranks.index(rail), device)
    world: Any = distributed_c10d._world
    # Calls of torch's C++ that are not overridden here end in this backend, which refuses them.
    unheard_of = _c10d.FakeProcessGroup._create_internal(ranks.index(rail), len(ranks), _refusing())
    for kind in ("cpu", "cuda"):
        group._register_backend(torch.device(kind), dist.ProcessGroup.BackendType.CUSTOM, unheard_of)
    group._set_group_name(name)
    group._set_group_desc(name)
    world.pg_map[group] = (NAME, _c10d.HashStore())
    world.pg_names[group] = name
    world.pg_group_ranks[group] = {rank: number for number, rank in enumerate(ranks)}
    world.pg_backend_config[group] = NAME
    world.pg_to_tag[group] = f"ptd:{name}"
    world.tags_to_pg.setdefault(f"ptd:{name}", []).append(group)
    _c10d._register_process_group(name, group)
    return group


def add_up(models: Sequence[torch.nn.Module]) -> None:
    """Have FSDP sum gradients without dividing: a lane's loss already has its share of the mean."""
    for model in models:
        for module in model.modules():
            if isinstance(module, FSDPModule):
                module.set_gradient_divide_factor(1.0)
                module.set_force_sum_reduction_for_comms(True)
