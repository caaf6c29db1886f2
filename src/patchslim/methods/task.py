"""What a method works on: a host, images, a limit; the verbs that all methods share; and the one way from both to a
checked, signed result and its model."""

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch
from torch import Tensor, nn

from patchslim.cache import Cache
from patchslim.data import AnyImages, ImageSource, as_source
from patchslim.errors import BudgetError, MethodError, PatchslimError, PlanError, first_words
from patchslim.events import Listener, silent
from patchslim.evidence.features import Features
from patchslim.evidence.network import relative_error
from patchslim.hosts import Host, HostInfo, copied, open_host, open_slim, unwrapped
from patchslim.hosts.weights import weights_fingerprint
from patchslim.macs import MADE, host_macs, plan_macs
from patchslim.methods.base import Fitted, package_of, set_to
from patchslim.plan import HOST, SPEED, SlimPlan
from patchslim.search import Draft, Target
from patchslim.search.cost import Budget, MacCost, check_reachable
from patchslim.search.measured import Measured
from patchslim.search.speed import SpeedBudget, meet_speedup, reported
from patchslim.slimmed import apply
from patchslim.slimmed.assemble import fingerprint, own_weights
from patchslim.timing.stopwatch import Stopwatch

Knob = TypeVar("Knob")
Thing = TypeVar("Thing")
STEPS = 8  # halvings of the MAC ratio where a tolerance is the limit


@dataclass
class Task:
    """One host and its images; labels are never read. What is costly is remembered across ratios.

    `report` says how fast the plan is, once a speed-up was met.
    """

    host: Host
    images: ImageSource
    target: Target = field(default_factory=Target)
    seed: int = 0
    batch_size: int = 32
    memory_gib: float = 2.0  # bound on cached features; past it they are computed again
    cache: Cache = field(default_factory=Cache)
    progress: Listener = silent
    known: dict[Any, Any] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=dict)
    budget: Budget | None = None  # the latest that was asked for

    @classmethod
    def of(cls, model: nn.Module, images: AnyImages, target: Target | None = None, **settings: Any) -> Self:
        """A task for a model, which is left as it was. Whatever its precision, what images say is found out in fp32."""
        host = open_host(copied(unwrapped(model)).eval().float().requires_grad_(False))
        return cls(host, as_source(images, host.info), target or Target(), **settings)

    def at(self, target: Target) -> Self:
        """The same task with another limit; everything found out so far serves it too."""
        return replace(self, target=target, report={}, budget=None)

    @property
    def info(self) -> HostInfo:
        """The host's description."""
        return self.host.info

    @property
    def device(self) -> torch.device:
        """Where the host is."""
        first: Tensor = next(self.host.model.parameters())
        return first.device

    @property
    def features(self) -> Features:
        """The host's features on the images, cached within the bound on memory."""
        made: Features = self.once(
            "features", lambda: Features(self.host, self.images, self.batch_size, self.memory_gib * 2**30)
        )
        made.focus((0, self.info.depth))
        return made

    def fresh_host(self) -> Host:
        """A copy of the host, to build from."""
        return open_host(copied(self.host.model).eval())

    def once(self, key: Any, make: Callable[[], Thing]) -> Thing:
        """What is costly: made the first time it is asked for, remembered for other ratios."""
        if key not in self.known:
            self.known[key] = make()
        found: Thing = self.known[key]
        return found

    def limit(self, draft: Draft) -> Budget:
        """What limits plans of a draft: MACs, time, or nothing but their error."""
        if self.target.macs is not None:
            check_reachable(draft, self.target.macs)
        if self.target.speedup is None:
            self.budget = Budget(MacCost(draft), self.target.macs)
        else:
            self.budget = SpeedBudget(self.stopwatch(), draft, self.target.speedup)
        return self.budget

    def stopwatch(self, rectangular: bool = True) -> Stopwatch:
        """Times plans on the device of the host, under the target's conditions."""
        return Stopwatch(self.host, self.target.conditions, self.cache, self.progress, rectangular=rectangular)

    def allocate(
        self, draft: Draft, parts: Mapping[int, nn.Module] | None = None, budget: Budget | None = None
    ) -> tuple[SlimPlan, float]:
        """Patches per block by the measured error of the whole network, within the limit: the plan and its error."""
        budget = budget or self.limit(draft)
        measured = Measured(self.host, self.features, self.cache, self.progress, draft, budget, parts or {})
        return measured.search(self.target.allowed)

    def fitted(self, plan: SlimPlan, parts: Mapping[int, nn.Module], **more: Any) -> Fitted:
        """A plan and what its steps own, by block: both sealed by one fingerprint."""
        weights = own_weights(self.host, plan, parts)
        return Fitted(plan.with_(weights=fingerprint(weights)), weights, **more)

    def first(self, ladder: Sequence[Knob], macs: Callable[[Knob], int], ratio: float, method: str) -> Knob:
        """The first of some settings, each cheaper than the one before, within a share of the host's MACs."""
        whole = host_macs(self.info)
        place = bisect_left(ladder, True, key=lambda own: macs(own) <= int(ratio * whole))
        if place == len(ladder):
            least = macs(ladder[-1]) / whole if ladder else 1.0
            raise BudgetError(f"{method} takes at least {least:.3f} of {self.info.name}'s MACs, more than {ratio:g}.")
        return ladder[place]

    def meet(self, find: Callable[[float], Fitted]) -> Fitted:
        """What a search that goes by a MAC ratio finds within the limit, whatever that is."""
        if self.target.macs is not None:
            return find(self.target.macs)
        if self.target.speedup is not None:
            return self._as_fast(find, self.target.speedup)
        return self._as_exact(find, self.target.allowed or 0.0)

    def _as_fast(self, find: Callable[[float], Fitted], speedup: float) -> Fitted:
        watch = self.stopwatch()

        def planned(ratio: float) -> tuple[SlimPlan, Fitted]:
            found = find(min(ratio, 1.0))
            if found.plan is None:
                raise BudgetError("A model without a plan can't be made for a speed-up; give a MAC ratio.")
            return found.plan, found

        (_, found), timed = meet_speedup(planned, watch.whole, speedup)
        self.report.update(reported(watch, speedup, timed))
        return found

    def _as_exact(self, find: Callable[[float], Fitted], tolerance: float) -> Fitted:
        """The smallest ratio, by halves, whose error is within the tolerance."""
        low, high, best = 0.0, 1.0, None
        for _ in range(STEPS):
            middle = (low + high) / 2
            try:
                found = find(middle)
                within = self.error_of(found) <= tolerance
            except BudgetError:
                within = False
            if within:
                best = found
            low, high = (low, middle) if within else (middle, high)
        if best is None:
            raise BudgetError(f"No model is within a tolerance of {tolerance:g}; give a larger one, or a MAC ratio.")
        return best

    @torch.no_grad()
    def error_of(self, found: Fitted) -> float:
        """The relative error of what the head reads, averaged over the images."""
        slim, errors = open_slim(model_of(found, self.host.model).eval()), []
        for x, out in self.features.batches(0, self.info.depth):
            state: Any = x
            for block in slim.blocks:
                state = block(state, None)
            errors.append(relative_error(slim.features(state), self.host.features(out)))
        return float(torch.cat([error.double().cpu() for error in errors]).mean())


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
    fitted = _checked(found, task, name, package)
    if isinstance(task.budget, SpeedBudget):
        task.report.update(task.budget.report)
    return fitted if fitted.plan is None else replace(fitted, plan=signed(fitted.plan, method, task, fitted))


def _checked(found: Any, task: Task, name: str, package: str | None) -> Fitted:
    """What a method gave; MethodError when it is no result."""
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
    return found


def signed(plan: SlimPlan, method: Any, task: Task, found: Fitted) -> SlimPlan:
    """The plan with a word on how it came about."""
    macs = plan_macs(task.info, plan)
    provenance: dict[str, Any] = {
        "settings": set_to(method),
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
        return found.model.to(next(host.parameters()).dtype).train(host.training)
    assert found.plan is not None
    return apply(host, found.plan, found.weights)
