"""DynamicViT: masking while it learns is removing afterwards, and the predictor learns what to keep."""

import pytest
import torch
from torch import Tensor, nn

import patchslim as ps
from patchslim.hosts import open_host
from patchslim.methods import DynamicViT, Task, model_of
from patchslim.methods.dynamicvit import masked_run, token_loss, train
from patchslim.methods.knob import stages
from patchslim.methods.learn import outputs_under
from patchslim.plan import make_plan
from patchslim.recover.losses import divergence
from patchslim.steps.dynamicvit import KeepPredictor
from small import make_host, make_images
from tasks import digits, made, says, task_of


def counts_of(model: nn.Module, rate: float) -> list[int]:
    """Patches that each block computes."""
    info = ps.inspect(model)
    return list(make_plan(info, DynamicViT().steps(info, rate)).counts)


def predicting(task: Task, rate: float, predictors: dict[int, KeepPredictor]) -> nn.Module:
    """The network in which patches really go."""
    return model_of(DynamicViT().predicting(task, rate, predictors), task.host.model)


class Fixed(KeepPredictor):
    """Sure of some patches, by their features: those with a positive first one stay."""

    def forward(self, patches: Tensor, there: Tensor | None = None) -> Tensor:
        sure = 1e4 * torch.where(patches[..., 0] > 0, 1.0, -1.0) + patches[..., 0]
        return torch.stack([sure, -sure], dim=-1).log_softmax(dim=-1)


def test_masking_equals_removing(kind: str) -> None:
    """Attention masking: a patch that is dropped while training is as if it were not there."""
    model = make_host(kind)
    host = open_host(model)
    fixed = {2: Fixed(24), 4: Fixed(24)}
    image = make_images(1)
    with torch.no_grad():
        x, weight, decisions = masked_run(host, image, dict(fixed))
        found = outputs_under(host, x, weight).logits
    kept = [int(stage.sum()) for stage in decisions]
    assert 16 > kept[0] >= kept[1] > 0
    prefix, expected = host.info.prefix_tokens, host.embed(image)
    with torch.no_grad():
        for layer, block in enumerate(host.blocks, start=1):
            if layer in fixed:
                patches = expected[:, prefix:]
                expected = torch.cat([expected[:, :prefix], patches[:, patches[0, :, 0] > 0]], dim=1)
            expected = block(expected)
        assert expected.shape[1] == prefix + kept[1]
        torch.testing.assert_close(found, host.logits(expected), atol=1e-5, rtol=1e-4)


def test_the_surest_patches_stay() -> None:
    model = make_host()
    host = open_host(model)
    torch.manual_seed(2)
    predictors = {layer: KeepPredictor(24) for layer in (2, 3, 4)}
    slim = predicting(task_of(model), 0.7, predictors)
    images = make_images()
    with torch.no_grad():
        x = host.embed(images)
        for layer, (block, count) in enumerate(zip(host.blocks, counts_of(model, 0.7), strict=True), start=1):
            if layer in predictors:
                keep = predictors[layer](x[:, 1:])[..., 0].topk(count, dim=1).indices
                rows = [torch.cat([own[:1], own[1:][place]]) for own, place in zip(x, keep, strict=True)]
                x = torch.stack(rows)
            x = block(x)
        torch.testing.assert_close(says(slim, images), host.logits(x), atol=1e-5, rtol=1e-4)


def test_the_mean_is_over_patches_still_there() -> None:
    torch.manual_seed(0)
    predictor, patches = KeepPredictor(8), torch.randn(1, 5, 8)
    there = torch.tensor([[1.0, 0.0, 1.0, 1.0, 0.0]])
    some = [0, 2, 3]
    with torch.no_grad():
        torch.testing.assert_close(predictor(patches, there)[:, some], predictor(patches[:, some]))


def test_training_finds_patches_that_matter() -> None:
    """Digits: predictors that learnt keep what the answer needs, far better than those that did not."""
    model, images = digits(144)
    task, unseen = task_of(model, images[:80], batch_size=16), images[80:]
    answer = says(model, unseen)

    def error(predictors: dict[int, KeepPredictor]) -> float:
        return float(divergence(answer, says(predicting(task, 0.5, predictors), unseen), 1.0))

    torch.manual_seed(0)
    untaught = [error({layer: KeepPredictor(96) for layer in stages(task.info)}) for _ in range(5)]
    taught = train(task, 0.5, 5)
    assert error(taught) < sum(untaught) / 5
    with torch.no_grad():
        _, _, decisions = masked_run(task.host, unseen, taught)
    shares = [float(stage.mean()) for stage in decisions]
    assert shares == pytest.approx([0.5, 0.25, 0.125], abs=0.15)
    assert not any(parameter.requires_grad for own in taught.values() for parameter in own.parameters())


def test_gradients_pass_the_hard_decisions() -> None:
    model = make_host()
    host = open_host(model)
    host.model.requires_grad_(False)
    torch.manual_seed(0)
    predictors = {layer: KeepPredictor(24) for layer in (2, 3, 4)}
    x, _, decisions = masked_run(host, make_images(), predictors)
    assert all(set(stage.unique().tolist()) <= {0.0, 1.0} for stage in decisions)
    (host.features(x).sum() + sum(stage.sum() for stage in decisions)).backward()
    for own in predictors.values():
        assert all(parameter.grad is not None for parameter in own.parameters())


def test_kept_tokens_alone_are_compared() -> None:
    tokens, taught = torch.randn(2, 4, 3), torch.randn(2, 4, 3)
    weight = torch.tensor([[1.0, 0.0, 1.0, 1.0], [0.0, 1.0, 1.0, 0.0]])
    kept = weight.bool()
    expected = (tokens[kept] - taught[kept]).square().sum() / taught[kept].square().sum()
    torch.testing.assert_close(token_loss(tokens, taught, weight), expected)


def test_three_stages_at_powers_of_the_rate() -> None:
    assert counts_of(make_host(depth=12), 0.7) == [16] * 3 + [11] * 3 + [7] * 3 + [5] * 3
    found, _ = made(DynamicViT(epochs=1), task_of(make_host(), ratio=0.8))
    assert found.plan is not None
    assert list(found.plan.counts) == counts_of(make_host(), found.detail["keep_rate"])
