"""What `py-spy dump` prints, as files beside the dumps."""

from pathlib import Path

from holdfast.signals.flight_dumps import CodeLine
from holdfast.signals.stack_files import FILES_MAX, parse_stack, read_stacks

PRINTED = b"""\
Process 4242: python train.py --config 70b.toml
Python v3.11.2 (/usr/bin/python3.11)

Thread 4251 (idle): "pin_memory"
    wait (threading.py:324)
Thread 4242 (idle): "MainThread"
    read (webdataset/tario.py (inlined):31)
    load_batch (loader.py:33)
    main (train.py:120)
    <module> (train.py:141)
Thread 4260 (active): "watchdog"
    run (watchdog.py:9)
"""


def test_the_main_thread_is_read_the_innermost_line_first() -> None:
    assert parse_stack(PRINTED) == (
        CodeLine("load_batch", "loader.py", 33),
        CodeLine("main", "train.py", 120),
        CodeLine("<module>", "train.py", 141),
    )


def test_stacks_of_some_ranks_are_found_beside_their_dumps(tmp_path: Path) -> None:
    (tmp_path / "stack_rank_3.txt").write_bytes(PRINTED)
    (tmp_path / "stack_rank_4.txt").write_bytes(b"Error: Permission denied\xff\n")
    found = read_stacks(tmp_path / "nccl_trace_rank_", range(2, 6))
    assert {rank: lines[0].function for rank, lines in found.items()} == {3: "load_batch"}
    assert read_stacks(tmp_path, [*range(100, 100 + FILES_MAX), 3]) == {}
