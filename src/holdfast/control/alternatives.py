"""The price of each action until the horizon, in GPU-hours and in money.

    price = own + (1 - right x mends) x in vain + right x mends x left

own: the cost of the action itself, whether the cause is right or wrong. right: the chance that the named
cause is right. mends: the share of the loss that ends if it is. in vain: the loss if the action did not help;
it goes on, or ends when a person has been called, if that is cheaper. left: the loss that remains even if it
helped, such as the capacity of a node that was left out. Going on costs the run's present loss, and may cost
the node with all work since the last checkpoint.
"""

from collections.abc import Iterator
from typing import assert_never

import msgspec

from holdfast.control.actions import ACTIONS, HARMLESS, ControlAction
from holdfast.control.cluster import FAILS_A_DAY, Case, ClusterView
from holdfast.control.decision import ActionPrice, PricedAction
from holdfast.control.policy import ControlPolicy, Times
from holdfast.wording.units import HOUR_NS, HOUR_S, HOURS_PER_DAY, MINUTE_NS

MENDS: dict[str, dict[ControlAction, float]] = {"hang": {"replace": 0.5, "requeue": 0.9}}
"""The actions that end a mechanism that is not a node's, and in which share of cases. Assumed."""

MINUTES_PER_HOUR = 60
STANDS_STILL_SHARE = 0.9
"""A run that loses more than this is not slow but stands still, and moving lanes does not mend that."""
SHORTEST_H = 1e-9
"""A run that is over has no horizon."""


class CaseLoss(msgspec.Struct, frozen=True, kw_only=True):
    """The loss while nothing is done, and the figures that actions are priced by.

    rate       GPU-hours in an hour
    horizon_h  until it is mended, or the run is over
    going_on   GPU-hours until then, with the expected cost of a failure of the node
    stop       GPU-hours that a stop of the run costs: the work since the last checkpoint, and the restart
    share      of the run's pace that is lost
    """

    rate: float
    horizon_h: float
    going_on: float
    stop: float
    share: float
    right: float
    fails: float


def loss_of(case: Case, now_ns: int, policy: ControlPolicy) -> CaseLoss:
    run, times = case.run, policy.times
    share = 1.0 - 1.0 / case.slowdown
    horizon_h = min(times.mend_h, run.remaining_h if run and run.remaining_h is not None else times.mend_h)
    node_gpus = case.node.gpus if case.node else 0
    told = case.gravest
    fails = FAILS_A_DAY.get(told.cause.mechanism, 0.0)
    right = told.confidence
    if run is None:
        # No run is on the node now. The next one loses as much on its GPUs, or all when the node fails; or as
        # much as the run that has left it.
        rate = max((share + fails) * node_gpus, case.left_rate)
        return CaseLoss(
            rate=rate,
            horizon_h=horizon_h,
            going_on=rate * horizon_h,
            stop=0.0,
            share=share,
            right=right,
            fails=fails,
        )
    stop = times.regroup_s / HOUR_S * run.gpus if run.is_elastic else _stop(case, now_ns, times)
    risk = min(1.0, fails * horizon_h / HOURS_PER_DAY)
    rate = share * run.gpus if told.cost is None else told.cost.gpu_hours_per_hour
    return CaseLoss(
        rate=rate,
        horizon_h=horizon_h,
        going_on=rate * horizon_h + right * risk * stop,
        stop=stop,
        share=share,
        right=right,
        fails=risk,
    )


def _stop(case: Case, now_ns: int, times: Times) -> float:
    """GPU-hours if the run goes back to its last checkpoint, or to its beginning if it has none."""
    assert case.run is not None
    saved_ns = case.run.began_ns if case.run.saved_ns is None else case.run.saved_ns
    exposed_h = max(0, now_ns - saved_ns) / HOUR_NS if saved_ns else times.restart_h
    return (exposed_h + times.restart_h) * case.run.gpus


class _Effect(msgspec.Struct, frozen=True, kw_only=True):
    """own: GPU-hours. mends: a share. left: GPU-hours. right: the chance to be right, if not the cause's."""

    own: float = 0.0
    mends: float = 0.0
    left: float = 0.0
    right: float | None = None


def priced(case: Case, now_ns: int, cluster: ClusterView, policy: ControlPolicy) -> Iterator[PricedAction]:
    """Every action that makes sense here, the gentlest first."""
    loss = loss_of(case, now_ns, policy)
    for action in ACTIONS:
        effect = _effect(action, case, loss, now_ns, cluster, policy)
        if effect is None:
            continue
        mended = (loss.right if effect.right is None else effect.right) * effect.mends
        is_help = effect.mends and action not in HARMLESS
        vain_gpu_hours, vain_usd = _in_vain(loss, cluster, policy) if is_help else (loss.going_on, 0.0)
        gpu_hours = effect.own + (1 - mended) * vain_gpu_hours + mended * effect.left
        people_usd = cluster.person_usd if action == "call-a-person" else (1 - mended) * vain_usd
        yield PricedAction(
            action=action,
            price=ActionPrice(gpu_hours=gpu_hours, usd=gpu_hours * cluster.usd_per_gpu_hour + people_usd),
            own_gpu_hours=effect.own,
        )


def _in_vain(loss: CaseLoss, cluster: ClusterView, policy: ControlPolicy) -> tuple[float, float]:
    """The loss if an action did not help, in GPU-hours and in money for people."""
    waiting_h = policy.waits.cool_down_min / MINUTES_PER_HOUR + policy.times.person_h
    called = loss.going_on * min(1.0, waiting_h / max(loss.horizon_h, SHORTEST_H))
    if called * cluster.usd_per_gpu_hour + cluster.person_usd < loss.going_on * cluster.usd_per_gpu_hour:
        return called, cluster.person_usd
    return loss.going_on, 0.0


def _effect(
    action: ControlAction,
    case: Case,
    loss: CaseLoss,
    now_ns: int,
    cluster: ClusterView,
    policy: ControlPolicy,
) -> _Effect | None:
    """The effect of an action; None if the action makes no sense here."""
    run, node, times = case.run, case.node, policy.times
    node_gpus = node.gpus if node else 0
    is_elastic = run is not None and run.is_elastic
    can_move = run is not None and run.is_elastic and run.can_move
    regroup = times.regroup_s / HOUR_S * run.gpus if run else 0.0
    # A node that was taken out wrongly passes its check and returns.
    out_h = loss.right * times.out_h + (1 - loss.right) * times.check_h
    out = node_gpus * out_h
    mends = MENDS.get(case.gravest.cause.mechanism, {})
    match action:
        case "watch":
            return _Effect()
        case "rebalance":
            is_young = now_ns - case.gravest.began_ns < policy.waits.settle_min * MINUTE_NS
            if node is None or not is_elastic or not is_young or loss.share > STANDS_STILL_SHARE:
                return None
            return _Effect(mends=1.0, left=loss.share * node_gpus * loss.horizon_h, right=1.0)
        case "checkpoint":
            if run is None or is_elastic or not loss.fails:
                return None
            saved = loss.fails * max(0.0, loss.stop - times.restart_h * run.gpus)
            own = times.save_s / HOUR_S * run.gpus
            return _Effect(own=own, mends=1.0, left=max(0.0, loss.going_on - saved))
        case "replace":
            if not can_move or not case.member or action not in mends:
                return None
            return _Effect(own=regroup, mends=mends[action])
        case "migrate":
            if node is None or run is None or not can_move or not run.spares:
                return None
            return _Effect(own=regroup, mends=1.0)
        case "shrink":
            if node is None or not can_move:
                return None
            return _Effect(own=regroup, mends=1.0, left=node_gpus * loss.horizon_h)
        case "drain-when-done":
            if node is None:
                return None
            # Nothing is mended as long as the run is on the node.
            return _Effect(own=out, mends=0.0 if run else 1.0)
        case "drain-now":
            if node is None or run is None:  # the loss of other jobs is unknown: they are left alone
                return None
            if can_move:
                return _Effect(own=out + regroup, mends=1.0)
            # A job that needs all of its nodes waits for this one, unless another is free.
            waiting = 0.0 if cluster.free_node_gpus >= node_gpus else max(0, run.gpus - node_gpus) * out_h
            return _Effect(own=out + waiting + _stop(case, now_ns, times), mends=1.0)
        case "requeue":
            if run is None or is_elastic or action not in mends:
                return None
            return _Effect(own=loss.stop, mends=mends[action])
        case "call-a-person":
            waiting = loss.going_on * min(1.0, times.person_h / max(loss.horizon_h, SHORTEST_H))
            return _Effect(own=waiting + out, mends=1.0, right=1.0)
        case "reboot" | "restore":
            return None  # these are for nodes that are out already
    assert_never(action)
