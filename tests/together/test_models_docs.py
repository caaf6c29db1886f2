"""The snippets of docs/models.md's "A slim model is a model like any other" run as they stand, each on a slim model."""

import copy
import re
import warnings
from pathlib import Path
from typing import Any

import torch

import patchslim as ps
from small import make_host, make_images, plan_for

PAGE = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")


def test_snippets_run() -> None:
    section = PAGE.split("## A slim model is a model like any other")[1].split("\n## ")[0]
    snippets = re.findall(r"```python\n(.*?)```", section, flags=re.S)
    assert len(snippets) == 9
    host = make_host(num_classes=10)
    plan, weights = plan_for(host, "merge")
    slim = ps.apply(host, plan, weights)
    given = {"ps": ps, "torch": torch, "host": host, "plan": plan, "weights": weights}
    for snippet in snippets:
        own = copy.deepcopy(slim)
        scope: dict[str, Any] = given | {"slim": own, "images": make_images(4), "labels": torch.arange(4)}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            exec(snippet, scope)
        if "empty" in scope:
            scope["slim"] = scope["empty"]
            assert torch.equal(scope["slim"](make_images(4)), slim(make_images(4)))
        assert scope["slim"](make_images(4)).shape == (4, 10)
        assert ps.sources(scope["slim"], make_images(4))
