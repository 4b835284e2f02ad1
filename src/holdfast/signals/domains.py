"""The parts of a cluster that teams are responsible for, and the borders that incidents cross."""

from typing import Literal

Domain = Literal[
    "cooling", "power", "fabric", "gpu", "host", "storage", "pool", "software", "runtime", "none"
]
Seam = Literal["facilities-ml", "gpu-fabric-pool", "runtime-schedule-finance", "none"]
