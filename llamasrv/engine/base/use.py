"""Device memory of a model."""

from __future__ import annotations

from dataclasses import dataclass

HOST = "host"  # memory of this machine


@dataclass(frozen=True)
class DeviceUse:
    """Bytes of one device, by purpose."""

    weights: int = 0
    context: int = 0  # KV and recurrent states
    compute: int = 0  # work space, and output rows

    @property
    def total(self) -> int:
        return self.weights + self.context + self.compute

    def __add__(self, other: DeviceUse) -> DeviceUse:
        return DeviceUse(self.weights + other.weights, self.context + other.context, self.compute + other.compute)


@dataclass(frozen=True)
class FailedAllocation:
    """Bytes that a device, or HOST, could not provide. `free`: its free bytes at that moment, if known."""

    place: str
    size: int
    free: int | None = None


@dataclass(frozen=True)
class MeasuredUse:
    """`uses` by device name, HOST included. `devices`: those that the library would use, in its order, with free and
    total bytes."""

    uses: dict[str, DeviceUse]
    devices: dict[str, tuple[int, int]]
    context: int  # max tokens of one sequence
