"""The policy file: what it says, and one sentence with a hint for what it says wrongly."""

import msgspec
import pytest

from holdfast.control.policy import Budget, ControlPolicy, RulePolicy, example, read_policy
from holdfast.record.errors import InputError


def test_an_empty_policy_acts_on_nothing() -> None:
    assert read_policy("") == ControlPolicy()
    assert ControlPolicy().mode_of("gpu-fault") == "shadow"


def test_the_example_is_what_holds_without_a_file() -> None:
    shown = read_policy(example())
    assert shown.budgets == {"drain-now": Budget()}
    assert shown.rules == {"gpu-throttle": RulePolicy(mode="shadow")}
    assert msgspec.structs.replace(shown, budgets={}, rules={}) == ControlPolicy()


def test_what_is_said_holds() -> None:
    policy = read_policy(
        'mode = "act"\nscheduler = "slurm"\n[budgets.reboot]\nnodes = 1\n'
        '[rules.nvlink]\nmode = "off"\n[commands]\ncheck = "ssh {node} holdfast check --json"\n'
    )
    assert policy.budget("reboot").nodes == 1
    assert (policy.mode_of("nvlink"), policy.mode_of("gpu-fault")) == ("off", "act")


@pytest.mark.parametrize(
    ("text", "sentence", "hint"),
    [
        ("mode = ", "The policy is not TOML", "--example-policy"),
        (
            'mode = "loud"',
            "`mode` in the policy is 'loud'; it must be one of act, shadow",
            "--example-policy",
        ),
        ('mode = "shadw"', "must be one of act, shadow", "Did you mean `shadow`?"),
        ('[kubernetes]\nreboot = "x"', "must be one of maintenance-request, none", "--example-policy"),
        (
            '[rules.nvlink]\nmode = "on"',
            "`rules.*.mode` in the policy is 'on'; it must be one of act, off",
            "--example-policy",
        ),
        ('[rules.nvlink]\nnever = ["drain"]', "`rules.*.never` in the policy is 'drain'", "`drain-now`?"),
        (
            "[budgets.explode]\nnodes = 1",
            "A key of `[budgets]` in the policy is 'explode'",
            "--example-policy",
        ),
        (
            "[budgets.explode]\nnodes = 1",
            "must be one of call-a-person, checkpoint, drain-now",
            "--example-policy",
        ),
        ("treadmill = 1", "The policy has the unknown key `treadmill`", "Known are mode,"),
        ("[out]\nnode = 1", "`[out]` in the policy has the unknown key `node`", "Did you mean `nodes`?"),
        ("confidence = 80", "`confidence` in the policy must be a number, at most 1", "--example-policy"),
        (
            "gpus_per_node = 0",
            "`gpus_per_node` in the policy must be a whole number, at least 1",
            "--example",
        ),
        ("[times]\nmend_h = 0", "`times.mend_h` in the policy must be a number, more than 0", "--example"),
        ("gpus_per_node = 1.5", "must be a whole number, not a fraction", "--example-policy"),
        ("budgets = 1", "`budgets` in the policy must be a table, not a whole number", "--example-policy"),
        (
            '[kubernetes]\ntaint = "a b"',
            "`kubernetes.taint` in the policy has a wrong format",
            "NoSchedule",
        ),
        (
            '[kubernetes]\nlease = "a"',
            "`kubernetes.lease` in the policy has a wrong format",
            "NAMESPACE/NAME",
        ),
        ('[slurm]\nuser = "a b"', "`slurm.user` in the policy has a wrong format", "without spaces"),
        ('[slurm]\nuser = "a\\n"', "`slurm.user` in the policy has a wrong format", "without spaces"),
        ('[commands]\ncheck = "ssh {node x"', "`commands.check` in the policy has a brace without", "{node}"),
        ('[commands]\ncheck = "ssh node} x"', "`commands.check` in the policy has a brace without", "{node}"),
        ("[rules.gpu-throtle]\n", "'gpu-throtle', which is not a mechanism", "Did you mean `gpu-throttle`?"),
        ('[commands]\ncheck = "ssh {host} x"', "{host}, which is not filled in", "{node}"),
        (
            '[commands]\nreboot = "{node} down"',
            "`commands.reboot` in the policy names no program",
            "first word",
        ),
        ('[commands]\ncheck = "  "', "`commands.check` in the policy names no program", "leave the key out"),
        ('[commands]\nreboot = "ssh \'x"', "No closing quotation", "Close its quotes."),
    ],
)
def test_a_mistake_is_one_sentence_and_a_hint(text: str, sentence: str, hint: str) -> None:
    with pytest.raises(InputError) as caught:
        read_policy(text)
    assert sentence in caught.value.sentence
    assert hint in caught.value.hint
