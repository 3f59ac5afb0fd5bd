"""A run decodes as its model's own settings say; one that an earlier version began goes on as it began."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tiny_models import needed

torch, transformers = needed("torch"), needed("transformers")

from shardmill.core.devices import Device  # noqa: E402
from shardmill.core.errors import StaleResume  # noqa: E402
from shardmill.ledger import Ledger  # noqa: E402
from shardmill.models.replies import LocalModel  # noqa: E402
from shardmill.plan.spec import Spec, make_spec  # noqa: E402
from shardmill.run import Run, start  # noqa: E402
from shardmill.run.planner import make_plan  # noqa: E402
from shardmill.run.refreshing import refresh  # noqa: E402
from shardmill.testing import InProcessEngine  # noqa: E402
from tests.support.generative_models import write_generative  # noqa: E402
from tests.support.summaries import NEWS  # noqa: E402

CPU = Device("cpu", "cpu", 1)
LIMITS = {"device": "cpu", "precision": "float32"}
# As BART for summaries has them.
SAID = {
    "num_beams": 4, "max_length": 30, "min_length": 5, "no_repeat_ngram_size": 3, "length_penalty": 2.0,
    "early_stopping": True,
}  # fmt: skip
VERBS = {"summarize": {"method": "generative"}, "generate": {}}


@pytest.fixture(scope="module")
def bart(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_generative(tmp_path_factory.mktemp("bart") / "model", "Bart", generation=SAID)


def spec_of(source: Path, model: Path, task: str, **params: Any) -> Spec:
    work = {"source": str(source), "text": "article", "id": "id", "task": task}
    return make_spec({**work, "params": {"model": str(model), **VERBS[task], **params}}, LIMITS)


def written(run: Run) -> list[str]:
    column = "summary" if run.plan.work.task == "summarize" else "output"
    return [row[column] for row in sorted(run.table().to_pylist(), key=lambda row: row["id"])]


def due(folder: Path, **options: Any) -> list[str]:
    """What transformers writes, by the model's own settings unless others are given."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(str(folder))
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(str(folder), dtype=torch.float32).eval()
    found = []
    for item in NEWS:
        sent = tokenizer(str(item["article"]), return_tensors="pt", return_token_type_ids=False)
        with torch.inference_mode():
            ids = model.generate(**sent, **options)[0]
        found.append(tokenizer.decode(ids, skip_special_tokens=True).strip())
    return found


@pytest.mark.parametrize("task", VERBS)
def test_the_default_is_that_of_transformers(
    tmp_path: Path, write_jsonl: Callable[..., Path], bart: Path, task: str
) -> None:
    source = write_jsonl(NEWS)
    run = start(spec_of(source, bart, task), tmp_path / "run", engine=InProcessEngine())
    assert [text.strip() for text in written(run)] == due(bart)
    assert {name: run.plan.work.params[name] for name in ("beams", "max_tokens")} == {"beams": 4, "max_tokens": 29}
    given = start(spec_of(source, bart, task, beams=1, max_tokens=12), tmp_path / "given", engine=InProcessEngine())
    assert [text.strip() for text in written(given)] == due(bart, num_beams=1, max_new_tokens=12)
    assert due(bart) != due(bart, num_beams=1)


@pytest.mark.parametrize("task", VERBS)
def test_a_run_that_began_without_goes_on_without(
    tmp_path: Path, write_jsonl: Callable[..., Path], bart: Path, task: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(write_jsonl(NEWS), bart, task)
    with monkeypatch.context() as earlier:
        earlier.setattr(LocalModel, "follow_model", lambda model: {})
        old = make_plan(spec, [CPU])
    assert old.work.params == spec.work.params
    Ledger(tmp_path / "run").create(old)
    run = start(spec, tmp_path / "run", engine=InProcessEngine())
    assert run.plan.id == old.id
    most = {"summarize": 128, "generate": 256}[task]
    assert [text.strip() for text in written(run)] == due(bart, num_beams=1, max_new_tokens=most)
    assert run.verify(sample=6).verified
    with pytest.raises(StaleResume, match="beams was None and is 4"):
        start(spec_of(Path(spec.work.source[0]), bart, task, beams=4), tmp_path / "run", engine=InProcessEngine())


def test_an_edition_is_made_as_the_one_before(
    tmp_path: Path, write_jsonl: Callable[..., Path], bart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = spec_of(write_jsonl(NEWS), bart, "summarize")
    with monkeypatch.context() as earlier:
        earlier.setattr(LocalModel, "follow_model", lambda model: {})
        start(spec, tmp_path / "run", engine=InProcessEngine())
    write_jsonl([*NEWS, {**NEWS[0], "id": 9, "article": NEWS[0]["gold"]}])
    done = refresh(tmp_path / "run", engine=InProcessEngine())
    assert (done.reused, done.computed) == (len(NEWS), 1)
    assert Run(tmp_path / "run").plan.work.params == spec.work.params
