"""Commands about machines, declared: what to measure, the hosts of the SSH engine, what a cluster is given."""

from __future__ import annotations

from shardmill.plugins.base import MACHINES, Verb

BENCH_EMBED = Verb(
    name="bench embed",
    summary="Measure how fast this machine embeds, and what limits it.",
    about="It embeds from file to file in a temporary folder, and shows where the time went.",
    family=MACHINES,
    examples=("shardmill bench embed --peers", "shardmill bench embed --model M --device cuda --out b"),
    options="shardmill.cli.bench:BenchEmbedOptions",
    start="shardmill.cli.bench:embed",
)
BENCH_AUGMENT = Verb(
    name="bench augment",
    summary="Measure how fast augmentation parameters are generated.",
    about="It generates them as columns, as dicts, in batches, and by reseeding.",
    family=MACHINES,
    examples=("shardmill bench augment --samples 1000000 --out bench.html",),
    options="shardmill.cli.bench:BenchAugmentOptions",
    start="shardmill.cli.bench:augment",
)
BENCH_TASKS = Verb(
    name="bench tasks",
    summary="Measure embed, summarize and answer on the CPU and on a GPU.",
    about="It shows speed and price, and from how many items on a GPU pays.",
    family=MACHINES,
    examples=("shardmill bench tasks", "shardmill bench tasks --items 20000 --out b"),
    options="shardmill.cli.bench:BenchTasksOptions",
    start="shardmill.cli.bench:tasks",
)
HOSTS_CHECK = Verb(
    name="hosts check",
    summary="Show what each host has, and whether it can be used as its entry asks.",
    family=MACHINES,
    examples=("shardmill hosts check cluster.toml",),
    options="shardmill.cli.hosts:HostsOptions",
    start="shardmill.cli.hosts:check",
)
HOSTS_STOP = Verb(
    name="hosts stop",
    summary="End the workers of all runs on the hosts.",
    about="Finished parts stay there, and the runs can resume.",
    family=MACHINES,
    examples=("shardmill hosts stop cluster.toml",),
    options="shardmill.cli.hosts:HostsOptions",
    start="shardmill.cli.hosts:stop",
)
HOSTS_CLEAN = Verb(
    name="hosts clean",
    summary="Stop the workers on the hosts and remove their work folders.",
    about="Work folders hold environments, models, copies of sources, and logs.",
    family=MACHINES,
    examples=("shardmill hosts clean cluster.toml",),
    options="shardmill.cli.hosts:HostsOptions",
    start="shardmill.cli.hosts:clean",
)
RENDER = Verb(
    name="kubernetes render",
    summary="Print the objects for a spec as YAML: to review, and to keep in git.",
    family=MACHINES,
    examples=(
        "shardmill kubernetes render argo --spec job.toml --out s3://bucket/runs/reviews > argo.yaml",
        "shardmill kubernetes render pool --spec job.toml --out s3://bucket/runs --set most=24 | kubectl apply -f -",
        'shardmill kubernetes render cron --spec job.toml --out s3://bucket/nightly --set "schedule=0 2 * * *"',
        "shardmill kubernetes render refresh --out s3://bucket/runs/reviews --image registry.example.org/shardmill:1 "
        '--set "schedule=*/15 * * * *" | kubectl apply -f -',
    ),
    options="shardmill.cli.manifests:RenderOptions",
    start="shardmill.cli.manifests:render",
)
CHECK = Verb(
    name="kubernetes check",
    summary="Check a cluster for runs: API, rights, CRDs and GPUs, one line each.",
    about="With --image it also starts a pod, and shows what the pod sees.",
    family=MACHINES,
    examples=(
        "shardmill kubernetes check --namespace ml",
        "shardmill kubernetes check --namespace ml --image registry.example.org/shardmill:1 --out s3://bucket/runs",
    ),
    options="shardmill.cli.manifests:CheckOptions",
    start="shardmill.cli.manifests:check",
)
PROBE = Verb(
    name="kubernetes probe",
    summary="Look at the store from a pod; `shardmill kubernetes check` starts it.",
    family=MACHINES,
    options="shardmill.cli.manifests:ProbeOptions",
    start="shardmill.cli.manifests:probe",
    hidden=True,
)
REPORT = Verb(
    name="kubernetes report",
    summary="Record in a run's folder how its workflow ended.",
    about="The exit handler of every workflow calls it.",
    family=MACHINES,
    examples=("shardmill kubernetes report s3://bucket/runs/reviews --workflow ml/reviews --status Failed",),
    options="shardmill.cli.manifests:EndOptions",
    start="shardmill.cli.manifests:report",
)
