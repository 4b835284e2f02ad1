"""Explains a mistake in a policy file in one sentence: the key as the file has it, and the values allowed."""

import re

import msgspec
from msgspec import inspect

from holdfast import wording
from holdfast.record.errors import InputError, nearest

EXAMPLE = "`holdfast control --example-policy` prints one with every key."
FORMS = {
    "kubernetes.taint": "KEY=VALUE:NoSchedule or KEY=VALUE:NoExecute",
    "kubernetes.lease": "NAMESPACE/NAME",
    "slurm.rest": "http://HOST:PORT or unix:/PATH",
    "slurm.user": "a user's name, in ASCII and without spaces",
}
"""The formats of strings that have one."""
KINDS = {
    "int": "a whole number",
    "float": "a number",
    "str": "a string",
    "bool": "true or false",
    "array": "a list",
    "object": "a table",
}
_MESSAGE = re.compile(r"(?P<what>.*?)(?: - at (?P<key>`key` in )?`\$(?P<place>.*)`)?", re.DOTALL)
_STEP = re.compile(r"\.([^.\[\]]+)|\[[^\]]*\]")


def mistake(error: msgspec.ValidationError, kind: type) -> InputError:
    """The error for the user. kind: the type of the whole file."""
    found = _MESSAGE.fullmatch(str(error))
    assert found is not None  # the pattern matches every text
    steps = [one[1] for one in _STEP.finditer(found["place"] or "")]
    key = re.sub(r"\[\d+\]", "", found["place"] or "").replace("[...]", ".*").strip(".")
    what, told = found["what"], _type_at(inspect.type_info(kind), steps)
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", what):
        return _unknown(unknown[1], key, told)
    if value := re.fullmatch(r"Invalid enum value (.*)", what):
        return _not_one_of(value[1], key, told, is_key=bool(found["key"]))
    if "matching regex" in what:
        hint = f"Write it as {FORMS[key]}." if key in FORMS else EXAMPLE
        return InputError(f"`{key}` in the policy has a wrong format.", hint=hint)
    if bound := re.fullmatch(r"Expected `(\w+)` ([<>]=?) (.*)", what):
        words = {">": "more than", ">=": "at least", "<": "less than", "<=": "at most"}
        amount = f"{KINDS.get(bound[1], bound[1])}, {words[bound[2]]} {wording.number(float(bound[3]))}"
        return InputError(f"`{key}` in the policy must be {amount}.", hint=EXAMPLE)
    if kinds := re.fullmatch(r"Expected `(.*)`, got `(.*)`", what):
        wanted, got = (KINDS.get(one, one) for one in kinds.groups())
        got = "a fraction" if kinds[1] == "int" and kinds[2] == "float" else got
        return InputError(f"`{key}` in the policy must be {wanted}, not {got}.", hint=EXAMPLE)
    return InputError(f"The policy cannot be used: {error}.", hint=EXAMPLE)


def _unknown(name: str, table: str, told: inspect.Type | None) -> InputError:
    known = [field.encode_name for field in told.fields] if isinstance(told, inspect.StructType) else []
    where = f"`[{table}]` in the policy" if table else "The policy"
    return InputError(
        f"{where} has the unknown key `{name}`.",
        hint=nearest(name, known, f"Known are {', '.join(known)}.", quote="`"),
    )


def _not_one_of(value: str, key: str, told: inspect.Type | None, *, is_key: bool) -> InputError:
    if is_key and isinstance(told, inspect.DictType):
        told = told.key_type
    allowed = list(_literals(told))
    what = f"A key of `[{key}]`" if is_key else f"`{key}`"
    return InputError(
        f"{what} in the policy is {value}; it must be one of {', '.join(allowed)}.",
        hint=nearest(value.strip("'"), allowed, EXAMPLE, quote="`"),
    )


def _literals(told: inspect.Type | None) -> tuple[str, ...]:
    match told:
        case inspect.LiteralType():
            return tuple(str(one) for one in told.values)
        case inspect.UnionType():
            return tuple(one for member in told.types for one in _literals(member))
        case _:
            return ()


def _type_at(told: inspect.Type | None, steps: list[str | None]) -> inspect.Type | None:
    """The type that is expected there. A step without a name leads into a table with any keys, or a list."""
    for step in steps:
        match told:
            case inspect.StructType():
                told = next((field.type for field in told.fields if field.encode_name == step), None)
            case inspect.DictType():
                told = told.value_type
            case inspect.VarTupleType():
                told = told.item_type
            case _:
                return None
    return told
