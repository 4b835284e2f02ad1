"""The parts of a cluster that teams answer for, and the borders between them that incidents cross."""

from typing import Literal

Domain = Literal[
    "cooling", "power", "fabric", "gpu", "host", "storage", "pool", "software", "runtime", "none"
]
Seam = Literal["facilities-ml", "gpu-fabric-pool", "runtime-schedule-finance", "none"]
