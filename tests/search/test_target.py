"""What a search's settings come to when left open, and which of them don't go together."""

from typing import Any

import pytest

import patchslim as ps

SELECTS = ["static", "predicted", "matched"]
OWN: list[dict[str, Any]] = [
    {},
    {"select": "static"},
    {"removed": "merge"},
    {"score": "coverage"},
    {"tune_epochs": 0},
    {"groups": "own"},
]
GREEDY: list[dict[str, Any]] = [{"removed": "drop"}, {"score": "effect"}, {"removed": "drop", "tune_epochs": 0}]
TOP_DOWN: list[dict[str, Any]] = [
    {"score": "impact"},
    {"score": "random", "select": "static"},
    {"score": "radial", "removed": "drop"},
    {"removed": "carry"},
    {"score": "attention", "removed": "carry"},
]
PREDICTED: list[dict[str, Any]] = [
    {"select": "predicted"},
    {"select": "predicted", "removed": "drop"},
    {"select": "predicted", "mode": "threshold"},
    {"select": "predicted", "predictor": "pool"},
]
ALIKE: list[dict[str, Any]] = [
    {"select": "matched"},
    {"select": "matched", "removed": "drop"},
    {"select": "static", "removed": "merge", "groups": "fixed"},
]


@pytest.mark.parametrize(
    ("settings", "removed"),
    [
        ({}, "merge"),
        ({"select": "static"}, "merge"),
        ({"score": "coverage"}, "merge"),
        ({"score": "effect"}, "drop"),
        ({"score": "radial"}, "drop"),
        ({"tune_epochs": 2}, "drop"),
        ({"select": "matched"}, "merge"),
        ({"select": "predicted"}, "merge"),
        ({"select": "predicted", "mode": "threshold"}, "drop"),
    ],
)
def test_removed_patches_merge_unless_a_score_or_a_threshold_has_them_drop(
    settings: dict[str, Any], removed: str
) -> None:
    assert ps.SearchConfig(**settings).removed == removed


@pytest.mark.parametrize("settings", TOP_DOWN)
def test_other_scores_and_carried_patches_go_top_down_and_tuned(settings: dict[str, Any]) -> None:
    config = ps.SearchConfig(**settings)
    assert (config.top_down, config.tune_epochs, config.score) == (True, 3, settings.get("score", "impact"))


@pytest.mark.parametrize("settings", GREEDY)
def test_static_patches_that_drop_are_ranked_by_effect_and_not_tuned(settings: dict[str, Any]) -> None:
    config = ps.SearchConfig(**settings)
    assert (config.top_down, config.tune_epochs, config.score) == (False, 0, "effect")


@pytest.mark.parametrize("settings", OWN)
def test_static_patches_that_others_join_cover_them_and_are_not_tuned(settings: dict[str, Any]) -> None:
    config = ps.SearchConfig(**settings)
    assert (config.removed, config.groups, config.score) == ("merge", "own", "coverage")
    assert (config.top_down, config.tune_epochs, config.in_pairs) == (False, 0, False)


@pytest.mark.parametrize("score", ["random", "radial", "uniform"])
def test_static_patches_that_others_join_can_be_any_spread(score: Any) -> None:
    config = ps.SearchConfig(removed="merge", score=score)
    assert (config.groups, config.score, config.top_down) == ("own", score, False)


@pytest.mark.parametrize("settings", PREDICTED)
def test_predicted_patches_are_ranked_by_effect_and_not_tuned(settings: dict[str, Any]) -> None:
    config = ps.SearchConfig(**settings)
    assert (config.top_down, config.tune_epochs, config.score) == (False, 0, "effect")


@pytest.mark.parametrize(
    ("settings", "pairs"),
    [
        ({}, False),
        ({"removed": "carry"}, False),
        ({"removed": "merge"}, False),
        ({"removed": "merge", "groups": "fixed"}, True),
        ({"select": "matched"}, True),
        ({"select": "matched", "removed": "drop"}, True),
        ({"select": "predicted"}, True),
        ({"select": "predicted", "removed": "drop"}, False),
        ({"select": "predicted", "mode": "threshold"}, False),
    ],
)
def test_patches_go_in_pairs_where_they_merge_or_are_matched(settings: dict[str, Any], pairs: bool) -> None:
    assert ps.SearchConfig(**settings).in_pairs is pairs


@pytest.mark.parametrize("settings", ALIKE)
def test_patches_that_are_alike_have_no_score_and_no_tuning(settings: dict[str, Any]) -> None:
    config = ps.SearchConfig(**settings)
    assert (config.top_down, config.tune_epochs, config.score) == (False, 0, None)


@pytest.mark.parametrize(
    "settings",
    [
        {"tune_epochs": 0},
        {"tune_epochs": 7, "removed": "carry"},
        {"score": "random"},
        {"score": "impact", "tune_epochs": 7},
        {"score": "effect", "select": "predicted"},
        {"score": "radial", "removed": "carry"},
        {"score": "attention", "select": "predicted"},
        {"score": "impact", "select": "predicted", "removed": "merge"},
        {"tune_epochs": 0, "select": "matched"},
        {"tune_epochs": 0, "removed": "merge"},
        {"removed": "drop", "select": "matched"},
        {"mode": "threshold", "select": "predicted", "removed": "drop"},
    ],
)
def test_what_is_given_stays(settings: dict[str, Any]) -> None:
    config = ps.SearchConfig(**settings)
    assert {name: getattr(config, name) for name in settings} == settings


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"select": "matched", "removed": "carry"}, "can't be carried along when matched"),
        ({"select": "predicted", "removed": "carry"}, "can't be carried along when predicted"),
        ({"select": "matched", "mode": "threshold"}, "threshold goes with predicted patches that are dropped"),
        ({"select": "static", "mode": "threshold"}, "threshold goes with predicted patches that are dropped"),
        ({"select": "predicted", "removed": "merge", "mode": "threshold"}, "threshold goes with predicted"),
        ({"select": "matched", "score": "impact"}, "leave the score out"),
        ({"select": "matched", "removed": "drop", "score": "attention"}, "leave the score out"),
        (
            {"select": "static", "removed": "merge", "score": "impact"},
            "radial, uniform, not by impact",
        ),
        ({"groups": "fixed", "score": "random", "removed": "merge"}, "leave the score out"),
        ({"groups": "own", "removed": "drop"}, "leave them out"),
        ({"groups": "own", "select": "matched"}, "leave them out"),
        ({"score": "coverage", "removed": "drop"}, "static patches that others join"),
        ({"score": "coverage", "select": "predicted"}, "static patches that others join"),
        ({"choosing_blocks": 2, "removed": "drop"}, "not for static ones that are dropped"),
        ({"select": "predicted", "score": "random"}, "random is alike for all images"),
        ({"select": "predicted", "score": "radial"}, "radial is alike for all images"),
        ({"select": "predicted", "score": "uniform"}, "uniform is alike for all images"),
        ({"removed": "carry", "score": "effect"}, "carried ones need another"),
        ({"select": "matched", "score": "effect"}, "leave the score out"),
        ({"score": "effect", "tune_epochs": 1}, "set tune_epochs to 0"),
        ({"select": "matched", "tune_epochs": 1}, "set tune_epochs to 0"),
        ({"select": "predicted", "tune_epochs": 3}, "set tune_epochs to 0"),
        ({"select": "static", "removed": "merge", "tune_epochs": 2}, "set tune_epochs to 0"),
    ],
)
def test_what_does_not_go_together_is_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.BudgetError, match=words):
        ps.SearchConfig(**settings)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"select": "guessed"}, "guessed.*static, predicted, matched"),
        ({"select": None}, "None.*static, predicted, matched"),
        ({"removed": "burn"}, "burn.*drop, carry, merge"),
        ({"mode": "top-p"}, "top-p.*top-k, threshold"),
        ({"predictor": "oracle"}, "oracle.*context, mlp, pool"),
        ({"score": "luck"}, "luck.*effect, coverage, impact, attention, random, radial, uniform"),
    ],
)
def test_an_unknown_word_is_refused_with_the_known_ones(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ps.BudgetError, match=words):
        ps.SearchConfig(**settings)


@pytest.mark.parametrize("select", SELECTS)
@pytest.mark.parametrize(
    "settings",
    [
        {"tolerance": -0.1},
        {"target_macs": 1.0},
        {"tolerance": 0.1, "target_macs": 0.5},
        {"predictor_epochs": 0},
        {"batch_size": 0},
        {"tune_epochs": -1},
    ],
)
def test_numbers_out_of_range_are_refused_however_patches_are_chosen(select: Any, settings: dict[str, Any]) -> None:
    with pytest.raises(ps.BudgetError):
        ps.SearchConfig(select=select, **settings)


@pytest.mark.parametrize("settings", [*OWN, *GREEDY, *TOP_DOWN, *PREDICTED, *ALIKE])
def test_what_was_resolved_is_written_down_and_makes_the_same_settings(settings: dict[str, Any]) -> None:
    config = ps.SearchConfig(**settings, target_macs=0.5, seed=3)
    written = config.as_dict()
    assert written["removed"] is not None
    assert written["tune_epochs"] is not None
    assert ps.SearchConfig(**written) == config


def test_asking_for_block_tuning_asks_for_algorithm_1() -> None:
    config = ps.SearchConfig(tune_epochs=2)
    assert (config.score, config.top_down, config.tune_epochs) == ("impact", True, 2)
    assert ps.SearchConfig(tune_epochs=0).score == "coverage"


def test_G_does_not_know_the_average_patch_where_images_are_compared() -> None:
    assert ps.SearchConfig(select="predicted").predictor == "context"
    assert ps.SearchConfig(select="predicted", mode="threshold").predictor == "mlp"
    assert ps.SearchConfig(select="predicted", mode="threshold", predictor="context").predictor == "context"
