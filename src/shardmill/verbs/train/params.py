"""The parameters of the `train` task, which are options of its verb."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from shardmill.plan.limits import ErrorLimit
from shardmill.plan.options import HELD_OUT, LEARNING, LIMITS, MODEL, PAIRS, Params, option

Loss = Literal["in-batch", "cosent", "cosine", "triplet"]
# The column of mined negatives.
NEGATIVE = "negative"
LABELLED = ("cosent", "cosine")
# What a model is measured by on held-out items.
DEPTH = 10
MRR, SPEARMAN = f"mrr@{DEPTH}", "spearman"


def _as_names(value: object) -> object:
    """Comma-separated names, or a list of them."""
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _as_numbers(value: object) -> object:
    if not isinstance(value, str) or not value.strip():
        return value
    try:
        return tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise ValueError(f"dims is {value}, and not whole numbers with commas between them") from error


def _as_limit(value: str) -> str:
    ErrorLimit.parse(value)
    return value


# Whole groups are held out, so the share differs from what was asked for; this much of it is near.
_NEAR = 0.2


class PairParams(Params):
    """What is learnt from: two columns are pairs, three are triplets, two and a label are labelled pairs.

    `hard_negatives` is an embed run whose passages become the third column of pairs.
    """

    columns: Annotated[tuple[str, ...], BeforeValidator(_as_names)] = option(
        (),
        "Texts that belong together, and a third that does not.",
        group=PAIRS,
        metavar="COLUMNS",
        common=True,
        shown="anchor,positive",
        accepts="str | Sequence[str]",
    )
    label: str = option(
        "",
        "The column with a number for each pair: the higher, the closer.",
        group=PAIRS,
        metavar="COLUMN",
        common=True,
    )
    prompts: dict[str, str] = option(
        {}, "Prompts before the texts, by column.", group=PAIRS, only="python", accepts="Mapping[str, str]"
    )
    hard_negatives: str = option(
        "",
        "An embed run of passages, by the same model: the nearest wrong passage is a third text.",
        group=PAIRS,
        metavar="RUN",
    )


class LearningParams(Params):
    """How the model learns. `batch` is the number of items per step on all processes together."""

    model: str = option(
        "",
        "A sentence-transformers folder, its URL (s3://…), or a hub name.",
        group=MODEL,
        metavar="MODEL",
        common=True,
        needed=True,
        min_length=1,
    )
    loss: Loss | None = option(
        None,
        "in-batch, cosent, cosine or triplet.",
        group=LEARNING,
        metavar="LOSS",
        common=True,
        shown="in-batch; cosent with --label",
    )
    lora: int | None = option(
        None,
        "Train a LoRA adapter of this rank; the model's own weights stay.",
        group=LEARNING,
        metavar="RANK",
        shown="all weights learn",
        ge=1,
    )
    lora_alpha: float | None = option(
        None, "Alpha of the adapter, whose scale is alpha / rank.", group=LEARNING, metavar="X", shown="2 ranks", gt=0
    )
    temperature: float = option(0.05, "Softmax temperature of the loss.", group=LEARNING, metavar="T", gt=0)
    dims: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_as_numbers)] = option(
        (),
        "Train vectors that can be truncated to these lengths (Matryoshka).",
        group=LEARNING,
        metavar="N,N,…",
        accepts="str | Sequence[int]",
    )
    batch: int = option(
        64, "Items per step, on all processes together.", group=LEARNING, metavar="N", common=True, ge=1
    )
    epochs: int = option(1, "Number of epochs.", group=LEARNING, metavar="N", common=True, ge=1)
    learning_rate: float = option(
        5e-5, "Peak learning rate.", group=LEARNING, metavar="X", common=True, shown="5e-5", gt=0
    )
    weight_decay: float = option(0.01, "Weight decay of AdamW.", group=LEARNING, metavar="X", ge=0)
    warmup: float = option(0.1, "Share of the steps that warm up.", group=LEARNING, metavar="SHARE", ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant"] = option(
        "linear", "Decay of the learning rate: linear, cosine or constant.", group=LEARNING, metavar="HOW"
    )
    clip: float = option(1.0, "Maximum gradient norm.", group=LEARNING, metavar="X", shown="1", gt=0)
    seed: int = option(
        0,
        "Random seed of the order and of the held-out part.",
        group=LEARNING,
        metavar="SEED",
        shown="0",
        ge=0,
        lt=1 << 63,
    )
    max_tokens: int | None = option(
        None, "Tokens of a text at most.", group=LEARNING, metavar="N", shown="the model's limit", ge=1
    )


class EvaluationParams(Params):
    """How the model is evaluated, and how often it is saved.

    Items that agree in `split_by`, by default in their second column, are on the same side.
    """

    held_out: float = option(
        0.1, "Share of the items to evaluate on; 0 for none.", group=HELD_OUT, metavar="SHARE", ge=0, lt=1
    )
    split_by: str = option(
        "",
        "Items that agree in this column are on the same side.",
        group=HELD_OUT,
        metavar="COLUMN",
        shown="the second column",
    )
    evaluate_every: int | None = option(
        None, "Steps between evaluations.", group=HELD_OUT, metavar="N", shown="once per epoch", ge=1
    )
    checkpoint_every: int | None = option(
        None, "Steps between checkpoints.", group=LIMITS, metavar="N", shown="every 60 s", ge=1
    )


class TrainParams(PairParams, LearningParams, EvaluationParams):
    """The parameters of the task. `max_errors` is how many rows of the source may lack a text or their label."""

    max_errors: Annotated[str, AfterValidator(_as_limit)] = "1%"

    @model_validator(mode="after")
    def _fit(self) -> TrainParams:
        if len(self.columns) not in (2, 3):
            raise ValueError(f"columns names {len(self.columns)}, not two or three")
        if self.label and len(self.columns) != 2:
            raise ValueError(f"a label goes with two columns, not with {', '.join(self.columns)}")
        if len({*self.columns, self.label}) != len(self.columns) + 1:
            raise ValueError(f"a column is named twice: {', '.join(filter(None, (*self.columns, self.label)))}")
        if (self.objective in LABELLED) != bool(self.label):
            raise ValueError(f"the loss {self.objective} {'needs a' if not self.label else 'takes no'} label")
        if self.hard_negatives and (self.label or len(self.columns) != 2 or NEGATIVE in (*self.columns, self.split_by)):
            raise ValueError(f"hard negatives go with two columns, none called {NEGATIVE}, and no label")
        if self.objective == "triplet" and len(self.columns) != 3 and not self.hard_negatives:
            raise ValueError("the loss triplet needs three columns")
        if self.batch == 1 and (self.learns_from_others or self.objective == "cosent"):
            raise ValueError(f"a batch of 1 teaches nothing: the loss {self.objective} compares the items of a batch")
        if self.lora_alpha is not None and self.lora is None:
            raise ValueError("lora_alpha is given without lora, the rank of the adapter")
        unknown = [name for name in self.prompts if name not in self.columns]
        if unknown:
            raise ValueError(f"a prompt is for {unknown[0]}, which is not among the columns {', '.join(self.columns)}")
        return self

    @property
    def objective(self) -> Loss:
        return self.loss or ("cosent" if self.label else "in-batch")

    @property
    def adapter(self) -> tuple[int, float] | None:
        """The rank and the alpha of the adapter; None if all weights learn."""
        return None if self.lora is None else (self.lora, self.lora_alpha or 2.0 * self.lora)

    @property
    def learns_from_others(self) -> bool:
        """Whether the only wrong texts of an item are those of other items."""
        return self.objective == "in-batch" and len(self.columns) == 2 and not self.hard_negatives

    @property
    def metric(self) -> str:
        """What held-out items are measured by; "" if none are held out."""
        return (SPEARMAN if self.label else MRR) if self.held_out else ""

    @property
    def split_column(self) -> str:
        return self.split_by or self.columns[1]

    def describe_held_out(self, trained_on: int, held_out: int) -> str:
        """The share of the items that was held out and, if that is far from what was asked for, why."""
        items = trained_on + held_out
        share = held_out / max(1, items)
        said = f"{share:.0%} of all"
        if abs(share - self.held_out) <= max(_NEAR * self.held_out, 1 / max(1, items)):
            return said
        return f"{said}, not {self.held_out:.0%} as asked for: items of one {self.split_column!r} stay together"
