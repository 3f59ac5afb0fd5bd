"""What trials try: the same for the same seed and results, and different for every trial."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from shardmill.core.errors import SpecError
from shardmill.verbs.tune.rehearsal import rehearse
from shardmill.verbs.tune.sampling import Judge, check_options, suggest
from shardmill.verbs.tune.settings import StudySettings
from shardmill.verbs.tune.space import Value
from shardmill.verbs.tune.study import find_best
from shardmill.verbs.tune.trial import COMPLETE, FAILED, PRUNED, Trial
from tests.support.libraries import needed

needed("optuna")
needed("cmaes")

SPACE = {"x": {"low": -5.0, "high": 5.0}, "n": {"low": 1, "high": 8}, "way": ["a", "b"]}


def a_study(**changes: Any) -> StudySettings:
    return StudySettings(**{"space": SPACE, "call": "m:f", "seed": 3, **changes})


def loss(parameters: dict[str, Value]) -> float:
    return (float(parameters["x"]) - 1) ** 2 + 0.1 * float(parameters["n"]) + (parameters["way"] == "b")


def run_study(settings: StudySettings, generations: int) -> list[Trial]:
    trials: list[Trial] = []
    for generation in range(generations):
        asked = suggest(settings, generation, trials)
        trials += [Trial(len(trials) + i, COMPLETE, each, (loss(each),)) for i, each in enumerate(asked)]
    return trials


@pytest.mark.parametrize("sampler", ["tpe", "random", "cmaes", "qmc"])
def test_the_same_seed_and_results_give_the_same_trials(sampler: Any) -> None:
    first, again = (run_study(a_study(sampler=sampler), 4) for _ in range(2))
    assert first == again
    assert len({str(trial.parameters) for trial in first}) == 32
    assert first[:8] != run_study(a_study(sampler=sampler, seed=4), 1)


def test_a_trial_may_have_tried_what_another_machine_rounded_otherwise() -> None:
    """What was settled counts, and not what a sampler would have said here."""
    settings = a_study(sampler="cmaes")
    trials = run_study(settings, 3)
    near = [replace(t, parameters={**t.parameters, "x": float(t.parameters["x"]) * 0.9}) for t in trials]
    assert suggest(settings, 3, near) != suggest(settings, 3, trials)


def test_samplers_that_keep_notes_learn_from_generation_to_generation() -> None:
    space = {"x": {"low": -5.0, "high": 5.0}, "n": {"low": 1, "high": 8}, "way": ["a"]}
    trials = run_study(a_study(space=space, sampler={"name": "cmaes", "popsize": 8}), 12)
    spread = [max(abs(float(t.parameters["x"]) - 1) for t in trials[first : first + 8]) for first in (8, 88)]
    assert spread[1] < spread[0] / 2
    with pytest.raises(SpecError, match="CMA-ES has one metric"):
        a_study(sampler="cmaes", metrics={"a": "minimize", "b": "maximize"})


@pytest.mark.parametrize("sampler", ["nsgaii", "nsgaiii"])
def test_several_metrics_by_populations(sampler: str) -> None:
    settings = a_study(
        sampler={"name": sampler, "population_size": 8}, metrics={"loss": "minimize", "size": "minimize"}
    )
    trials: list[Trial] = []
    for generation in range(6):
        asked = suggest(settings, generation, trials)
        made = [Trial(8 * generation + i, COMPLETE, p, (loss(p), float(p["n"]))) for i, p in enumerate(asked)]
        trials += [replace(made[0], state=FAILED, values=()), *made[1:]]
    # Children have what parents had, most of it.
    assert len({trial.parameters["x"] for trial in trials}) < 48
    assert suggest(settings, 6, trials) == suggest(settings, 6, trials)


def test_results_of_earlier_generations_change_what_is_tried() -> None:
    settings = a_study(sampler={"name": "tpe", "n_startup_trials": 4})
    trials = run_study(settings, 2)
    worse = [Trial(t.number, t.state, t.parameters, (-t.values[0],)) for t in trials]
    assert suggest(settings, 2, trials) != suggest(settings, 2, worse)


def test_a_study_comes_near_the_best() -> None:
    trials = run_study(a_study(), 8)
    (best,) = find_best(a_study(), trials)
    assert best.values[0] < 0.5
    assert best.parameters["way"] == "a"


def test_a_grid_is_walked_without_a_repeat() -> None:
    space = {"n": {"low": 1, "high": 4}, "way": ["a", "b"], "x": {"low": 0.0, "high": 1.0, "step": 0.5}}
    trials = run_study(a_study(space=space, sampler="grid"), 3)
    assert len({str(trial.parameters) for trial in trials}) == 24
    with pytest.raises(SpecError, match=r"space.x has no step"):
        a_study(sampler="grid")


def test_starting_points_come_first_and_may_leave_parameters_open() -> None:
    settings = a_study(start=[{"x": 1, "n": 2, "way": "a"}, {"x": 2.5}], generation=1)
    (first,) = suggest(settings, 0, [])
    (second,) = suggest(settings, 1, [])
    assert first == {"x": 1.0, "n": 2, "way": "a"}
    assert second["x"] == 2.5
    with pytest.raises(SpecError, match=r"The start x = 6\.0 is not in the space"):
        a_study(start=[{"x": 6.0}])


def test_failed_and_pruned_trials_are_part_of_the_past() -> None:
    trials = run_study(a_study(generation=2), 1)
    ended = [
        Trial(0, FAILED, trials[0].parameters, reason="ValueError: no"),
        Trial(1, PRUNED, trials[1].parameters, (3.0,), {0: 4.0, 1: 3.0}),
    ]
    assert len(suggest(a_study(generation=2), 1, ended)) == 2


@pytest.mark.parametrize("sampler", ["tpe", "gp", "qmc", {"name": "nsgaii", "population_size": 4}])
def test_a_trial_that_a_time_limit_ended_may_have_several_metrics(sampler: Any) -> None:
    if sampler == "gp":
        needed("torch")
    settings = a_study(sampler=sampler, metrics={"loss": "minimize", "speed": "maximize"})
    tried = [each for generation in range(2) for each in suggest(settings, generation, [])]
    ended = [Trial(i, COMPLETE, each, (float(i), 1.0)) for i, each in enumerate(tried)]
    ended[3] = Trial(3, PRUNED, tried[3], (3.0,), {0: 4.0, 1: 3.0})
    ended[7] = Trial(7, PRUNED, tried[7])
    assert len(suggest(settings, 2, ended)) == 8


def test_a_trial_that_is_worse_than_most_is_pruned_by_finished_trials_alone() -> None:
    settings = a_study(pruner={"name": "median", "n_startup_trials": 2})
    asked = suggest(settings, 0, [])
    past = [Trial(i, COMPLETE, each, (1.0,), {0: 2.0, 1: 1.0}) for i, each in enumerate(asked)]
    judge = Judge(settings, 8, asked[0], lambda: past)
    judge.hear(0, 1.9)
    assert not judge.is_pruned
    judge.hear(1, 1.8)
    assert judge.is_pruned


def test_a_trial_is_compared_at_the_steps_at_which_half_of_them_go_on() -> None:
    settings = a_study(pruner={"name": "halving", "min_resource": 2, "reduction_factor": 2})
    asked = suggest(settings, 0, [])
    past = [Trial(i, COMPLETE, p, (1.0 + i,), dict.fromkeys(range(9), 1.0 + i)) for i, p in enumerate(asked)]
    pruned_at = {}
    for value in (0.5, 3.5, 7.5):
        judge = Judge(settings, 8, asked[0], lambda: past)
        for step in range(9):
            judge.hear(step, value)
            if judge.is_pruned:
                pruned_at[value] = step
                break
    assert pruned_at == {7.5: 2}


def test_the_bracket_of_a_trial_follows_from_its_number() -> None:
    settings = a_study(pruner={"name": "hyperband", "min_resource": 1, "max_resource": 9, "reduction_factor": 3})
    asked = suggest(settings, 0, [])
    past = [Trial(i, COMPLETE, p, (1.0,), dict.fromkeys(range(10), 1.0)) for i, p in enumerate(asked)]
    ends = []
    for number in range(8, 24):
        judge = Judge(settings, number, asked[0], lambda: past)
        steps = []
        for step in range(10):
            judge.hear(step, 5.0)
            if judge.is_pruned:
                steps.append(step)
        ends.append(tuple(steps[:1]))
    assert len(set(ends)) > 1


def test_an_option_that_a_sampler_does_not_have_is_refused() -> None:
    with pytest.raises(SpecError, match=r"The sampler 'tpe' cannot be made: .*n_startup"):
        check_options(a_study(sampler={"name": "tpe", "n_startup": 4}))
    with pytest.raises(SpecError, match="No sampler is called 'tpee'"):
        a_study(sampler="tpee")
    with pytest.raises(SpecError, match="several metrics cannot prune"):
        a_study(metrics={"a": "minimize", "b": "maximize"}, pruner="median")


@pytest.mark.parametrize(
    ("sampler", "said", "hint"),
    [
        ({"name": "tpe", "n_startup": 4}, "has no option 'n_startup'", "Did you mean 'n_startup_trials'"),
        ({"name": "nsgaii", "population_size": 1}, "greater than or equal to 2.", "Its options are population_size"),
        ({"name": "tpe", "n_startup_trials": "x"}, "The sampler 'tpe' failed: TypeError", "Leave out n_startup_trials"),
        ({"name": "tpe", "gamma": 0.1}, "'float' object is not callable", "Leave out gamma"),
        ({"name": "tpe", "n_startup_trials": 40, "weights": "x"}, "'str' object is not callable", "weights"),
        ({"name": "cmaes", "sigma0": "x"}, "The sampler 'cmaes' failed", "Leave out sigma0"),
        ({"name": "nsgaii", "elite_population_selection_strategy": "x"}, "not callable", "Leave out elite"),
        ({"name": "tpe", "seed": 4}, "no seed of its own", "Write seed = 4 in"),
    ],
)
def test_options_that_a_sampler_fails_by_later_are_refused_at_once(sampler: Any, said: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        rehearse(a_study(sampler=sampler))
    assert said in caught.value.message
    assert ".." not in caught.value.message
    assert hint in caught.value.hint


@pytest.mark.parametrize(
    "sampler",
    [
        "tpe",
        {"name": "tpe", "multivariate": True},
        {"name": "cmaes", "popsize": 6},
        {"name": "qmc", "scramble": True},
        {"name": "nsgaii", "population_size": 6},
        {"name": "nsgaiii", "mutation_prob": 0.1},
    ],
)
def test_samplers_that_work_pass_the_rehearsal_in_silence(sampler: Any, capfd: pytest.CaptureFixture[str]) -> None:
    rehearse(a_study(sampler=sampler, start=[{"n": 2}]))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("sampler", [3, ["tpe"], {}, {"nme": "tpe"}])
def test_a_sampler_without_a_name_is_told_how_to_write_it(sampler: Any) -> None:
    with pytest.raises(SpecError, match="The sampler has no name") as caught:
        a_study(sampler=sampler)
    assert 'sampler = { name = "tpe", … }' in caught.value.hint


def test_no_pruner_has_no_options() -> None:
    with pytest.raises(SpecError, match="The pruner 'none' has no options"):
        check_options(a_study(pruner={"name": "none", "patience": 3}))


def test_with_several_metrics_the_best_are_those_that_none_beats() -> None:
    settings = a_study(metrics={"loss": "minimize", "speed": "maximize"})
    values = [(1.0, 1.0), (2.0, 3.0), (2.0, 2.0), (1.0, 1.0)]
    trials = [Trial(i, COMPLETE, {}, each) for i, each in enumerate(values)]
    assert [trial.number for trial in find_best(settings, trials)] == [0, 1, 3]
