"""What a method is, and the registry of all of them: ours, the peers', and those of packages from outside.

A method turns a host and images into a slim model. It is a frozen dataclass of its own few settings with one verb,
`fit`. Every module in this folder registers its own; a package adds one by the entry point group `patchslim.methods`.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, is_dataclass
from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, dataclass_transform, get_type_hints

from pydantic import ConfigDict, TypeAdapter, ValidationError
from torch import Tensor, nn

from patchslim.errors import MethodError, first_words
from patchslim.hosts import HostInfo
from patchslim.plan import SlimPlan
from patchslim.search import Draft

if TYPE_CHECKING:
    from patchslim.methods.task import Task

DEFAULT = "merge"
PLAINEST = "drop"  # whose blocks only slice: what the demo shows beside the default
GROUPS = ("ours", "the paper", "baselines", "other papers", "other packages")  # in the order of lists
GROUP = "patchslim.methods"  # entry points of other packages
COUNTED = {"blocks": "at least 1, or none for any number", "epochs": "at least 1"}  # settings of several methods


@dataclass(frozen=True)
class Fitted:
    """What a method made: a plan and weights, or a model that no plan describes.

    `weights` are under the host's names: tuned ones of the host, and what the steps own (`blocks.3.step.…`).
    """

    plan: SlimPlan | None = None
    weights: Mapping[str, Tensor] = field(default_factory=dict)
    errors: Mapping[str, float] = field(default_factory=dict)  # of the readout, or by block
    model: nn.Module | None = None
    macs: int | None = None  # of a model without a plan
    detail: Mapping[str, Any] = field(default_factory=dict)  # what the method chose


@dataclass(frozen=True)
class Method:
    """The base of all methods here. One from outside only needs `fit`."""

    name: ClassVar[str] = ""
    group: ClassVar[str] = "other papers"
    many_images: ClassVar[bool] = False  # whether more images than usual pay on a GPU
    plans: ClassVar[bool] = True  # else it gives a model without a plan, which no run folder can hold

    def __post_init__(self) -> None:
        for name, words in COUNTED.items():
            count = getattr(self, name, None)
            if count is not None and count < 1:
                raise MethodError(f"{name} has to be {words}, not {count}.")

    def draft(self, info: HostInfo) -> Draft | None:
        """Plans for any patches per block, where the method has such; without having seen an image."""
        return None

    def sketch(self, info: HostInfo, counts: Sequence[int]) -> SlimPlan:
        """A plan with so many patches per block, without having seen an image."""
        draft = self.draft(info)
        if draft is None:
            raise MethodError(f"{self.name} has no plan for given counts.")
        return draft.sketch(tuple(counts))

    @property
    def idle(self) -> Mapping[str, str]:
        """Settings that do nothing beside the others as they are, and why."""
        return {}

    def fit(self, task: "Task") -> Fitted:
        """The slim model for a task."""
        raise NotImplementedError


METHODS: dict[str, type[Any]] = {}
Made = TypeVar("Made", bound=type[Any])
_packages: dict[str, str] = {}  # of methods from outside


@dataclass_transform(frozen_default=True)
def register(name: str) -> Callable[[Made], Made]:
    """Make a class a frozen dataclass, unless it is a dataclass of its own, and a method known by a name."""

    def made(cls: Made) -> Made:
        if "__dataclass_fields__" not in vars(cls):
            dataclass(frozen=True)(cls)
        cls.name, cls.group = name, getattr(cls, "group", GROUPS[-1])
        METHODS[name] = cls
        return cls

    return made


def _load_outside() -> None:
    """Methods of other packages, each once."""
    for point in entry_points(group=GROUP):
        if point.name in _packages:
            continue
        package = point.dist.name if point.dist is not None else point.module
        before = METHODS.get(point.name)  # its own class, where its module was imported and registered it
        whose = f"The method {point.name} of the package {package}"
        try:
            cls = point.load()
        except Exception as error:
            raise MethodError(f"{whose} can't be loaded ({first_words(error)}); mend or uninstall it.") from None
        if not isinstance(cls, type) or not callable(getattr(cls, "fit", None)):
            raise MethodError(f"{whose} is no class with a fit; mend or uninstall it.")
        if before is not None and before is not cls:
            METHODS[point.name] = before
            raise MethodError(f"The package {package} names a method {point.name}, and there is one; uninstall it.")
        METHODS[point.name], _packages[point.name] = cls, package
        METHODS[point.name].name, METHODS[point.name].group = point.name, GROUPS[-1]


def package_of(name: str) -> str | None:
    """The package that a method came with; None for patchslim's own."""
    return _packages.get(name)


def names() -> list[str]:
    """Every method: the default first, then group by group."""
    _load_outside()
    return sorted(METHODS, key=lambda name: (name != DEFAULT, GROUPS.index(METHODS[name].group), name))


def method_class(name: str) -> type[Any]:
    """The class of a method; MethodError names the nearest when there is none."""
    _load_outside()
    if name in METHODS:
        return METHODS[name]
    close = get_close_matches(name, METHODS, n=1)
    hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(names())}."
    raise MethodError(f"There is no method {name!r}; {hint}")


class Setting(NamedTuple):
    """What a method can be told."""

    hint: Any  # its type
    default: Any
    what: str  # in words, where the type is annotated with them


def settings_of(name: str) -> dict[str, Setting]:
    """A method's settings by name, in the order of its fields."""
    cls = method_class(name)
    if not is_dataclass(cls):
        return {}
    hints, noted = get_type_hints(cls), get_type_hints(cls, include_extras=True)
    words = {own: "".join(map(str, getattr(hint, "__metadata__", ()))) for own, hint in noted.items()}
    return {own.name: Setting(hints[own.name], own.default, words[own.name]) for own in fields(cls)}


def set_to(method: Any) -> dict[str, Any]:
    """The settings of a method object, where it is a dataclass."""
    return asdict(method) if is_dataclass(method) and not isinstance(method, type) else {}


def type_words(hint: Any) -> str:
    """A type for a person: `int | None` → whole number or none."""
    words = {"int": "whole number", "float": "number", "bool": "true or false", "None": "none", "str": "text"}
    text = str(getattr(hint, "__name__", hint) if not hasattr(hint, "__args__") else hint)
    text = text.replace("typing.", "").replace("Literal", "").replace("NoneType", "None")
    parts = [part.strip() for part in text.split("|")]
    return " or ".join(words.get(part, part.strip("[]").replace("'", "").replace(", ", " or ")) for part in parts)


def make(name: str, settings: Mapping[str, Any] | None = None) -> Any:
    """A method by name with some settings, as text or as values; MethodError for unknown or mistyped ones."""
    cls, known, given = method_class(name), settings_of(name), {}
    for key, value in (settings or {}).items():
        if key not in known:
            raise MethodError(_unknown_setting(name, key, known))
        hint = known[key].hint
        wanted = None if isinstance(value, str) and value.lower() == "none" else value
        try:
            given[key] = TypeAdapter(hint, config=ConfigDict(strict=not isinstance(value, str))).validate_python(wanted)
        except ValidationError:
            words = type_words(hint)
            article = "a " if words.startswith(("whole number", "number")) else ""
            raise MethodError(f"The setting {key} of {name} takes {article}{words}, not {value!r}.") from None
    made = cls(**given)
    for key, why in getattr(made, "idle", {}).items():
        if key in given:
            raise MethodError(f"The setting {key} of {name} would do nothing, because {why}; leave it out.")
    return made


def _unknown_setting(name: str, key: str, known: Mapping[str, Setting]) -> str:
    """What to say of a setting that a method lacks: who has it, and what this one takes."""
    others = [other for other in names() if other != name and key in settings_of(other)]
    takes = ", ".join(f"{own} ({type_words(setting.hint)})" for own, setting in known.items()) or "none"
    has = f"; {', '.join(others)} {'has' if len(others) == 1 else 'have'} it" if others else ""
    return f"The method {name} has no setting {key!r}{has}. Settings of {name}: {takes}."


def describe(name: str) -> dict[str, Any]:
    """What a method does and when to take it, and its settings: for `patchslim methods`."""
    cls = method_class(name)
    settings = {
        key: {"type": type_words(own.hint), "default": own.default, "what": own.what}
        for key, own in settings_of(name).items()
    }
    what = inspect.getdoc(cls) or ""
    return {"name": name, "group": cls.group, "what": what, "settings": settings, "package": package_of(name)}
