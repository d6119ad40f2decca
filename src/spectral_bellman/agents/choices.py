"""Choices: settings that have settings of their own.

A choice (the representation, the exploration, the solver of θ̂) is a frozen dataclass with a name.
``override`` changes a nested config by flat names, as they are given on the command line. It
refuses a setting that the chosen one has no use for, and says which one has it.
"""

import dataclasses
import numbers
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

from spectral_bellman._names import did_you_mean, flag_of

C = TypeVar("C")


@dataclass(frozen=True)
class Choice:
    """One way to do something, with the numbers that it uses."""

    name: ClassVar[str]
    """The value on the command line."""
    kind: ClassVar[str]
    """The setting that names the choice."""


KINDS: dict[str, dict[str, type[Choice]]] = {}
"""kind -> name -> the class of its settings."""


def register(choice: type[Choice]) -> None:
    """Make a choice known by its name."""
    KINDS.setdefault(choice.kind, {})[choice.name] = choice


def require(config: Any, name: str, holds: bool, what: str) -> None:
    """Refuse a setting that is out of its range."""
    if not holds:
        raise ValueError(f"{flag_of(name)} must be {what}, got {getattr(config, name)}")


def require_all(config: Any, **bounds: tuple[str, ...]) -> None:
    """Refuse settings that are out of range; ``bounds`` is range -> names of settings."""
    checks = {
        "count": (lambda x: x >= 1, "at least 1"),
        "not_negative": (lambda x: x >= 0, "0 or more"),
        "positive": (lambda x: x > 0, "positive"),
        "share": (lambda x: 0 <= x <= 1, "between 0 and 1"),
    }
    for bound, names in bounds.items():
        holds, what = checks[bound]
        for name in names:
            require(config, name, holds(getattr(config, name)), what)


def flat(config: Any) -> dict[str, Any]:
    """Every setting of a nested config by its own name; a choice goes by its kind."""
    found: dict[str, Any] = {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        if isinstance(value, Choice):
            found[value.kind] = value.name
            found |= flat(value)
        elif dataclasses.is_dataclass(value):
            found |= flat(value)
        else:
            found[field.name] = value
    return found


def users(name: str) -> list[str]:
    """The choices that have a setting, as "kind name". A nested choice goes by its kind."""

    def names(choice: type[Choice]) -> set[str]:
        fields = [field.name for field in dataclasses.fields(choice)]
        return {*fields, *(getattr(getattr(choice, field, None), "kind", "") for field in fields)}

    return [
        f"{kind} {choice.name}"
        for kind, choices in KINDS.items()
        for choice in choices.values()
        if name in names(choice)
    ]


def override(config: C, changes: Mapping[str, Any]) -> C:
    """The config with settings changed by their flat names.

    Raises:
      ValueError: there is no such setting, or the chosen representation, exploration or solver
        does not use it.
    """
    result, used = _override(config, changes)
    for name in changes:
        if name not in used:
            _refuse(name, flat(result))
    return result


def suited(config: C, changes: Mapping[str, Any]) -> C:
    """The config with those changes that it has a use for; the others are left out."""
    return _override(config, changes)[0]


def _override(config: C, changes: Mapping[str, Any]) -> tuple[C, set[str]]:
    new: dict[str, Any] = {}
    used: set[str] = set()
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if isinstance(value, Choice) and value.kind in changes:
            value = _chosen(value, changes[value.kind])
            used.add(value.kind)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value, inside = _override(value, changes)
            used |= inside
        elif field.name in changes:
            value = checked(config, field.name, changes[field.name])
            used.add(field.name)
        new[field.name] = value
    return type(config)(**new), used


def _chosen(current: Choice, name: Any) -> Choice:
    if isinstance(name, Choice):
        return name
    choices = KINDS[current.kind]
    if name not in choices:
        hint = did_you_mean(str(name), choices) or f"choose one of {', '.join(choices)}"
        raise ValueError(f"there is no {flag_of(current.kind)} {name!r}; {hint}")
    return current if name == current.name else choices[name]()


def _refuse(name: str, settings: Mapping[str, Any]) -> None:
    flag = flag_of(name)
    if found := users(name):
        kinds = sorted({user.partition(" ")[0] for user in found})
        have = " and ".join(f"{kind} {settings[kind]}" for kind in kinds if kind in settings)
        raise ValueError(
            f"{flag} has no use here ({have or 'nothing reads it'}): it is a setting of "
            f"{', '.join(found)}"
        )
    known = {
        *settings,
        *(f.name for k in KINDS.values() for c in k.values() for f in dataclasses.fields(c)),
    }
    hint = did_you_mean(name, known)
    raise ValueError(f"there is no setting {name!r}" + (f"; {hint}" if hint else ""))


def to_json(config: Any) -> dict[str, Any]:
    """A nested config as JSON; a choice has its name beside its settings."""
    found: dict[str, Any] = {"name": config.name} if isinstance(config, Choice) else {}
    for field in dataclasses.fields(config):
        value = getattr(config, field.name)
        found[field.name] = to_json(value) if dataclasses.is_dataclass(value) else value
    return found


def from_json(config: C, content: Mapping[str, Any]) -> C:
    """A config like ``config`` with the settings of ``to_json``, all of which must be there.

    Raises:
      ValueError: a setting is missing, unknown or of another type.
    """
    new: dict[str, Any] = {}
    rest = set(content) - ({"name"} if isinstance(config, Choice) else set())
    for field in dataclasses.fields(config):  # type: ignore[arg-type]
        value = getattr(config, field.name)
        if field.name not in content:
            raise ValueError(f"the setting {field.name} is missing")
        rest.discard(field.name)
        given = content[field.name]
        if isinstance(value, Choice):
            if not isinstance(given, Mapping) or given.get("name") not in KINDS[value.kind]:
                raise ValueError(f"the setting {field.name} names no {value.kind}")
            value = KINDS[value.kind][given["name"]]()
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            new[field.name] = from_json(value, given)
        else:
            new[field.name] = checked(config, field.name, given)
    if rest:
        raise ValueError(f"there is no setting {', '.join(sorted(rest))}")
    return type(config)(**new)


def checked(config: Any, name: str, given: Any) -> Any:
    """A value for a setting, if it has the setting's type; whole numbers do for real ones.

    Raises:
      ValueError: it has another type, or is none of the names that there are.
    """
    flag = flag_of(name)
    kind = typing.get_type_hints(type(config))[name]
    if typing.get_origin(kind) is Literal:
        names = typing.get_args(kind)
        if given not in names:
            hint = did_you_mean(str(given), names) or f"choose one of {', '.join(names)}"
            raise ValueError(f"{flag} cannot be {given!r}; {hint}")
        return given
    default = getattr(config, name)
    if default is None:
        if given is not None:
            raise ValueError(f"{flag} is for other environments")
        return None
    whole = isinstance(given, numbers.Integral) and not isinstance(given, bool)
    if isinstance(default, bool):
        fits, what = isinstance(given, bool), "true or false"
    elif isinstance(default, int):
        fits, what = whole, "a whole number"
    elif isinstance(default, float):
        fits = whole or (isinstance(given, numbers.Real) and not isinstance(given, bool))
        what = "a number"
    elif isinstance(default, tuple):
        fits = isinstance(given, list | tuple) and all(type(x) is int for x in given)
        what = "a list of whole numbers"
    else:
        fits, what = isinstance(given, str), "text"
    if not fits:
        raise ValueError(f"{flag} must be {what}, got {given!r}")
    return type(default)(given)
