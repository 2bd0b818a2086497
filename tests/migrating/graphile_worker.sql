-- What Graphile Worker 0.17 keeps about a job, and its public view and function, as far as the guide uses them.
CREATE SCHEMA graphile_worker;
CREATE TABLE graphile_worker._private_tasks (
    id integer PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    identifier text NOT NULL UNIQUE
);
CREATE TABLE graphile_worker._private_jobs (
    id bigint PRIMARY KEY GENERATED ALWAYS AS IDENTITY,
    task_id integer NOT NULL,
    payload json NOT NULL DEFAULT '{}',
    priority smallint NOT NULL DEFAULT 0,
    run_at timestamptz NOT NULL DEFAULT now(),
    attempts smallint NOT NULL DEFAULT 0,
    max_attempts smallint NOT NULL DEFAULT 25,
    key text UNIQUE,
    locked_at timestamptz
);
CREATE VIEW graphile_worker.jobs AS
    SELECT jobs.id, tasks.identifier AS task_identifier, priority, run_at, attempts, max_attempts, key, locked_at
    FROM graphile_worker._private_jobs AS jobs JOIN graphile_worker._private_tasks AS tasks ON tasks.id = jobs.task_id;
CREATE FUNCTION graphile_worker.complete_jobs(job_ids bigint[]) RETURNS SETOF graphile_worker._private_jobs
    LANGUAGE sql
    AS $$
        DELETE FROM graphile_worker._private_jobs
        WHERE id = ANY(job_ids) AND (locked_at IS NULL OR locked_at < now() - interval '4 hours')
        RETURNING *
    $$;
