"""Example requests by operation; the OpenAPI document shows them, and the tests send them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

EXAMPLES: Mapping[str, Mapping[str, Any]] = {
    "enqueueJob": {
        "A job": {"type": "email.send", "args": ["ada@example.org"], "options": {"queue": "emails"}},
        "A unique job": {
            "type": "invoice.render",
            "args": {"invoice": 7},
            "options": {"unique": {"keys": ["type", "args"], "period": "PT1H", "on_conflict": "ignore"}},
        },
        "A job for later": {
            "type": "trial.ends",
            "args": [42],
            "options": {"scheduled_at": "+P14D", "retry": {"max_attempts": 5, "initial_interval": "PT10S"}},
        },
    },
    "enqueueJobs": {"Two jobs": {"jobs": [{"type": "email.send", "args": [1]}, {"type": "email.send", "args": [2]}]}},
    "startWorkflow": {
        "A chain": {
            "type": "chain",
            "name": "month-end",
            "options": {"queue": "billing"},
            "steps": [
                {"type": "ledger.close", "args": [{"month": "2026-10"}]},
                {
                    "type": "group",
                    "jobs": [
                        {"type": "export.csv", "args": [{"month": "2026-10"}]},
                        {"type": "export.pdf", "args": [{"month": "2026-10"}]},
                    ],
                },
                {"type": "mail.notify", "args": ["finance"], "options": {"queue": "mail"}},
            ],
        },
        "A batch": {
            "type": "batch",
            "jobs": [{"type": "email.send", "args": [1]}, {"type": "email.send", "args": [2]}],
            "callbacks": {"on_failure": {"type": "ops.alert", "args": []}},
        },
        "Steps that depend on others": {
            "steps": [
                {"id": "load", "type": "data.load", "args": []},
                {"id": "check", "type": "data.check", "args": [], "depends_on": ["load"]},
            ],
        },
    },
    "fetchJobs": {"Up to five jobs": {"queues": ["emails", "default"], "count": 5, "worker_id": "worker-1"}},
    "ackJob": {"With a result": {"job_id": "01890a5d-ac96-774b-bcce-b302099a8057", "result": {"pages": 3}}},
    "nackJob": {
        "A failure": {
            "job_id": "01890a5d-ac96-774b-bcce-b302099a8057",
            "error": {"code": "handler_error", "type": "smtp.refused", "message": "554", "retryable": True},
        },
        "A requeue": {"job_id": "01890a5d-ac96-774b-bcce-b302099a8057", "requeue": True},
    },
    "putProgress": {"Almost half": {"progress": 0.47, "progress_note": "14,000 of 30,000 rows"}},
    "reportProgress": {"Almost half": {"job_id": "01890a5d-ac96-774b-bcce-b302099a8057", "progress": 0.47}},
    "heartbeat": {"Still busy": {"worker_id": "worker-1", "active_jobs": ["01890a5d-ac96-774b-bcce-b302099a8057"]}},
    "defineCron": {
        "Each night": {
            "name": "nightly",
            "expression": "30 2 * * *",
            "timezone": "Europe/Berlin",
            "job_template": {"type": "report.nightly", "args": [], "options": {"queue": "reports"}},
        }
    },
}
