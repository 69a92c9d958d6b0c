"""A statement as JSON: the keys are documented in docs/statement.md and stay."""

from __future__ import annotations

import json
import math
from typing import Any

from anechoic.statement.statement import Statement

VERSION = 1


def as_json(statement: Statement) -> str:
    """The statement as JSON; numbers in full, null where a number is not finite or does not exist."""
    record = {
        "statement": VERSION,
        **statement.record,
        "assumptions": [{"who": each.who, "what": each.what} for each in statement.assumptions],
        "observer": dict(statement.pairs)["Observer"],
        "deployment": list(statement.duties),
        "not_covered": list(statement.not_covered),
        "proofs": [{"title": proof.title, "page": proof.page} for proof in statement.proofs],
        "software": statement.software,
        "fingerprint": statement.fingerprint,
    }
    return json.dumps(_finite(record), indent=1, ensure_ascii=False, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_finite(each) for each in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
