"""The routes of the binding: ``path("", include("django_ojs_unique.api.urls"))``."""

from django.urls import path, re_path

from .views import batch, cron, dead_letter, events, jobs, queues, status, workers, workflows

app_name = "ojs"
urlpatterns = [
    path("ojs/v1/jobs", jobs.Jobs.as_view(), name="jobs"),
    path("ojs/v1/jobs/batch", batch.Batch.as_view(), name="batch"),
    path("ojs/v1/jobs/bulk", batch.Bulk.as_view(), name="bulk"),
    path("ojs/v1/jobs/explain", jobs.Explain.as_view(), name="explain"),
    path("ojs/v1/jobs/<str:id>", jobs.Job.as_view(), name="job"),
    path("ojs/v1/jobs/<str:id>/progress", workers.JobProgress.as_view(), name="job-progress"),
    path("ojs/v1/jobs/<str:id>/activate", jobs.Activate.as_view(), name="activate"),
    path("ojs/v1/jobs/<str:id>/retry", jobs.Retry.as_view(), name="retry"),
    path("ojs/v1/jobs/<str:id>/enqueue-again", jobs.EnqueueAgain.as_view(), name="enqueue-again"),
    path("ojs/v1/workers", workers.Workers.as_view(), name="workers"),
    path("ojs/v1/workers/fetch", workers.Fetch.as_view(), name="fetch"),
    path("ojs/v1/workers/ack", workers.Ack.as_view(), name="ack"),
    path("ojs/v1/workers/nack", workers.Nack.as_view(), name="nack"),
    path("ojs/v1/workers/progress", workers.Progress.as_view(), name="progress"),
    path("ojs/v1/workers/heartbeat", workers.Heartbeat.as_view(), name="heartbeat"),
    path("ojs/v1/workers/<path:id>/quiet", workers.Quiet.as_view(), name="quiet-worker"),
    path("ojs/v1/workers/<path:id>/terminate", workers.Terminate.as_view(), name="terminate-worker"),
    path("ojs/v1/workers/<path:id>/resume", workers.Resume.as_view(), name="resume-worker"),
    path("ojs/v1/workflows", workflows.Workflows.as_view(), name="workflows"),
    path("ojs/v1/workflows/<str:id>", workflows.Workflow.as_view(), name="workflow"),
    path("ojs/v1/events", events.Events.as_view(), name="events"),
    path("ojs/manifest", status.Manifest.as_view(), name="manifest"),
    path("ojs/v1/health", status.Health.as_view(), name="health"),
    path("ojs/v1/openapi.json", status.OpenAPI.as_view(), name="openapi"),
    path("ojs/v1/errors/<str:code>", status.ErrorCode.as_view(), name="error"),
    path("ojs/v1/queues", queues.Queues.as_view(), name="queues"),
    path("ojs/v1/queues/<str:name>/stats", queues.QueueStats.as_view(), name="queue-stats"),
    path("ojs/v1/queues/<str:name>/pause", queues.PauseQueue.as_view(), name="queue-pause"),
    path("ojs/v1/queues/<str:name>/resume", queues.ResumeQueue.as_view(), name="queue-resume"),
    path("ojs/v1/dead-letter", dead_letter.DeadLetters.as_view(), name="dead-letters"),
    path("ojs/v1/dead-letter/<str:id>", dead_letter.DeadLetter.as_view(), name="dead-letter"),
    path("ojs/v1/dead-letter/<str:id>/retry", dead_letter.RetryDeadLetter.as_view(), name="dead-letter-retry"),
    path("ojs/v1/cron", cron.Crons.as_view(), name="crons"),
    path("ojs/v1/cron/<str:name>", cron.Cron.as_view(), name="cron"),
    re_path("^ojs(?:/|$)", status.Nowhere.as_view()),
]
