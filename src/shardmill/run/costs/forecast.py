"""Forecasts of a run's time, cost and memory on any listed device, and which device to choose.

forecast = make_forecast(spec, gpus="8xT4", deadline="2h", budget="5USD")
forecast.asked.seconds.likely
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa

from shardmill.core.devices import Device, cores, gpus
from shardmill.core.errors import ModelError, UsageError
from shardmill.models.folder import ModelFolder
from shardmill.models.memory import identify_model, recall_by_device
from shardmill.plan import Plan, Shard
from shardmill.plan.limits import parse_usd
from shardmill.plan.sizing.catalogue import CPU, Catalogue, Chip, load_catalogue
from shardmill.plan.sizing.measured import Measured
from shardmill.plan.sizing.memory import Need, embedding_need
from shardmill.plan.sizing.options import COUNTS, Option, Workload, choose, estimate_option, fewest
from shardmill.plan.sizing.prices import price_chip
from shardmill.plan.sizing.shape import Shape, read_shape
from shardmill.plan.sizing.speed import find_speed
from shardmill.plan.spec import Spec, parse_duration
from shardmill.run.costs.rates import known_rates
from shardmill.run.planner import make_plan
from shardmill.sources import Fields, Source, open_source
from shardmill.tasks import open_task
from shardmill.tasks.base import Task, add_bytes, fields_of

_Known = TypeVar("_Known", Measured, Need)

_PLACES, _ITEMS_A_PLACE = 16, 128
_SMALLEST_PLACE_BYTES = 16 << 10


@dataclass(frozen=True, slots=True)
class Forecast:
    """`asked` is the requested option, `options` the alternatives, and `best` the cheapest within the limits."""

    plan: str
    source_bytes: int
    work: Workload
    sampled_items: int
    sampled_places: int
    model: str
    parameters: int | None
    shards: int
    largest_shard_bytes: int
    asked: Option
    options: tuple[Option, ...]
    best: Option | None
    advice: str

    def to_json(self) -> dict[str, Any]:
        return {**asdict(self), "mean_tokens": self.work.mean_tokens}


@dataclass(frozen=True, slots=True)
class _Model:
    """A model's shape, and its measured rates and memory needs by device."""

    task: Task
    shape: Shape | None
    rates: dict[str, Measured]
    needs: dict[str, Need]

    def option(self, work: Workload, chip: Chip, count: int) -> Option | None:
        speed = find_speed(chip, self.shape, work.input_tokens, self.rates.get(chip.name))
        if speed is None:
            return None
        estimated = embedding_need(self.shape, dtype_bytes=2 if chip.name != CPU else 4) if self.shape else None
        need = self.needs.get(chip.name, estimated)
        basis = "measured here" if chip.name in self.needs else "estimated from the model's config"
        if chip.name in self.rates:
            chip = chip.model_copy(update={"usd": price_chip(chip, cores())})
        return estimate_option(work, chip, count, speed, need, sharing=self.sharing(chip), memory_basis=basis)

    def sharing(self, chip: Chip) -> int:
        return int(self.task.workers_per_gpu(chip.cores)) if chip.name != CPU else 1


def make_forecast(
    spec: Spec,
    *,
    gpus: str | None = None,
    deadline: str | None = None,
    budget: str | None = None,
    catalogue: Path | None = None,
) -> Forecast:
    """Estimate what a run would take; only the tokenizer runs, on a sample of the source."""
    known = load_catalogue(catalogue)
    count, chip = parse_gpus(gpus, known)
    deadline_s = None if deadline is None else _deadline_s(deadline)
    budget_usd = None if budget is None else parse_money(budget)
    plan = make_plan(spec, [Device("cpu", "cpu") if chip.name == CPU else Device("cuda", chip.name)] * count)
    task = open_task(spec.work.task, spec.work.params)
    work, sampled, places = sample_source(plan, task)
    model = _describe_model(task, plan, spec.execution.precision, known)
    asked = model.option(work, chip, count)
    if asked is None:
        raise UsageError(
            "The speed of this task cannot be estimated: the size of its model is unknown.",
            hint="Run it once on this machine; later forecasts use the measured speed.",
        )
    options = _options(model, work, chip, count, known)
    best = choose([asked, *options], deadline_s, budget_usd)
    limited = deadline_s is not None or budget_usd is not None
    return Forecast(
        plan=plan.id,
        source_bytes=plan.stat.size_bytes,
        work=work,
        sampled_items=sampled,
        sampled_places=places,
        model=plan.fingerprint.get("model", spec.work.task),
        parameters=model.shape.parameters if model.shape else None,
        shards=len(plan.shards),
        largest_shard_bytes=max((s.weight_bytes for s in plan.shards), default=0),
        asked=asked,
        options=tuple(options),
        best=best if limited else None,
        advice="" if best or not limited else _advise(model, work, chip, known, deadline_s, budget_usd),
    )


def sample_source(plan: Plan, task: Task) -> tuple[Workload, int, int]:
    """Estimate a source's work from a sample; also returns the number of sampled items and places."""
    work = plan.work
    source = open_source(plan.stat, Fields.of(work), work.max_item_bytes)
    pieces = source.shards(max(_SMALLEST_PLACE_BYTES, plan.stat.size_bytes // _PLACES))
    rows, size_bytes, costs = 0, 0.0, [np.zeros(0, np.int64)]
    for piece in pieces[:: max(1, len(pieces) // _PLACES)]:
        texts, fields, read_bytes = _first_items(source, piece, task)
        rows, size_bytes = rows + len(texts), size_bytes + read_bytes
        costs.append((task.prepare(texts) if fields is None else task.prepare(texts, fields)).costs)
    if not rows or not size_bytes:
        return Workload(0, 0, 0), 0, len(costs) - 1
    lengths = np.concatenate(costs)
    items = max(rows, round(sum(p.weight_bytes for p in pieces) * rows / size_bytes))
    items = min(items, work.limit or items)
    tokens, inputs = (round(items * count / rows) for count in (int(lengths.sum()), len(lengths)))
    return Workload(items, tokens, int(lengths.max(initial=0)), inputs), rows, len(costs) - 1


def _first_items(source: Source, piece: Shard, task: Task) -> tuple[list[str | None], pa.RecordBatch | None, float]:
    """The first texts of a piece that are taken, their fields, and the bytes of these items and those between them."""
    for batch in islice(source.read(piece), 1):
        taken = range(len(batch)) if batch.taken is None else batch.taken.nonzero()[0].tolist()
        some = taken[:_ITEMS_A_PLACE]
        seen = some[-1] + 1 if len(taken) > len(some) else len(batch)
        texts = batch.texts.to_pylist()
        fields = add_bytes(fields_of(task, batch.kept), batch.contents)
        own = None if fields is None else fields.take(pa.array(some, pa.int64()))
        return [texts[row] for row in some], own, batch.size_bytes * seen / max(1, len(batch))
    return [], None, 0.0


def _describe_model(task: Task, plan: Plan, precision: str, known: Catalogue) -> _Model:
    folder = task.folder
    shape = None
    if folder is not None:
        try:
            shape = read_shape(folder.config)
            if isinstance(folder, ModelFolder):
                shape = replace(shape, head_weights=folder.token_weights)
        except ModelError:
            shape = None
    rates = known_rates(plan, precision)
    measured = recall_by_device(identify_model(folder)) if folder is not None else {}
    weights_bytes = 2.0 * (shape.parameters + shape.head_weights) if shape else 0.0
    needs = {device: Need(weights_bytes, memory) for device, memory in measured.items()}
    return _Model(task, shape, _by_chip(rates, known), _by_chip(needs, known))


def _by_chip(found: dict[str, _Known], known: Catalogue) -> dict[str, _Known]:
    named = {device: known.find(device) for device in found}
    return {chip.name: found[device] for device, chip in named.items() if chip is not None}


def _options(model: _Model, work: Workload, chip: Chip, count: int, known: Catalogue) -> list[Option]:
    """Other numbers of the requested device, and the requested number of other devices."""
    wanted = [(chip, n) for n in COUNTS if chip.name != CPU or n == 1]
    wanted += [(other, 1 if other.name == CPU else count) for other in known.listed if other.name != chip.name]
    return [option for other, n in wanted if (option := model.option(work, other, n)) is not None]


def _advise(
    model: _Model,
    work: Workload,
    chip: Chip,
    known: Catalogue,
    deadline_s: float | None,
    budget_usd: float | None,
) -> str:
    """Options outside the table that would be within the limits."""
    enough = [_enough(model, work, c, deadline_s) for c in (chip, *known.listed) if c.name != CPU]
    fitting = [option for option in enough if option is not None and option.fits]
    priced = [option for option in fitting if option.usd is not None]
    said = []
    if (own := next((o for o in fitting if o.device == chip.name), None)) and deadline_s is not None:
        said.append(f"{own.gpus} x {own.device} would meet the deadline{_for_money(own)}.")
    cheapest = min(priced, key=lambda o: o.usd.high if o.usd else math.inf, default=None)
    if cheapest and budget_usd is not None and cheapest.usd and cheapest.usd.high > budget_usd:
        said.append(
            f"The cheapest option is {cheapest.gpus} x {cheapest.device}{_for_money(cheapest)}: raise the budget."
        )
    elif cheapest and cheapest.device != chip.name:
        said.append(f"The cheapest option would be {cheapest.gpus} x {cheapest.device}{_for_money(cheapest)}.")
    return " ".join(said) or "No number of these devices is within the limits."


def _enough(model: _Model, work: Workload, chip: Chip, deadline_s: float | None) -> Option | None:
    if model.option(work, chip, 1) is None:
        return None
    if deadline_s is None:
        return model.option(work, chip, 1)
    return fewest(lambda count: _not_none(model.option(work, chip, count)), deadline_s)


def _not_none(option: Option | None) -> Option:
    assert option is not None
    return option


def _for_money(option: Option) -> str:
    return f", for ${option.usd.low:,.2f} to ${option.usd.high:,.2f}" if option.usd else ""


def parse_gpus(text: str | None, known: Catalogue) -> tuple[int, Chip]:
    """ "8xT4" is eight T4, "T4" is one; None means this machine's GPUs, or its CPU."""
    if text is None:
        found = gpus()
        chip = known.find(found[0].name) if found else known.named(CPU)
        if chip is None:
            raise UsageError(f"{found[0].name} is not in the catalogue.", hint="Name a device: --gpus 8xT4")
        return max(1, len(found)), chip
    match = re.fullmatch(r"\s*(?:(\d+)\s*[x×]\s*)?(\S.*?)\s*", text, re.IGNORECASE)
    count = int(match[1] or 1) if match else 0
    if match is None or count < 1:
        raise UsageError(f"--gpus {text}: not a number of GPUs.", hint="Write it as 8xT4, or T4 for one.")
    return count, known.named(match[2])


def _deadline_s(text: str) -> float:
    try:
        return parse_duration(text)
    except ValueError as error:
        raise UsageError(f"--deadline {text}: not a time.", hint="Write it as 2h, 90min, 1h30m or 1d.") from error


def parse_money(text: str) -> float:
    """Dollars of "5USD", "$5" or "5".

    >>> parse_money("5USD")
    5.0
    """
    try:
        return float(str(parse_usd(text)))
    except ValueError as error:
        raise UsageError(f"--budget {text}: not an amount of money.", hint="Write it as 5USD.") from error


def rows_of(forecast: Forecast) -> Sequence[Option]:
    """Every option once: the requested device by number, then the others."""
    found = {(option.device, option.gpus): option for option in (forecast.asked, *forecast.options)}
    own = sorted((o for o in found.values() if o.device == forecast.asked.device), key=lambda option: option.gpus)
    return [*own, *(o for o in found.values() if o.device != forecast.asked.device)]
