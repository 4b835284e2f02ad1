import pytest

from bench.record import RecordBench, table

pytestmark = pytest.mark.slow

RESULT = RecordBench(
    event_us=4.25,
    event_us_p99=9.5,
    plain_write_us=0.5,
    os_write_us=1.25,
    ratio=8.5,
    dropped=0,
    killed_runs=9,
    acknowledged=1234,
    lost=0,
)


def test_the_table_shows_every_figure() -> None:
    rows = [line.split() for line in table(RESULT).splitlines()]
    for figure in ("4.25", "9.50", "0.50", "1.25", "8.5", "1234"):
        assert any(figure in row for row in rows)
    assert ["lost", "0", "acknowledged,", "and", "not", "in", "the", "journal"] in rows
