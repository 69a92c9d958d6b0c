"""Fields of the page as a call of `plan`."""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any

from anechoic.participation import MinSep
from anechoic.planning.update import UpdateRule

#: Fields that have another name than the argument that an error names.
_FIELDS = {"separation": "min_sep"}


@dataclass(frozen=True)
class PlanForm:
    """The text of each field; an empty one is not given.

    Attributes:
        order: "passes" over the data, or "time" where batches follow the records' own order.
        batch_size, epochs: several, with spaces between them, are compared.
        sampling: how batches may be formed in passes: "any", or the name of a scheme.
        min_sep, max_participations: promised in time order; without them a unit has one record.
        optimizer: "sgd" with `momentum`, or "adam".
        keep: what `plan` calls so.
    """

    examples: str = "60000"
    order: str = "passes"
    batch_size: str = "1000"
    epochs: str = "10"
    sampling: str = "any"
    min_sep: str = ""
    max_participations: str = ""
    epsilon: str = "2"
    delta: str = "1e-6"
    optimizer: str = "sgd"
    momentum: str = "0.9"
    schedule: str = "cooldown"
    keep: str = "last"
    dimension: str = "1000000"
    memory_budget: str = ""

    def arguments(self) -> dict[str, Any]:
        """The keywords of `plan`: those that are left out there are left out here.

        Raises:
            ValueError: for a promise that is half given. All else `plan` checks itself.
        """
        found: dict[str, Any] = {
            "examples": number(self.examples),
            "batch_size": _several(self.batch_size),
            "epochs": 1 if self.order == "time" else _several(self.epochs),
            "epsilon": number(self.epsilon),
            "delta": number(self.delta),
        }
        if self.dimension.strip():
            found["dimension"] = number(self.dimension)
        if self.memory_budget.strip():
            found["memory_budget"] = number(self.memory_budget)
        if self.order == "time":
            found["random_sampling"] = False
            found |= self._promise()
        elif self.sampling != "any":
            found["sampling"] = self.sampling
        if self.optimizer == "adam":
            found["optimizer"] = "adam"
        elif self.momentum.strip() and number(self.momentum) != 0:
            found["optimizer"] = UpdateRule("sgd", number(self.momentum))
        if self.schedule != "constant":
            found["scheduler"] = self.schedule
        if self.keep != "last":
            found["keep"] = self.keep
        return found

    def _promise(self) -> dict[str, Any]:
        most = self.max_participations.strip()
        if not self.min_sep.strip():
            if most:
                raise ValueError(
                    f"max_participations={most} needs min_sep, the steps between two records of one unit."
                )
            return {}
        return {"participation": MinSep(number(self.min_sep), number(most) if most else None)}

    def code(self) -> str:
        """Python that makes the same plan, for a script or a notebook."""
        given = self.arguments()
        imports = ["import anechoic as an"]
        if isinstance(given.get("optimizer"), UpdateRule):
            imports.append("from anechoic.planning.update import UpdateRule  # or pass your torch.optim.SGD")
        if "participation" in given:
            imports.append("from anechoic.participation import MinSep")
        lines = [f"    {name}={_source(value)}," for name, value in given.items()]
        return "\n".join([*imports, "", "plan = an.plan(", *lines, ")", "print(plan)", ""])


def number(text: str) -> Any:
    """60000, 60,000, 60_000 and 6e4 as an int, other numbers as a float, other text as it is."""
    try:
        value = Decimal(text.strip().replace(",", "").replace("_", ""))
    except InvalidOperation:
        return text.strip()
    whole = value.is_finite() and abs(value) < 10**18 and value == int(value)
    return int(value) if whole else float(value)


def field_of(error: Exception) -> str:
    """The field that an error of the library is about: it begins with the argument and its value."""
    match = re.match(r"(\w+)(=| is empty)", str(error))
    name = _FIELDS.get(match[1], match[1]) if match else ""
    return name if name in PlanForm.__dataclass_fields__ else ""


def _several(text: str) -> Any:
    """One number, or a list of those with spaces between them."""
    found = [number(one) for one in text.split() or [""]]
    return found if len(found) > 1 else found[0]


def _source(value: Any) -> str:
    if isinstance(value, UpdateRule):
        return f"UpdateRule({value.kind!r}, {value.momentum!r})"
    return f"{value:_}" if isinstance(value, int) and not isinstance(value, bool) else repr(value)
