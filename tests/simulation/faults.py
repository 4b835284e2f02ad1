"""The faults in a schedule, and how they are repaired."""

from typing import TYPE_CHECKING, Any

from holdfast.run import wire
from holdfast.run.happenings import MoveRequested, StopRequested, Unreached
from tests.simulation.history import Struck
from tests.simulation.setting import Fault, Point

if TYPE_CHECKING:
    from tests.simulation.member import Script
    from tests.simulation.world import World

SLOWNESS = 200
SECOND_NS = 10**9


class Faults:
    """The faults of one schedule. struck: how many have struck. kinds: of those. away: nodes that do not
    return.
    """

    def __init__(self, world: "World") -> None:
        self._world = world
        self._reached: dict[Point, int] = {}
        self._waiting = list(world.setting.faults)
        self.kinds: dict[str, None] = {}
        self.away: dict[str, None] = {}

    def reach(self, script: "Script", point: Point) -> None:
        """Note that a script has reached this point."""
        count = self._reached[point] = self._reached.get(point, 0) + 1
        for fault in self._waiting:
            if fault.point == point and fault.times == count:
                self._waiting.remove(fault)
                if fault.after_ns:
                    self._world.at(fault.after_ns, self.strike, fault, script)
                else:
                    self.strike(fault, script)
                return

    def strike(self, fault: Fault, script: "Script") -> None:
        world = self._world
        victim = script
        if fault.other or script.is_dead:
            others = [one for one in world.scripts.values() if not one.is_dead and one is not script]
            if not others:
                return
            victim = world.random.choice(others)
        node = victim.node
        world.note(Struck(world.now_ns, f"{fault.kind} {victim.name}"))
        self.kinds[fault.kind] = None
        match fault.kind:
            case "kill":
                world.die(victim)
            case "node":
                self.lose_node(node, is_seen=True)
                self._bring_back(fault, node)
            case "power":
                self.lose_node(node, is_seen=False)
                self._bring_back(fault, node)
            case "partition":
                self._partition(node, fault)
            case "line":
                self._break_line(victim)
            case "pause":
                victim.is_paused = True
                world.at(fault.for_ns, self._resume, victim)
            case "agent pause":
                if node in world.agents:
                    world.agents[node].is_paused = True
                    world.at(fault.for_ns, self._resume, world.agents[node])
            case "hang":
                victim.hangs = True
            case "wire":
                if len(victim.members) > 1:
                    other = world.random.choice([name for name in victim.members if name != victim.name])
                    world.groups.cut(victim, other)
            case "slow":
                victim.slowness = SLOWNESS
            case "lag":
                victim.line.lag_ns = fault.for_ns // 8
                world.at(fault.for_ns, self._quicken, victim)
            case "hold up":
                until_ns = world.now_ns + fault.for_ns  # connections keep the order of their messages
                world.held_until_ns = max(world.held_until_ns, until_ns)
            case "raise":
                world.exit(victim, 1, f"Traceback: {world.now_ns}")
            case "device":
                self._fail_device(victim)
            case "replace":
                world.tell(MoveRequested(wire.Migrate(member=victim.name)))
            case "drain":
                world.tell(MoveRequested(wire.Migrate(member=node)))
            case "stop":
                world.tell(StopRequested("the operator", 1))
            case "deaf":
                victim.line.deaf_until_ns = world.now_ns + fault.for_ns
                self._say_unreached(victim)

    def lose_node(self, name: str, *, is_seen: bool) -> None:
        """Lose the agent and all its workers. is_seen: their connections end; otherwise they fall silent."""
        world = self._world
        agent = world.agents.get(name)
        if agent is None or agent.is_dead:
            return
        agent.is_dead = True
        for script in [one for one in world.scripts.values() if one.node == name and not one.is_dead]:
            world.bury(script, "node lost", is_seen=is_seen)
            self._end_line(script.line, is_seen=is_seen)
        self._end_line(agent.line, is_seen=is_seen)
        if name not in world.returning:
            self.away[name] = None

    def _end_line(self, line: Any, *, is_seen: bool) -> None:
        if is_seen:
            self._world.hang_up(line, is_abrupt=self._world.random.random() < 0.4)
        else:
            line.cut_ns = self._world.now_ns

    def _bring_back(self, fault: Fault, node: str) -> None:
        world = self._world
        if fault.returns:
            self.away.pop(node, None)
            world.at(fault.for_ns, self._return, node)

    def _return(self, node: str) -> None:
        world = self._world
        agent = world.agents.get(node)
        if agent is not None and agent.is_dead and node not in world.returning:
            world.note(Struck(world.now_ns, f"{node} returns"))
            self.away.pop(node, None)
            world.join(node)

    def _partition(self, node: str, fault: Fault) -> None:
        """Cut the node off from the coordinator. Members still reach each other."""
        world = self._world
        agent = world.agents.get(node)
        if agent is None or agent.is_dead:
            return
        world.partitioned[node] = None
        agent.line.cut_ns = world.now_ns
        for script in [one for one in world.scripts.values() if one.node == node and not one.is_dead]:
            script.line.cut_ns = world.now_ns
        world.at(fault.for_ns, self._heal, node, fault)

    def _heal(self, node: str, fault: Fault) -> None:
        """End the partition: the node sees that its connections are dead, and starts again."""
        world = self._world
        world.partitioned.pop(node, None)
        self.lose_node(node, is_seen=True)
        if fault.returns:
            self.away.pop(node, None)
            world.at(SECOND_NS, self._return, node)

    def _break_line(self, victim: "Script") -> None:
        """Break the connection; each end sees it at a moment of its own."""
        world = self._world
        world.hang_up(victim.line, is_abrupt=True)
        world.at(world.delay() * 10, world.notice_end, "worker", victim.name)

    def _resume(self, stopped: Any) -> None:
        if stopped.is_dead or not stopped.is_paused:
            return
        stopped.is_paused = False
        self._world.note(Struck(self._world.now_ns, f"{stopped.name} continues"))
        held_back, stopped.held_back = stopped.held_back, []
        for call, args in held_back:
            call(*args)

    def _say_unreached(self, victim: "Script") -> None:
        """Tell the membership that a member, and perhaps others, acknowledge nothing. This happens more often
        than in production, which first checks that the run waits and that the silence has lasted.
        """
        world = self._world
        if victim.is_dead or world.now_ns > victim.line.deaf_until_ns or world.ending is not None:
            return
        generation = world.state.generations.announced
        if generation is not None and world.now_ns >= world.held_until_ns:
            others = generation.members if world.random.random() < 0.2 else (victim.name,)
            names = tuple(dict.fromkeys((victim.name, world.random.choice(others))))
            doubtful = 1 if world.random.random() < 0.7 else world.random.randint(1, len(generation.members))
            world.tell(Unreached(names, max(len(names), doubtful)))
        world.at(SECOND_NS, self._say_unreached, victim)

    def _quicken(self, victim: "Script") -> None:
        victim.line.lag_ns = 0

    def _fail_device(self, victim: "Script") -> None:
        world = self._world
        failed = wire.DeviceFailed(
            member=victim.name,
            generation=victim.number,
            step=victim.version + 1 if victim.number else 0,
            failure=f"CUDA error: {world.now_ns}",
        )
        world.from_worker(victim, failed)
        world.exit(victim, wire.CODE_DEVICE_FAILED, "torch.AcceleratorError: CUDA error")
