"""A statement in the forms of others: what it answers is filled in, what the operator must answer is marked.

NIST SP 800-226 evaluates a guarantee in layers: the questions are in our words, in the order of the layers.
The registry's record has the fields of the deployments registry (arXiv 2509.13509; the template of
opendp/deployments-registry-data), as JSON, which a YAML reader takes. SACRO's report is that of sacroml's
attack-report schema, with bounds on every attacker in the place of an attack's results.
"""

from __future__ import annotations

import json
from typing import Any

from anechoic.statement.attacker import ACCUSED, attacker_of
from anechoic.statement.rounding import shortened
from anechoic.statement.statement import Statement

OPEN = "OPEN"

_LAYERS: tuple[tuple[str, tuple[tuple[str, str], ...]], ...] = (
    (
        "Privacy parameters and unit",
        (
            ("How large are epsilon and delta, and of what?", "Guarantee"),
            ("Which theorem gives them?", "Notion"),
            ("What is the unit of privacy?", "Privacy unit"),
            ("Which data sets count as neighbours?", "Adjacency"),
            ("What does an attacker gain at most?", "Attacker"),
            ("Why are these parameters enough for these people and these data?", ""),
            ("Which other releases use the same data, and what do all of them cost together?", ""),
        ),
    ),
    (
        "Algorithms: correctness, utility and bias",
        (
            ("Which mechanism is run?", "Strategy"),
            ("How is the influence of one unit bounded?", "Clip norm"),
            ("What is its sensitivity?", "Sensitivity"),
            ("How much noise is added?", "Noise std"),
            ("How are batches formed, and who promises it?", "Access to data"),
            ("Where are the proofs?", "Proofs"),
            ("How accurate are the results, and how was that measured?", ""),
            ("Whom do clipping and noise hurt most, such as small groups?", ""),
        ),
    ),
    (
        "Implementation: models of query and trust, side channels",
        (
            ("Against whom does the guarantee hold?", "Observer"),
            ("Are sums and noise safe from floating point?", "Arithmetic"),
            ("What is not covered?", "Not covered"),
            ("What must the deployment ensure?", "Deployment"),
            ("Which software, in which version?", "Software"),
            ("Who asks queries, and may they depend on earlier answers?", ""),
            ("How was the implementation tested or audited?", ""),
        ),
    ),
    (
        "Security and collection of the data",
        (
            ("Who can read the raw data and the keys, and how is that enforced?", ""),
            ("How were the data collected, with which consent, and when are they deleted?", ""),
        ),
    ),
)


def answers(statement: Statement) -> list[dict[str, Any]]:
    """The questions in the order of NIST SP 800-226's layers; an answer of None is the operator's."""
    said = dict(statement.pairs)
    said["Software"] = ", ".join(f"{name} {version}" for name, version in statement.software.items())
    return [
        {"layer": layer, "question": question, "answer": said.get(heading)}
        for layer, questions in _LAYERS
        for question, heading in questions
    ]


def as_nist_json(statement: Statement) -> str:
    """`answers` as JSON; an open answer is null."""
    form = {"form": "NIST SP 800-226, by its layers", "answers": answers(statement)}
    return json.dumps({**form, "fingerprint": statement.fingerprint}, indent=1, ensure_ascii=False)


def registry(statement: Statement) -> dict[str, Any]:
    """The record of a deployment for the registry; texts that begin with OPEN are the operator's."""
    record, said = statement.record, dict(statement.pairs)
    guarantee = record["guarantee"]
    parameters = {"epsilon": shortened(guarantee["epsilon"]), "delta": guarantee["delta"]}
    if "rho" in guarantee and not guarantee.get("epsilon_is_amplified"):
        parameters["rho"] = shortened(guarantee["rho"])
    many = guarantee.get("releases", 2) != 1

    def open_(what: str) -> str:
        return f"{OPEN}: {what}"

    return {
        "url_slug": open_("product-curator-year"),
        "deployment": {
            "basic": {
                "name": open_("of the data product"),
                "data_curators": [{"data_curator_name": open_("who"), "data_curator_type": open_("kind")}],
                "description": open_("what is published"),
                "intended_use": open_("what for"),
                "data_product_type": open_("such as Summary statistics, or Machine learning model"),
                "data_product_region": open_("where"),
                "data_product_sector": open_("such as Healthcare"),
                "publication_date": open_("YYYY-MM-DD"),
            },
            "dp_variant": {
                "variant_name": "Approximate DP",
                "data_domain": open_("which data sets are protected"),
                "unprotected_quantities": "; ".join(statement.not_covered),
            },
            "privacy_loss": {
                "privacy_unit": f"{record['unit'].capitalize()}-level",
                "privacy_unit_details": said.get("Adjacency", open_("neighbouring data sets")),
                "number_of_privacy_units": open_("how many units the data have, a number"),
                "privacy_parameters": parameters,
                "privacy_parameters_details": f"{said['Guarantee']}. {said.get('Attacker', '')}".strip(),
            },
            "deployment_model": {
                "model_name": "Central",
                "model_name_details": open_("who sees raw data; another model where sums are secret"),
                "trust_assumptions": "; ".join(f"{a.who}: {a.what}" for a in statement.assumptions),
                "actors": f"Observer: {statement.observer}. {open_('who takes part')}",
                "release_type": "Many releases" if many else "One release",
                "release_type_details": said["Guarantee"],
                "data_source_type": open_("Static or Dynamic"),
                "data_source_type_details": open_("whether data come in over time"),
                "access_type": open_("Interactive or Non-interactive"),
                "access_type_details": open_("who asks"),
            },
            "implementation": {
                "preprocessing_and_hyperparameter_tuning": open_("and whether it was paid for"),
                "mechanisms": "; ".join(
                    f"{name}: {said[name]}"
                    for name in ("Strategy", "Noise std", "Arithmetic")
                    if name in said
                ),
                "composition": said.get("Notion", open_("how losses add up")),
                "post_processing": open_("what is computed from the releases"),
                "justification": open_("of the choices"),
                "utility": open_("how accurate"),
                "additional_information": f"Proofs: {said['Proofs']}. Fingerprint: {statement.fingerprint}",
            },
            "administrative": {
                "evidence_sources": {},
                "status": "Draft",
                "registry_authors": [open_("who filled this in")],
                "tier": 3,
            },
        },
    }


#: What sacroml calls its metrics, and what stands there.
_METRICS = {
    "AUC": "largest area under the ROC curve",
    "ACC": "largest probability of being right at even odds",
    "Advantage": "largest true minus false positive rate",
    **{
        f"TPR@{each:g}": f"largest true positive rate at a false positive rate of {each:g}"
        for each in ACCUSED
    },
}
_NAME = "Differential privacy bound"


def sacro(statement: Statement) -> dict[str, Any]:
    """An attack report for SACRO's tools, with bounds on every membership inference attack."""
    attacker = attacker_of(statement.record)
    if attacker is None:
        raise ValueError(
            "this statement has no epsilon, so no attack is bounded: report it in another format."
        )
    right = attacker.right(0.5)
    figures = [attacker.area(), right, 2 * right - 1, *map(attacker.found, ACCUSED)]
    bounds = dict(zip(_METRICS, figures, strict=True))
    definition = "holds for every attacker, by the guarantee; no attack was run"
    metrics = {
        name: {"label": name, "description": f"{text}; {definition}", "allowed_aggregations": ["max"]}
        for name, text in _METRICS.items()
    }
    said = f"anechoic {statement.software.get('anechoic', '')}; sacroml was not run"
    return {
        "report_schema_version": "1.0",
        "metric_catalog": {"version": "1.0", "metrics": metrics},
        "parameter_catalog": {"version": "1.0", "parameters": {}},
        "attack_category_catalog": {
            "version": "1.0",
            "categories": {"bound": {"label": "Bound", "description": definition, "order": 0}},
        },
        "attack_catalog": {
            "attacks": {
                _NAME: {
                    "label": _NAME,
                    "description": dict(statement.pairs)["Attacker"],
                    "attack_category": "bound",
                    "key_metrics": list(_METRICS),
                    "attack_params": {},
                }
            }
        },
        "attacks": {
            _NAME: {
                "log_id": statement.fingerprint,
                "log_time": "",
                "metadata": {
                    "sacroml_version": said,
                    "attack_name": _NAME,
                    "attack_params": {},
                    "global_metrics": dict(zip(("epsilon", "delta"), attacker.points[0], strict=True)),
                },
                "attack_experiment_logger": {"attack_instance_logger": {"instance_0": bounds}},
            }
        },
    }
