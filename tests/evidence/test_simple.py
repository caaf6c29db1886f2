"""The plain scores, each by its defining property."""

import torch

from patchslim.evidence.simple import attention_norm, radial_scores, random_scores, spread_scores


def test_attention_is_the_column_norm() -> None:
    attention = torch.rand(2, 3, 4, 4)
    expected = [[float(attention[b, :, :, i].norm()) for i in range(4)] for b in range(2)]
    assert torch.allclose(attention_norm(attention), torch.tensor(expected))


def test_random_is_seeded() -> None:
    assert torch.equal(random_scores(50, 3), random_scores(50, 3))
    assert not torch.equal(random_scores(50, 3), random_scores(50, 4))


def test_radial_keeps_the_centre_longest() -> None:
    scores = radial_scores((4, 6)).reshape(4, 6)
    assert torch.equal(scores, scores.flip(0))
    assert torch.equal(scores, scores.flip(1))
    assert float(scores[1, 2]) == float(scores.max())
    assert float(scores[0, 0]) == float(scores.min())


def test_spread_is_a_farthest_point_order() -> None:
    height, width = 5, 7
    order = spread_scores((height, width)).argsort(descending=True).tolist()
    assert sorted(order) == list(range(35))
    places = [(i // width, i % width) for i in range(35)]

    def gap(i: int, chosen: list[int]) -> float:
        return min((places[i][0] - places[j][0]) ** 2 + (places[i][1] - places[j][1]) ** 2 for j in chosen)

    for k in range(1, 35):
        best = max(gap(i, order[:k]) for i in range(35) if i not in order[:k])
        assert gap(order[k], order[:k]) == best
