"""Units of time: the nanoseconds and seconds in a second, a minute, an hour and a day."""

SECOND_NS = 10**9
MINUTE_NS = 60 * SECOND_NS
HOUR_NS = 60 * MINUTE_NS
DAY_NS = 24 * HOUR_NS

MINUTE_S = 60
HOUR_S = 3_600
DAY_S = 86_400
HOURS_PER_DAY = 24
