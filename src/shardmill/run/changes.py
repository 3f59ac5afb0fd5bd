"""What changed between two plans: whether a run of one can resume with the other."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from shardmill.core.functions import changed_parts
from shardmill.plan import NEW_NUMERICS, NUMERICS, Plan, SourceStat, new_numerics, without_server

_SHOWN = 200


def differences(old: Plan, new: Plan) -> list[str]:
    """What changed between two plans, in words; empty if a run of one can resume with the other."""
    if old.work.task != new.work.task:
        return [f"the task was {old.work.task!r} and is {new.work.task!r}", *_source_changes(old, new)]
    changes = []
    before, after = (plan.work.model_dump(mode="json", exclude={"to": {"url"}}) for plan in (old, new))
    for name in before:
        # A wave is the generation of a study, which is one of its parameters; no row depends on what tells its change.
        if name in ("source", "params", "items", "wave", "changed_since", "follow"):
            continue
        # A folder of pictures may move.
        if name == "root" and before[name] and after[name]:
            continue
        if before[name] != after[name]:
            changes.append(f"{name} was {before[name]!r} and is {after[name]!r}")
    had, has = old.work.items, new.work.items
    if had and (has or 0) < had:
        changes.append(f"the run had {had:,} items and has {has or 0:,}: they can be raised, not lowered")
    given, wanted = (without_server(each["params"]) for each in (before, after))
    # The code of a function is in the fingerprint, by its digest.
    changes += _param_changes({**given, "code": ""}, {**wanted, "code": ""})
    if not changes and before["wave"] != after["wave"]:
        changes.append(f"wave was {before['wave']!r} and is {after['wave']!r}")
    if new_numerics(old.fingerprint, new.fingerprint):
        changes.append(NEW_NUMERICS)
    for name in changed_parts(old.fingerprint, new.fingerprint):
        if name != NUMERICS:
            was, is_ = old.fingerprint.get(name), new.fingerprint.get(name)
            changes.append(f"the {_name_part(name, new)} changed ({was} -> {is_})")
    if not (had and has) or new.work.group_by:
        changes += _source_changes(old, new)
    if not changes and old.stat.columns != new.stat.columns:
        changes.append(f"the types of the columns were {old.stat.columns} and are {new.stat.columns}")
    return changes


def differences_of_work(old: Plan, new: Plan) -> tuple[list[str], list[str]]:
    """How the work of two plans differs, whatever their sources hold: in what a row is made from, and else.

    A row is made from a text, parameters, a model and code.
    """
    work = new.work.model_copy(update={"edition": old.work.edition})
    made = {name: getattr(old.work, name) for name in ("text", "fields", "params")}
    other = differences(old, Plan.of(work.model_copy(update=made), old.stat, old.fingerprint, old.shards))
    if old.work.source != work.source:
        other.insert(0, f"the source was {', '.join(old.work.source)} and is {', '.join(work.source)}")
    every = differences(old, Plan.of(work, old.stat, new.fingerprint, old.shards))
    return [each for each in every if each not in other], other


def _name_part(part: str, plan: Plan) -> str:
    call = plan.work.params.get("call")
    names = {"function": f"function {call}", "imports": f"code that {call} imports", "optuna": "version of Optuna"}
    return names.get(part, f"model's {part}")


def _param_changes(given: Mapping[str, Any], wanted: Mapping[str, Any], inside: str = "") -> list[str]:
    """The parameters that differ; of tables with many, such as a space, those inside that do."""
    changes = []
    for name in sorted({*given, *wanted}):
        was, is_ = given.get(name), wanted.get(name)
        if was == is_:
            continue
        if isinstance(was, Mapping) and isinstance(is_, Mapping) and len(repr((was, is_))) > _SHOWN:
            changes += _param_changes(was, is_, f"{inside}{name}.")
        else:
            changes.append(f"{inside}{name} was {_shown(was)} and is {_shown(is_)}")
    return changes


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _source_changes(old: Plan, new: Plan) -> list[str]:
    return _database_changes(old.stat, new.stat) if old.work.query else _file_changes(old.stat, new.stat)


def _database_changes(old: SourceStat, new: SourceStat) -> list[str]:
    """Compare databases only: rows may change during a run without making it another source."""
    was, is_ = (", ".join(f.tag for f in stat.files) for stat in (old, new))
    return [f"the database was {was} and is {is_}"] if was != is_ else []


def _run_changes(old: SourceStat, new: SourceStat) -> list[str]:
    """Compare the runs that are read by their plans and by the digests of their parts, wherever they are now."""
    was, is_ = (", ".join(dict.fromkeys(f.run for f in stat.files)) for stat in (old, new))
    if was != is_:
        return [f"the run that it reads had the plan {was or 'of none'} and has {is_ or 'none'}"]
    same = [f.edges for f in old.files] == [f.edges for f in new.files]
    return [] if same else [f"the run that it reads, of the plan {was}, was made again"]


def _file_changes(old: SourceStat, new: SourceStat) -> list[str]:
    if any(f.run for f in (*old.files, *new.files)):
        return _run_changes(old, new)
    if [f.name for f in old.files] != [f.name for f in new.files]:
        return [f"the source had {_count(old)} and has {_count(new)}"]
    changes = []
    for was, is_ in zip(old.files, new.files, strict=True):
        if was.size_bytes != is_.size_bytes:
            changes.append(f"{was.name} had {was.size_bytes:,} bytes and has {is_.size_bytes:,}")
        elif (was.tag, was.edges) != (is_.tag, is_.edges):
            changes.append(f"{was.name} was written again ({was.tag} -> {is_.tag})")
    if not changes and [f.columns for f in old.files] != [f.columns for f in new.files]:
        changes.append("columns of its table have other names or types")
    return changes


def _count(stat: SourceStat) -> str:
    names = [f.name for f in stat.files]
    return f"{len(names)} files" if len(names) > 3 else ", ".join(names)
