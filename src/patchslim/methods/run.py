"""Running a method: the one way from a method and a task to a checked, signed result and its model."""

from dataclasses import asdict, is_dataclass, replace
from typing import Any

from torch import nn

from patchslim.errors import MethodError, PatchslimError, PlanError, first_words
from patchslim.hosts.weights import weights_fingerprint
from patchslim.macs import MADE, host_macs, plan_macs
from patchslim.methods.base import Fitted, package_of
from patchslim.methods.task import Task
from patchslim.plan import HOST, SPEED, SlimPlan
from patchslim.slim import apply


def fit(method: Any, task: Task) -> Fitted:
    """What a method makes of a task, its plan signed with how it came about."""
    name = getattr(method, "name", type(method).__name__)
    package = package_of(name)
    try:
        found = method.fit(task)
    except PatchslimError:
        raise
    except Exception as error:
        if package is None:
            raise
        raise MethodError(
            f"The method {name} of the package {package} failed ({type(error).__name__}: {first_words(error)}); "
            "tell its authors, or take another method."
        ) from error
    _check(found, task, name, package)
    fitted: Fitted = found
    return fitted if fitted.plan is None else replace(fitted, plan=signed(fitted.plan, method, task, fitted))


def _check(found: Any, task: Task, name: str, package: str | None) -> None:
    """Raise MethodError for a result that is none."""
    whose = f"The method {name}" + ("" if package is None else f" of the package {package}")
    if not isinstance(found, Fitted) or (found.plan is None) == (found.model is None):
        raise MethodError(f"{whose} has to return Fitted with a plan or a model, and gave {type(found).__name__}.")
    if found.plan is not None and not isinstance(found.plan, SlimPlan):
        raise MethodError(f"{whose} gave a {type(found.plan).__name__} for a plan.")
    if found.model is not None and not isinstance(found.model, nn.Module):
        raise MethodError(f"{whose} gave a {type(found.model).__name__} for a model.")
    if found.plan is not None:
        try:
            found.plan.check_fits(task.info)
        except PlanError as error:
            raise MethodError(f"{whose} gave a plan for another model: {error}") from None


def signed(plan: SlimPlan, method: Any, task: Task, found: Fitted) -> SlimPlan:
    """The plan with a word on how it came about."""
    macs = plan_macs(task.info, plan)
    provenance: dict[str, Any] = {
        "settings": asdict(method) if is_dataclass(method) and not isinstance(method, type) else {},
        "target": task.target.as_dict(),
        "seed": task.seed,
        "tolerance": task.target.allowed,
        HOST: task.once("weights", lambda: weights_fingerprint(task.host.model)),
        "images": len(task.images) - task.images.skipped,
        "errors": dict(found.errors),
        "macs": macs,
        "macs_ratio": macs / host_macs(task.info),
        **dict(found.detail),
    }
    if task.report:
        provenance[SPEED] = dict(task.report)
    return plan.with_(method=getattr(method, "name", "") or plan.method, provenance=provenance)


def model_of(found: Fitted, host: nn.Module) -> nn.Module:
    """The slim model that a method made of a host."""
    if found.model is not None:
        setattr(found.model, MADE, found.macs)
        return found.model
    assert found.plan is not None
    return apply(host, found.plan, found.weights)
