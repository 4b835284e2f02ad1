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
        ('mode = "loud"', "Invalid enum value 'loud'", "--example-policy"),
        ("treadmill = 1", "unknown field `treadmill`", "--example-policy"),
        ("confidence = 80", "Expected `float` <= 1.0", "--example-policy"),
        ("[budgets.explode]\nnodes = 1", "explode", "--example-policy"),
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
