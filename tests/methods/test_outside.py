"""Methods of other packages, by a real entry point: one that is not made of steps, and those that are broken."""

import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest
import torch

import patchslim as ps
from flops import counted, unfused
from patchslim.errors import BudgetError, MethodError
from patchslim.methods import Fitted, base, describe, make, names, package_of
from small import make_host, make_images
from tasks import made, says, task_of

HALF = '''
"""Narrower MLPs: nothing that patchslim has a step for."""
from dataclasses import dataclass
from typing import Annotated

import torch
from patchslim.macs import host_macs
from patchslim.methods import Fitted


@dataclass(frozen=True)
class Half:
    """A share of every MLP's hidden features leaves.

    Take it for tests.
    """

    share: Annotated[float, "of the features that leave"] = 0.5

    def fit(self, task):
        host, macs = task.fresh_host(), host_macs(task.info)
        for block in host.blocks:
            first, second = block.mlp.fc1, block.mlp.fc2
            kept = int(first.out_features * (1 - self.share))
            macs -= task.info.tokens * (first.out_features - kept) * (first.in_features + second.out_features)
            first.weight, first.bias = (torch.nn.Parameter(own[:kept].clone()) for own in (first.weight, first.bias))
            second.weight = torch.nn.Parameter(second.weight[:, :kept].clone())
        return Fitted(model=host.slimmed_(host.blocks), macs=macs, detail={"kept": kept})
'''
Install = Callable[..., None]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Put a package `shapes` where Python finds it, with one method."""
    monkeypatch.setattr(base, "METHODS", dict(base.METHODS))
    monkeypatch.setattr(base, "_packages", {})
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shapes_slim", raising=False)

    def put(code: str = HALF, name: str = "half", value: str = "shapes_slim:Half") -> None:
        (tmp_path / "shapes_slim.py").write_text(code, encoding="utf-8")
        about = tmp_path / "shapes-1.0.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: shapes\nVersion: 1.0\n", encoding="utf-8")
        (about / "entry_points.txt").write_text(f"[patchslim.methods]\n{name} = {value}\n", encoding="utf-8")

    return put


def fitting(body: str) -> str:
    """A package whose method fits so."""
    lines = "from patchslim.errors import BudgetError\nfrom patchslim.methods import Fitted\nimport torch\n"
    return f"{lines}\n\nclass Half:\n    def fit(self, task):\n        {body}\n"


def test_it_is_listed_and_made_like_ours(install: Install) -> None:
    install()
    assert names()[0] == "merge"
    assert names()[-1] == "half"
    assert describe("half")["package"] == package_of("half") == "shapes"
    assert describe("half")["settings"]["share"] == {
        "type": "number",
        "default": 0.5,
        "what": "of the features that leave",
    }
    assert make("half", {"share": "0.25"}).share == 0.25
    with pytest.raises(MethodError, match=r"half has no setting 'blocks'; .* have it\. Settings of half: share"):
        make("half", {"blocks": 2})
    with pytest.raises(MethodError, match="did you mean half"):
        make("hal")


def test_a_model_that_is_not_made_of_steps(install: Install) -> None:
    install()
    model, images = unfused(), make_images(8)
    slim = ps.slim(model, images, "half", macs=0.8)
    assert type(slim) is type(model)
    assert getattr(slim, "plan", None) is None
    assert ps.count_macs(slim) == counted(slim) < ps.count_macs(model)
    assert slim.get_parameter("blocks.0.mlp.fc1.weight").shape == (24, 24)
    assert says(slim, images).shape == (8, 7)
    whole = ps.slim(model, images, make("half", {"share": 0.0}), macs=0.8)
    torch.testing.assert_close(says(whole, images), says(model, images))


def test_one_that_makes_a_plan_of_our_steps(install: Install) -> None:
    code = fitting("return Fitted(make_plan(task.info, [Keep()] * 3 + [Slice(n=0)]))")
    more = "from patchslim.plan import make_plan\nfrom patchslim.steps.keep import Keep\n"
    install(more + "from patchslim.steps.slice import Slice\n" + code)
    model = make_host()
    slim = ps.slim(model, make_images(4), "half", macs=0.9)
    assert slim.plan.method == "half"  # type: ignore[union-attr]
    torch.testing.assert_close(says(slim, make_images(4)), says(model, make_images(4)))


def test_its_own_errors_pass_as_they_are(install: Install) -> None:
    install(fitting('raise BudgetError("Half takes at least 0.9 of the MACs.")'))
    with pytest.raises(BudgetError, match=r"^Half takes at least 0\.9 of the MACs\.$"):
        ps.slim(make_host(), make_images(4), "half", macs=0.6)


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            'raise ValueError("no luck.\\nAt all")',
            r" failed \(ValueError: no luck\); tell its authors, or take",
        ),
        ("return 1 / 0", r" failed \(ZeroDivisionError: division by zero\); tell its authors"),
        ("return None", " has to return Fitted with a plan or a model, and gave NoneType"),
        ("return torch.nn.Linear(2, 2)", " has to return Fitted with a plan or a model, and gave Linear"),
        ("return Fitted()", " has to return Fitted with a plan or a model, and gave Fitted"),
        ("return Fitted(model='slim.pt')", " gave a str for a model"),
        ("return Fitted(plan={'steps': []})", " gave a dict for a plan"),
    ],
)
def test_what_it_does_wrong_is_said_with_its_package(install: Install, body: str, words: str) -> None:
    install(fitting(body))
    with pytest.raises(MethodError, match=f"^The method half of the package shapes{words}") as refused:
        ps.slim(make_host(), make_images(4), "half", macs=0.6)
    assert "\n" not in str(refused.value)


def test_a_plan_of_another_model_is_said_with_its_package(install: Install) -> None:
    install(fitting("import patchslim, small; return Fitted(patchslim.full_plan(small.make_host(depth=5)))"))
    with pytest.raises(MethodError, match=r"of the package shapes gave a plan for another model: .*\(depth 5\)"):
        ps.slim(make_host(), make_images(4), "half", macs=0.6)


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"code": "import no_such_library"}, r"half of the package shapes can't be loaded \(No module named 'no_such_"),
        ({"code": "1 / 0"}, r"half of the package shapes can't be loaded \(division by zero\); mend or uninstall it"),
        ({"value": "shapes_slim:Quarter"}, "half of the package shapes can't be loaded"),
        ({"code": "class Half: ..."}, "half of the package shapes is no class with a fit; mend or uninstall it"),
        ({"code": HALF + "\nhalf = Half()", "value": "shapes_slim:half"}, "is no class with a fit"),
        ({"name": "tome"}, "The package shapes names a method tome, and there is one; uninstall it"),
    ],
)
def test_a_broken_package_is_named_every_time(install: Install, how: dict[str, str], words: str) -> None:
    install(**how)
    ours = base.METHODS["tome"]
    for _ in range(2):
        with pytest.raises(MethodError, match=words):
            names()
    assert base.METHODS["tome"] is ours


def test_one_that_registers_itself_may_be_imported_first(install: Install) -> None:
    """As docs/adding_a_way_to_slim.md shows it: a decorated class in a package of its own."""
    code = HALF.replace("import Fitted", "import Fitted, register")
    install(code.replace("@dataclass", '@register("half")\n@dataclass'))
    half = import_module("shapes_slim").Half
    assert "half" in names()
    assert type(make("half")) is half
    assert package_of("half") == "shapes"


def test_our_own_errors_keep_their_traceback() -> None:
    class Ours:
        name = "ours"

        def fit(self, task: object) -> Fitted:
            raise ZeroDivisionError("a bug")

    with pytest.raises(ZeroDivisionError):
        made(Ours(), task_of(make_host()))
