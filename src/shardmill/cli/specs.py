"""From the options of a command to the `[work]` and `[execution]` of a spec."""

from __future__ import annotations

from typing import Any

from shardmill.errors import UsageError


def read_options(spec: Any, options: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The `[work]` and `[execution]` of a spec file, overridden by the options of a command."""
    from shardmill.spec import read_spec, sort_options

    named = {name: options.pop(name, None) for name in ("hosts", "partition", "address", "image")}
    engine = dict(key_values(options.pop("set_", None), "--set", "account=mine"))
    engine |= {name: value for name, value in named.items() if value is not None}
    params = parameters(options.pop("param", None))
    work, execution = sort_options({**options, "params": params, "engine_options": engine or None})
    tables = read_spec(spec) if spec else {"work": {}, "execution": {}}
    for name in ("params", "to"):
        if whole := {**tables["work"].get(name, {}), **work.get(name, {})}:
            work[name] = whole
    return {**tables["work"], **work}, {**tables["execution"], **execution}


def parameters(given: list[str] | None) -> dict[str, Any]:
    """The values of --param by their keys."""
    return {key: _toml_value(value) for key, value in key_values(given, "--param", "dims=256")}


def key_values(given: list[str] | None, flag: str, example: str) -> list[tuple[str, str]]:
    """The keys and values of an option that is given several times."""
    found = []
    for each in given or ():
        key, equals, value = each.partition("=")
        if not (key and equals):
            raise UsageError(f"{flag} {each!r} is not KEY=VALUE.", hint=f"For example: {flag} {example}")
        found.append((key, value))
    return found


def _toml_value(text: str) -> Any:
    """Parse a value as TOML, else take it as text."""
    import tomllib

    try:
        return tomllib.loads(f"value = {text}")["value"]
    except ValueError:
        return text
