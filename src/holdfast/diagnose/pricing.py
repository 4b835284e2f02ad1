"""What an incident costs so far, and each hour it goes on: in GPU-hours, money and progress."""

from holdfast.diagnose.incident import Price
from holdfast.economics.pricing.prices import Prices
from holdfast.wording.units import HOUR_S


def price(slowdown: float, lasted_s: float, gpus: int, prices: Prices) -> Price:
    """Of a run that takes `slowdown` times as long for everything since `lasted_s` ago."""
    lost_share = 1.0 - 1.0 / max(slowdown, 1.0)
    lost_s = lost_share * lasted_s
    usd = prices.usd_per_gpu_hour.value
    return Price(
        lost_gpu_hours=lost_s * gpus / HOUR_S,
        usd=lost_s * gpus / HOUR_S * usd,
        gpu_hours_per_hour=lost_share * gpus,
        usd_per_hour=lost_share * gpus * usd,
        lost_run_s=lost_s,
        day_share_per_day=lost_share,
        assumed=prices.usd_per_gpu_hour.assumed,
    )
