"""The commands that look at runs, use their results and serve them, as declarations."""

from __future__ import annotations

from shardmill.plugins.base import LOOKS, RUNS, USES, Verb

_GOING_ON = "shardmill.cli.going_on"
_INSPECTION = "shardmill.cli.inspection"
_RESULTS = "shardmill.cli.results"

RESUME = Verb(
    name="resume",
    summary="Resume a run from its folder, on any engine.",
    about="Options change how it runs, never the result.",
    family=RUNS,
    examples=(
        "shardmill resume runs/reviews",
        "shardmill resume s3://bucket/runs/docs --engine slurm --partition gpu --workers 16",
        "shardmill resume runs/chats --endpoint http://gpu2:8000/v1",
    ),
    options=f"{_GOING_ON}:ResumeOptions",
    start=f"{_GOING_ON}:resume",
    resumes=True,
)
WORK = Verb(
    name="work",
    summary="Be one worker of a run until the run is done.",
    about="Start as many as you like, anywhere, at any time. A worker claims shards, waits while others hold the last "
    "ones, and does or awaits what follows the last shard (--then). Given a folder of runs, it serves those that are "
    "wanted, the highest priority first, and ends when nothing can be claimed.",
    family=RUNS,
    examples=(
        "shardmill plan reviews.jsonl --text reviewText --out runs/reviews && shardmill work runs/reviews",
        "shardmill work s3://bucket/runs/docs --device cuda",
        "shardmill work s3://bucket/runs --forever",
    ),
    options=f"{_GOING_ON}:WorkerOptions",
    start=f"{_GOING_ON}:work",
    show=f"{_GOING_ON}:show_work",
    resumes=True,
)
STOP = Verb(
    name="stop",
    summary="End a run's workers, on any engine; committed shards stay.",
    about="`shardmill resume RUN` continues.",
    family=RUNS,
    examples=("shardmill stop runs/reviews",),
    options=f"{_GOING_ON}:StopOptions",
    start=f"{_GOING_ON}:stop",
)
ROLLBACK = Verb(
    name="rollback",
    summary="Go back to the edition of a run that was read before.",
    about="Nothing is deleted: the current edition stays until it is pruned.",
    family=RUNS,
    examples=("shardmill rollback runs/reviews", "shardmill rollback runs/reviews --edition 2"),
    options=f"{_GOING_ON}:RollbackOptions",
    start=f"{_GOING_ON}:rollback",
)
PRUNE = Verb(
    name="prune",
    summary="Delete old editions of a run that was refreshed.",
    about="The current edition stays, and so do editions that were replaced within the hour: somebody may still read "
    "them. Who does so later is told to begin again (exit status 75).",
    family=RUNS,
    examples=("shardmill prune runs/reviews --keep-editions 3",),
    options=f"{_GOING_ON}:PruneOptions",
    start=f"{_GOING_ON}:prune",
)
PLAN = Verb(
    name="plan",
    summary="Show the plan of a run: its source, its shards, its id. Nothing is run.",
    about="It takes the options of `embed`, `load` and `run`. With --out it writes the run folder, and places no "
    "worker. With --gpus, --deadline or --budget it estimates time, cost and memory, with ranges, on any device.",
    family=LOOKS,
    examples=(
        "shardmill plan reviews.jsonl --text reviewText",
        "shardmill plan reviews.jsonl --text reviewText --out runs/reviews",
        "shardmill plan reviews.jsonl --text reviewText --gpus 8xT4 --deadline 2h --budget 5USD",
    ),
    options="shardmill.cli.planning:PlanOptions",
    start="shardmill.cli.planning:plan",
)
STATUS = Verb(
    name="status",
    summary="Show the progress of a run: speed, expected end, cost, workers, failed rows.",
    about="It reads the run folder alone.",
    family=LOOKS,
    examples=("shardmill status runs/reviews --watch", "shardmill status s3://bucket/runs/docs --json"),
    options=f"{_INSPECTION}:StatusOptions",
    start=f"{_INSPECTION}:status",
)
LIST_RUNS = Verb(
    name="runs",
    summary="List the runs in a folder: state, share, rows, rate, and when each was last seen.",
    about="It looks one level deep.",
    family=LOOKS,
    examples=("shardmill runs runs", "shardmill runs s3://bucket/runs --json"),
    options=f"{_INSPECTION}:ListOptions",
    start=f"{_INSPECTION}:list_runs",
)
SHOW = Verb(
    name="show",
    summary="Show one shard of a run, its editions, or the rows that failed.",
    family=LOOKS,
    examples=(
        "shardmill show runs/reviews --errors",
        "shardmill show runs/reviews --shard 42",
        "shardmill show runs/reviews --editions",
    ),
    options=f"{_INSPECTION}:ShowOptions",
    start=f"{_INSPECTION}:show",
)
COST = Verb(
    name="cost",
    summary="Show what a run cost: device time per worker, idle and retried time, and the forecast.",
    family=LOOKS,
    examples=("shardmill cost runs/reviews", "shardmill cost runs/reviews --price 0.526"),
    options=f"{_INSPECTION}:CostOptions",
    start=f"{_INSPECTION}:cost",
)
MONITOR = Verb(
    name="monitor",
    summary="Serve a live page of runs: progress, workers, errors and cost.",
    about="It reads, and changes nothing. It prints the address with its token. `/healthz` answers without it; "
    "machines send it as a bearer token.",
    family=LOOKS,
    examples=(
        "shardmill monitor runs",
        "shardmill monitor s3://bucket/runs --port 9000",
        "shardmill monitor runs --host 0.0.0.0 --token-file token.txt --allow-host runs.example.org",
        "shardmill monitor runs --alerts alerts.toml",
    ),
    options="shardmill.cli.monitor:MonitorOptions",
    start="shardmill.cli.monitor:monitor",
)
VERIFY = Verb(
    name="verify",
    summary="Verify a result: commits, digests, counts, ids, vectors, and a recomputed sample.",
    about="For a table: columns, key, rows, vectors, index recall, and a recomputed sample.",
    family=USES,
    examples=(
        "shardmill verify runs/reviews",
        "shardmill verify runs/wiki --rows 250010 --dims 1024",
        "shardmill verify postgresql:///docs/documents",
    ),
    options=f"{_RESULTS}:VerifyOptions",
    start=f"{_RESULTS}:verify",
)
MERGE = Verb(
    name="merge",
    summary="Write the result as a file or a folder of files, in source order.",
    about="The format is that of the name. A file that exists is replaced when the new one is complete; a folder must "
    "be new or empty.",
    family=USES,
    examples=(
        "shardmill merge runs/reviews --out reviews.parquet",
        "shardmill merge runs/reviews --out vectors.npy",
        'shardmill merge runs/reviews --out bad.csv.gz --where "overall <= 2" --columns id,overall',
        "shardmill merge runs/reviews --out - | head -1",
        "shardmill merge runs/reviews --out by-language.parquet --partition-by lang",
        "shardmill merge runs/reviews --out index.faiss",
    ),
    options=f"{_RESULTS}:MergeOptions",
    start=f"{_RESULTS}:merge",
)
REPORT = Verb(
    name="report",
    summary="Write one page about a run: what ran, how long, what it cost, and the proof.",
    family=USES,
    examples=(
        "shardmill report runs/reviews --out report.html",
        "shardmill report runs/reviews --out report.md",
        "shardmill report s3://bucket/runs/reviews",
    ),
    options=f"{_RESULTS}:ReportOptions",
    start=f"{_RESULTS}:report",
)
SEARCH = Verb(
    name="search",
    summary="Find rows by meaning, by words, or by both.",
    family=USES,
    examples=(
        'shardmill search runs/reviews "battery dies after an hour"',
        'shardmill search runs/reviews "battery dies after an hour" --where "overall <= 2"',
        'shardmill search runs/reviews "counterfeit charger" --words',
        'shardmill search embedded:shop/user_reviews "battery dies fast" --hybrid --where "rating <= 2"',
    ),
    options=f"{_RESULTS}:SearchOptions",
    start=f"{_RESULTS}:search",
)
PLUGINS = Verb(
    name="plugins",
    summary="List the verbs, sources, sinks and engines that packages bring.",
    about="Sources and sinks are listed with the suffixes or schemes that they take.",
    family="Machines",
    examples=("shardmill plugins", "shardmill plugins --all", "shardmill plugins --json"),
    options="shardmill.cli.plugins:PluginOptions",
    start="shardmill.cli.plugins:show_plugins",
)
