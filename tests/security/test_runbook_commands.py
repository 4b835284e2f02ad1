"""Attacks on the commands of runbooks, which people paste: names come from labels, which any user may set.

Every command of every runbook is run by a real shell in which no program exists; `ssh` and `pdsh` hand their
commands to another such shell, as the real ones would. A name that breaks out of its word leaves a file.
"""

import re
import subprocess
from pathlib import Path

import msgspec
import pytest
from quantity import sampled

from holdfast.diagnose.incident import Cause, Incident
from holdfast.diagnose.runbooks import SEAMS, facts, names, runbook, seam_runbook

pytestmark = pytest.mark.slow

NOW_NS = 1_772_445_000 * 10**9
BLOCK = re.compile(r"^( *)```bash\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`(holdfast [^`]+)`")
MARK = "broken-out"
HOSTILE = [
    f"$(>{MARK})",
    f"`>{MARK}`",
    f"'; >{MARK}; '",
    f'"; >{MARK}; "',
    f"x\n>{MARK}\n",
    f"'$(>{MARK})'",
    f"\\'; >{MARK} #",
]
SHELL = """
set +e
command_not_found_handle() {
    if [ "$1" = ssh ] || [ "$1" = pdsh ]; then
        [ "$1" = pdsh ] && shift
        shift 2
        /bin/bash -c "$(declare -f command_not_found_handle); $*" </dev/null
    fi
}
PATH=/nowhere
"""


def incident(name: str, *, kind: str = "node", subject: str, host: str, run: str) -> Incident:
    cause = Cause(subject=subject, kind=kind, mechanism=name, title=run, domain="host", owner=host)
    return Incident(
        name=f"{run}/s1",
        run=run,
        verdict="cause",
        cause=cause,
        domain="host",
        owner=host,
        seam="none",
        path=(subject, run),
        confidence=0.9,
        quality=0.9,
        flaws=(run,),
        began_ns=NOW_NS - 10**12,
        noticed_ns=NOW_NS - 10**12,
        ended_ns=None,
        what=subject,
        slowdown=1.3,
        affected=(f"{run}/{host}", host),
        evidence=(),
        alternatives=(),
        decides=subject,
        action=subject,
        runbook=name,
        cost=None,
    )


def commands(evil: str, kind: str, subject: str) -> str:
    """The commands of every runbook, with this name in every place for a name."""
    script = []
    for name in names():
        one = incident(name, kind=kind, subject=subject, host=evil, run=evil)
        told = seam_runbook(one_of_seam(one, name), now_ns=NOW_NS) if name in SEAMS else None
        text = (told or runbook(one, now_ns=NOW_NS)).text
        script += [found[2] for found in BLOCK.finditer(text)]
        if "`" not in evil:
            script += INLINE.findall(text)
    return "\n".join(script)


def one_of_seam(one: Incident, seam: str) -> Incident:
    return msgspec.structs.replace(one, seam=seam)


@pytest.mark.parametrize("evil", sampled(HOSTILE, [HOSTILE[0], HOSTILE[2], HOSTILE[4], HOSTILE[6]]))
def test_no_name_runs_a_command_here_or_on_a_host(tmp_path: Path, evil: str) -> None:
    subjects = {"node": evil, "port": f"{evil}/{evil}/1"}
    script = "\n".join(commands(evil, kind, subject) for kind, subject in subjects.items())
    assert script.count("ssh ") > 40
    ran = subprocess.run(
        ["bash", "-c", SHELL + script], cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert ran.returncode in (0, 1, 127), ran
    assert "syntax error" not in ran.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("evil", ["-oProxyCommand=reboot", "--html=page", "n1,ALL", "exec:n1", "n[0-9]"])
def test_no_name_becomes_an_option_or_more_hosts(evil: str) -> None:
    known = facts(incident("slow-node", subject=evil, host=evil, run=evil), NOW_NS)
    assert (known.host, known.hostlist) == ("HOST", "HOST")
    if evil.startswith("-"):
        text = runbook(incident("unknown", subject=evil, host=evil, run=evil), now_ns=NOW_NS).text
        assert "holdfast report RUN" in text
        for found in BLOCK.finditer(text):
            assert evil not in found[2]


def test_a_port_of_a_hostile_device_is_left_open() -> None:
    known = facts(incident("link-errors", kind="port", subject="n1/$(reboot)/1", host="n1", run="r"), NOW_NS)
    assert (known.host, known.device, known.port) == ("n1", "DEVICE", "1")


def test_names_stay_within_the_strings_of_queries() -> None:
    evil = '"} or vector(1) #\\'
    for name in names():
        text = runbook(incident(name, subject=evil, host=evil, run=evil), now_ns=NOW_NS).text
        for query in re.findall(r"^ *```promql\n(.*?)^ *```$", text, re.MULTILINE | re.DOTALL):
            assert "vector(1)" not in re.sub(r'"(?:[^"\\]|\\.)*"', "", query), (name, query)
