"""Answer questions over the passages of an embed run or of a table.

task = AnswerTask(over="runs/wiki")
task.open(Device("cpu", "cpu", threads=4))
task.answer(["Who built the tower?"])[0].text
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field

from shardmill.core.devices import Device
from shardmill.core.errors import SpecError, UsageError
from shardmill.core.sentences import split_sentences
from shardmill.models.embedder import TextEmbedder
from shardmill.models.kinds import READER, RERANKER, check_kind
from shardmill.models.location import Location, find_model
from shardmill.models.names import MINILM
from shardmill.models.pair_networks import check_installed
from shardmill.models.pair_tokens import lacks_types
from shardmill.models.rerankers.folder import read_reranker
from shardmill.models.rerankers.prompting import notes_of
from shardmill.models.retrieval.passages import Passage
from shardmill.models.retrieval.vectors import normalized
from shardmill.plan import NUMERICS
from shardmill.plugins import find_verb
from shardmill.sources.documents.document import PAGE_BREAK, find_pages
from shardmill.tasks.base import Agreement, Output, Prepared, Task
from shardmill.tasks.params import read_params
from shardmill.verbs.answer.params import AnswerParams
from shardmill.verbs.answer.retriever import FoundPassage, Retriever, Searched, look_up, open_retriever
from shardmill.verbs.answer.rows import (
    CUT,
    NO_ANSWER,
    OUTPUT,
    SENTENCE,
    SPAN,
    WRITTEN,
    Answer,
    check_answers,
    make_rows,
)
from shardmill.verbs.answer.writer import CitingWriter, Written

if TYPE_CHECKING:
    from shardmill.models.pairs import PairModel
    from shardmill.verbs.answer.reader import SpanReader

# A cross-encoder ranks this many times the passages that are wanted.
_RERANKED = 4
# Questions of a batch, without and with models that read passages on a CPU.
_TOGETHER, _FEW = 256, 8
# Passages whose sentences are kept with their vectors.
_REMEMBERED = 2_000

# Where the sentences of a passage are, and their vectors.
_Sentences = tuple[list[tuple[int, int]], NDArray[np.float32]]


class VectorParams(BaseModel):
    """Those parameters of the task that embedded the passages which a question is embedded by, too."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    model: str = Field(MINILM, min_length=1)
    adapter: str | None = None
    dims: int | None = Field(None, ge=1)
    prompt: str | None = None
    max_tokens: int | None = Field(None, ge=1)


class AnswerTask(Task):
    """The `answer` task: one answer per question, with the ids of the passages it was looked for in."""

    padded = False
    batch_budget = _FEW
    output = OUTPUT

    def __init__(self, **params: Any) -> None:
        self.params = read_params(AnswerParams, params, "answer")
        if self.params.reader is not None and self.params.generator is not None:
            raise SpecError("Both a reader and a generator are given.", hint="Give --reader or --generator.")
        if self.params.endpoint and self.params.generator is None:
            raise SpecError("An endpoint is given, but no generator.", hint="Name the server's model: --generator NAME")
        self._writer = self._open_writer()
        self._retriever: Retriever | None = None
        self._reader: SpanReader | None = None
        self._reranker: PairModel | None = None
        self._sentences: dict[str, _Sentences] = {}

    def _open_writer(self) -> CitingWriter | None:
        params = self.params
        return CitingWriter(params.generator, params.endpoint, params.key_variable) if params.generator else None

    @cached_property
    def _searched(self) -> Searched:
        return look_up(self.params.over)

    @cached_property
    def _embedder(self) -> TextEmbedder | None:
        """The model of the passages' vectors; None if neither the search nor the answer needs it."""
        if self.params.by == "words" and (self.params.reader or self.params.generator):
            return None
        there = self._searched
        if not find_verb(there.task).embeds_texts:
            raise UsageError(
                f"{self.params.over} was made by the task {there.task!r}, not by embed.",
                hint="Embed the passages: shardmill embed SOURCE --text FIELD --out RUN",
            )
        given = {**there.params, **({"model": self.params.model} if self.params.model else {})}
        own = read_params(VectorParams, given, there.task)
        embedder = TextEmbedder(
            own.model, dims=own.dims, prompt=own.prompt, max_tokens=own.max_tokens, adapter=own.adapter
        )
        here = embedder.fingerprint()
        changed = [name for name in here if name != "model" and here[name] != there.model.get(name)]
        if changed:
            raise UsageError(
                f"{self.params.over} was embedded with another model than the {here['model']} here "
                f"({', '.join(changed)} differ).",
                hint="Name the folder of the model it was embedded with: --model FOLDER",
            )
        return embedder

    @cached_property
    def _reader_at(self) -> Location | None:
        return _locate(self.params.reader, READER)

    @cached_property
    def _reranker_at(self) -> Location | None:
        return _locate(self.params.rerank, RERANKER)

    def fingerprint(self) -> dict[str, str]:
        found = dict(self._searched.identity)
        if self._embedder is not None:
            found |= self._embedder.fingerprint()
        numerics = [found.pop(NUMERICS, "")]
        for name, location in (("reader", self._reader_at), ("rerank", self._reranker_at)):
            if location is not None:
                found |= {f"{name} {part}": value for part, value in location.digests().items()}
        if self._writer is not None:
            written = self._writer.replies.fingerprint()
            numerics.append(written.pop(NUMERICS, ""))
            found |= {f"generator {part}": value for part, value in written.items()}
        # One entry, since it is the one that says why a run of an earlier version cannot be finished.
        revisions = ", ".join(dict.fromkeys(filter(None, numerics)))
        return {**found, NUMERICS: revisions} if revisions else found

    def follow_model(self) -> dict[str, Any]:
        places = [each.path for each in (self._reader_at, self._reranker_at) if each is not None]
        return {"named_types": True} if any(map(lacks_types, places)) else {}

    @property
    def plan_notes(self) -> list[str]:  # type: ignore[override]
        return [] if self._reranker_at is None else notes_of(read_reranker(self._reranker_at.path))

    @property
    def model_code(self) -> tuple[str, ...]:  # type: ignore[override]
        return self._writer.replies.model_code if self._writer is not None else ()

    def close(self) -> None:
        if self._writer is not None:
            self._writer.replies.close()

    def check_installed(self, kind: str) -> None:
        if self._embedder is not None:
            self._embedder.check_installed(kind)
        for location, model in ((self._reader_at, READER), (self._reranker_at, RERANKER)):
            if location is not None:
                check_installed(location.path, model, kind)
        if self._writer is not None:
            self._writer.replies.check_installed()

    def open(self, device: Device) -> None:
        """Open the passages and load the models."""
        if self._embedder is not None:
            # Questions are short, and in float32 the same passages are found whatever the batch.
            self._embedder.open(replace(device, precise=True))
        self._retriever = open_retriever(self.params.over, self.params.by)
        if self._reranker_at is not None:
            from shardmill.models.pairs import PairModel

            self._reranker = PairModel(self._reranker_at.path, RERANKER, device, named_types=self.params.named_types)
        if self._reader_at is not None:
            from shardmill.verbs.answer.reader import SpanReader

            named = self.params.named_types
            self._reader = SpanReader(self._reader_at, device, self.params.answer_tokens, named_types=named)
        if self._writer is not None:
            self._writer.replies.open(device)
        # A server is asked many questions at once.
        reads = self._reader_at or self._reranker_at or (self._writer if not self.params.endpoint else None)
        self.batch_budget = _FEW if reads and device.kind == "cpu" else _TOGETHER

    @property
    def notes(self) -> list[str]:  # type: ignore[override]
        """Sentences for the worker's record about how the models ran."""
        written = self._writer.replies.notes if self._writer is not None else []
        read = {"Re-ranker": self._reranker, "Reader": self._reader}
        pairs = [f"{name}: {model.note}." for name, model in read.items() if model is not None]
        return [*(self._embedder.notes if self._embedder is not None else []), *pairs, *written]

    @property
    def numerics(self) -> dict[str, str]:  # type: ignore[override]
        """Those of the generator, if there is one: all else is computed in float32."""
        if self._writer is not None:
            return self._writer.replies.numerics
        return dict(self._embedder.numerics) if self._embedder is not None else {}

    def gpu_bytes(self, precise: bool) -> int | None:
        places = [each for each in (self._reader_at, self._reranker_at) if each is not None]
        weights = sum(f.stat().st_size for each in places for f in each.path.glob("*.safetensors"))
        written = (self._writer.replies.gpu_bytes(precise) or 0) if self._writer is not None else 0
        return weights + written + ((self._embedder.gpu_bytes(precise) or 0) if self._embedder is not None else 0)

    def bytes_per_s(self, kind: str) -> float:
        """Questions are short and dear: a reader reads ten passages for each."""
        reads = self.params.reader or self.params.rerank or self.params.generator
        return {"cpu": 20.0 if reads else 2_000.0, "cuda": 2_000.0 if reads else 50_000.0}[kind]

    def agreement(self, precision: str) -> Agreement:
        """Near ties between passages, spans or words are settled by low bits, which depend on the batch."""
        written = self._writer is not None and (precision != "float32" or self.params.endpoint)
        return "none" if written else "mostly"

    def check_rows(self, rows: pa.RecordBatch) -> str | None:
        """Check that reasons, answers, ranges and lists of passages fit together."""
        return check_answers(rows, self.params.k)

    def measure(self, batches: Iterator[pa.RecordBatch]) -> dict[str, Any]:
        """How many questions have an answer."""
        reasons = [why for batch in batches for why in batch.column("finish_reason").to_pylist() if why]
        return {"answered": sum(why != NO_ANSWER for why in reasons), NO_ANSWER: reasons.count(NO_ANSWER)}

    def prepare(self, texts: Sequence[str | None], fields: pa.RecordBatch | None = None) -> Prepared:
        """Questions as they are; each costs one."""
        return Prepared(list(texts), np.array([text is not None for text in texts], np.int64))

    def run(self, inputs: Sequence[Any]) -> Output:
        answers = self.answer(inputs)
        bad = {i: a.fault for i, a in enumerate(answers) if a.fault}
        tokens = [a.tokens_out for a in answers], [a.tokens_in for a in answers]
        return Output(make_rows(answers), bad, *tokens)

    def answer(self, questions: Sequence[str]) -> list[Answer]:
        """Answer a batch of questions: find passages, rank them again, read them."""
        if self._retriever is None:
            raise RuntimeError("call open() before run()")
        vectors = self._embedder.embed_queries(questions) if self._embedder is not None else None
        depth = self.params.k * (_RERANKED if self._reranker is not None else 1)
        found = self._retriever.find(questions, vectors, depth)
        if self._reranker is not None:
            found = self._rank_again(self._reranker, questions, found)
        found = [passages[: self.params.k] for passages in found]
        if self._reader is not None:
            return self._read(self._reader, questions, found)
        if self._writer is not None:
            return [_as_written(*pair) for pair in zip(self._writer.write(questions, found), found, strict=True)]
        return self._pick_sentences(vectors, found)

    def _rank_again(
        self, reranker: PairModel, questions: Sequence[str], found: Sequence[Sequence[FoundPassage]]
    ) -> list[list[FoundPassage]]:
        pairs = [(q, each) for q, passages in zip(questions, found, strict=True) for each in passages]
        if not pairs:
            return [[] for _ in questions]
        tokens = reranker.encode([q for q, _ in pairs], [each.passage.text for _, each in pairs])
        scores = iter(reranker.score(tokens).tolist())
        scored = [[replace(each, score=next(scores)) for each in passages] for passages in found]
        return [sorted(passages, key=lambda each: -each.score) for passages in scored]

    def _read(
        self, reader: SpanReader, questions: Sequence[str], found: Sequence[Sequence[FoundPassage]]
    ) -> list[Answer]:
        pairs = [(q, each.passage.text) for q, passages in zip(questions, found, strict=True) for each in passages]
        readings = iter(reader.read([q for q, _ in pairs], [text for _, text in pairs]))
        answers = []
        for passages in found:
            read = [(each, next(readings)) for each in passages]
            best = max(read, key=lambda pair: pair[1].margin, default=None)
            answer = Answer(tuple(passages))
            if best is not None:
                (each, reading), span = best, best[1].span
                if span is None or -reading.margin > self.params.null_threshold:
                    answer = replace(answer, score=reading.null.probability)
                else:
                    answer = _at(answer, each, span.start, span.stop, span.probability, SPAN)
            answers.append(answer)
        return answers

    def _pick_sentences(
        self, vectors: NDArray[np.float32] | None, found: Sequence[Sequence[FoundPassage]]
    ) -> list[Answer]:
        """The sentence of the best passage that is nearest to the question."""
        assert vectors is not None
        known = self._embed_sentences([passages[0].passage.text for passages in found if passages])
        answers = []
        for vector, passages in zip(normalized(vectors), found, strict=True):
            answer = Answer(tuple(passages))
            ranges, made = known[passages[0].passage.text] if passages else ([], np.zeros((0, 1), np.float32))
            if ranges:
                scores = np.nan_to_num(made @ vector, nan=-1.0)
                best = int(scores.argmax())
                answer = _at(answer, passages[0], *ranges[best], float(scores[best]), SENTENCE)
            answers.append(answer)
        return answers

    def _embed_sentences(self, texts: Sequence[str]) -> dict[str, _Sentences]:
        """The sentences of each text; those of passages that answered earlier questions are remembered."""
        assert self._embedder is not None
        new = [text for text in dict.fromkeys(texts) if text not in self._sentences]
        ranges = [split_sentences(text) for text in new]
        sentences = [text[a:b] for text, own in zip(new, ranges, strict=True) for a, b in own]
        made = normalized(self._embedder.embed_texts(sentences)) if sentences else np.zeros((0, 1), np.float32)
        known = {text: self._sentences[text] for text in texts if text in self._sentences}
        at = 0
        for text, own in zip(new, ranges, strict=True):
            known[text] = own, made[at : at + len(own)]
            at += len(own)
        if len(self._sentences) > _REMEMBERED:
            self._sentences.clear()
        self._sentences |= known
        return known


def _at(answer: Answer, found: FoundPassage, start: int, stop: int, score: float, why: str) -> Answer:
    passage = found.passage
    return replace(
        answer,
        why=why,
        text=passage.text[start:stop],
        score=score,
        start=passage.start + start,
        stop=passage.start + stop,
        passage=passage.id,
        file=passage.file,
        page=_find_page(passage, start),
        cited=(passage.id,),
    )


def _find_page(passage: Passage, place: int) -> int | None:
    """The page of a character of a passage: by that of its middle, or from the start of the document."""
    middle, page = find_pages(passage.text, [len(passage.text) // 2, place])
    if passage.page is not None:
        return passage.page + page - middle
    return page if passage.file and not passage.start and PAGE_BREAK in passage.text else None


def _as_written(written: Written, found: Sequence[FoundPassage]) -> Answer:
    why = NO_ANSWER if written.text is None else CUT if written.cut else WRITTEN
    return Answer(
        tuple(found),
        why,
        written.text,
        passage=written.cited[0] if written.cited else None,
        cited=written.cited,
        tokens_in=written.tokens_in,
        tokens_out=written.tokens_out,
        fault=written.fault,
    )


def _locate(name: str | None, kind: str) -> Location | None:
    if name is None:
        return None
    found = find_model(name)
    check_kind(found.path, kind)
    return found
