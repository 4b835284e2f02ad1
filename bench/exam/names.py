"""How exporters call a host: as the topology does, by its full name, or by an address of a pod or machine."""

from bench.exam.plant import Plant

DOMAIN = "pod1.example.net"


def host(plant: Plant, node: int, *, of_gpu: bool = False) -> str:
    name = plant.node_name(node)
    if plant.spec.names == "plain" or (of_gpu and plant.spec.names == "fqdn"):
        return name
    if plant.spec.names == "fqdn":
        return f"{name}.{DOMAIN}"
    return f"10.244.{node}.17" if of_gpu else f"10.1.{node // 200}.{node % 200 + 10}"
