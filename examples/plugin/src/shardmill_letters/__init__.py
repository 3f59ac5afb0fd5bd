"""Mail archives, folders of rows, and a verb that counts words: what this package brings to shardmill."""

from shardmill.plugins.base import SinkKind, SourceKind, Verb

COUNT = Verb(
    name="count",
    summary="Count the words of every item of a source.",
    resumes=True,
    examples=("shardmill count archive.mbox --text body --id id --out runs/words",),
    call='run = shardmill.count("archive.mbox", text="body", id="id", out="runs/words")',
    options="shardmill_letters.options:CountOptions",
    task="shardmill_letters.task:CountTask",
)
MBOX = SourceKind(name="mbox", suffixes=(".mbox",), reader="shardmill_letters.mbox", located=True)
OUTBOX = SinkKind(
    name="outbox", schemes=("outbox:",), delivery="shardmill_letters.outbox:OutboxDelivery", reach="machine"
)
