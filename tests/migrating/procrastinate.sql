-- What Procrastinate 3.10 keeps about a job, as far as the guide uses it.
CREATE TYPE procrastinate_job_status AS ENUM ('todo', 'doing', 'succeeded', 'failed', 'cancelled', 'aborting', 'aborted');
CREATE TABLE procrastinate_jobs (
    id bigserial PRIMARY KEY,
    queue_name varchar(128) NOT NULL DEFAULT 'mail',
    task_name varchar(128) NOT NULL DEFAULT 'shop.tasks.send_welcome',
    priority integer NOT NULL DEFAULT 0,
    lock text,
    queueing_lock text,
    args jsonb NOT NULL DEFAULT '{}',
    status procrastinate_job_status NOT NULL DEFAULT 'todo',
    scheduled_at timestamptz,
    attempts integer NOT NULL DEFAULT 0
);
CREATE UNIQUE INDEX ON procrastinate_jobs (queueing_lock) WHERE status = 'todo';
