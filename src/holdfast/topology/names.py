"""How subjects are called that have no name of their own in the cluster."""


def member_name(run: str, member: str) -> str:
    """A member is unique only within its run."""
    return f"{run}/{member}"


def gpu_name(node: str, gpu: str) -> str:
    return f"{node}.{gpu}"


def port_name(node: str, port: str) -> str:
    return f"{node}/{port}"


def node_of_port(port: str) -> str:
    return port.partition("/")[0]


def link_name(source: str, target: str) -> str:
    """The way from one node to another, over whatever lies between."""
    return f"{source}>{target}"
