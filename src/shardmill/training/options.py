"""What a training run depends on."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from shardmill.spec import ErrorLimit

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


class TrainOptions(BaseModel):
    """Two columns are pairs, three are triplets, two and a label are labelled pairs.

    `batch` is the number of items per step on all processes together. `prompts` are put before the texts of a column.
    `hard_negatives` is an embed run whose passages become the third column of pairs. `dims` are the lengths at which a
    Matryoshka loss cuts the vectors. `held_out` is the share of items that is not trained on; items that agree in
    `split_by`, by default in their second column, are on the same side. `max_errors` is how many rows of the source may
    lack a text or their label.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1)
    columns: Annotated[tuple[str, ...], BeforeValidator(_as_names)]
    label: str = ""
    prompts: dict[str, str] = {}
    hard_negatives: str = ""
    loss: Loss | None = None
    temperature: float = Field(default=0.05, gt=0)
    dims: Annotated[tuple[Annotated[int, Field(ge=1)], ...], BeforeValidator(_as_numbers)] = ()
    batch: int = Field(default=64, ge=1)
    epochs: int = Field(default=1, ge=1)
    learning_rate: float = Field(default=5e-5, gt=0)
    weight_decay: float = Field(default=0.01, ge=0)
    warmup: float = Field(default=0.1, ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant"] = "linear"
    clip: float = Field(default=1.0, gt=0)
    seed: int = Field(default=0, ge=0, lt=1 << 63)
    max_tokens: int | None = Field(default=None, ge=1)
    held_out: float = Field(default=0.1, ge=0, lt=1)
    split_by: str = ""
    max_errors: Annotated[str, AfterValidator(_as_limit)] = "1%"
    evaluate_every: int | None = Field(default=None, ge=1)
    checkpoint_every: int | None = Field(default=None, ge=1)

    @model_validator(mode="after")
    def _fit(self) -> TrainOptions:
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
        unknown = [name for name in self.prompts if name not in self.columns]
        if unknown:
            raise ValueError(f"a prompt is for {unknown[0]}, which is none of the columns {', '.join(self.columns)}")
        return self

    @property
    def objective(self) -> Loss:
        return self.loss or ("cosent" if self.label else "in-batch")

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
