-- Let what calls Graphile Worker's functions enqueue here: see docs/coming-from-graphile-worker.md.
-- Each call puts a request into the inbox, in the caller's transaction, and returns its number.
-- The roles that call them need: GRANT EXECUTE ON FUNCTION ojs_enqueue(text, jsonb, jsonb), ojs_remove(text, text).

CREATE SCHEMA IF NOT EXISTS graphile_worker;

DO $$ BEGIN
    CREATE TYPE graphile_worker.job_spec AS (
        identifier text, payload json, queue_name text, run_at timestamptz, max_attempts smallint, job_key text,
        priority smallint, flags text[]
    );
EXCEPTION WHEN duplicate_object THEN  -- Graphile Worker has made it
END $$;

DROP FUNCTION IF EXISTS graphile_worker.add_job(text, json, text, timestamptz, int, text, int, text[], text);
DROP FUNCTION IF EXISTS graphile_worker.add_jobs(graphile_worker.job_spec[], boolean);
DROP FUNCTION IF EXISTS graphile_worker.remove_job(text);

CREATE FUNCTION graphile_worker.add_job(
    identifier text, payload json DEFAULT NULL, queue_name text DEFAULT NULL, run_at timestamptz DEFAULT NULL,
    max_attempts int DEFAULT NULL, job_key text DEFAULT NULL, priority int DEFAULT NULL, flags text[] DEFAULT NULL,
    job_key_mode text DEFAULT 'replace'
) RETURNS bigint LANGUAGE sql AS $$
    SELECT ojs_enqueue(
        CASE identifier WHEN 'send_welcome' THEN 'email.welcome' ELSE identifier END,  -- your names here
        coalesce(payload, '{}')::jsonb,
        jsonb_strip_nulls(jsonb_build_object(
            'key', job_key,
            'key_mode', CASE WHEN job_key IS NOT NULL THEN coalesce(job_key_mode, 'replace') END,
            -- A key counts within its task, as for what move() has moved; for all tasks:
            -- 'key_scope', CASE WHEN job_key IS NOT NULL THEN 'global' END,
            'delay_until', to_char(run_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"'),
            'priority', greatest(-100, least(-priority, 100)),
            'retry', CASE WHEN max_attempts IS NOT NULL THEN jsonb_build_object('max_attempts', max_attempts) END,
            'tags', to_jsonb(flags),
            'metadata', CASE WHEN queue_name IS NOT NULL THEN jsonb_build_object('queue_name', queue_name) END,
            'limits', CASE WHEN queue_name IS NOT NULL  -- one job of the queue at a time
                THEN '[{"name": "queue_name", "key": ["meta.queue_name"], "running": 1}]'::jsonb END
        ))
    )
$$;

CREATE FUNCTION graphile_worker.add_jobs(
    specs graphile_worker.job_spec[], job_key_preserve_run_at boolean DEFAULT false
) RETURNS SETOF bigint LANGUAGE sql AS $$
    SELECT graphile_worker.add_job(
        one.identifier, one.payload, one.queue_name, one.run_at, one.max_attempts, one.job_key, one.priority, one.flags,
        CASE WHEN job_key_preserve_run_at THEN 'preserve_run_at' ELSE 'replace' END
    ) FROM unnest(specs) WITH ORDINALITY AS one ORDER BY one.ordinality
$$;

CREATE FUNCTION graphile_worker.remove_job(job_key text) RETURNS bigint LANGUAGE sql AS $$
    SELECT ojs_remove(job_key)
$$;
