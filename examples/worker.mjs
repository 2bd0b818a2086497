// A worker outside of Django: it fetches jobs over HTTP, runs them, and reports the results.
//
// It sends heartbeats while it works, and follows an operator's directives "quiet" and "terminate". On SIGTERM it ends
// after its present job. A job that it does not finish becomes available again when its lease expires. Needs Node.js 18
// or newer, no package, and a server: `make serve` has one.
//
//     OJS_URL=http://127.0.0.1:8000 OJS_TOKEN=demo node examples/worker.mjs letters

import { hostname } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

const HANDLERS = {
  "letter.count": async (job) => ({ letters: job.args[0].text.length }),
};

/** Runs the jobs of some queues, one at a time; start as many processes as you like. A lease is in seconds. */
export class Worker {
  constructor(url, token, queues, handlers, lease = 30) {
    Object.assign(this, { url, queues, handlers, lease });
    this.headers = { Authorization: `Token ${token}`, "Content-Type": "application/json" };
    this.id = `${hostname()}:${process.pid}:http`;
    this.state = "running";
    this.job = null;
    this.pause = 0;
    this.stopping = new AbortController();
  }

  /** Let the worker end after its present job. */
  stop() {
    this.stopping.abort();
  }

  /** Work until `stop`, or until the server says "terminate". */
  async run() {
    await this.beat();
    const stopped = new AbortController();
    const heart = this.live(stopped.signal);
    heart.catch(() => this.stop()); // `await heart` throws it again
    try {
      while (!this.stopping.signal.aborted) {
        if (this.state !== "running") {
          await rest(1, this.stopping.signal);
          continue;
        }
        // The server holds the request until there is a job, at most for `wait` seconds.
        const types = Object.keys(this.handlers);
        const { jobs } = await this.call("fetch", { queues: this.queues, types, wait: 5 });
        for (const job of jobs) await this.work(job);
        await rest(this.pause, this.stopping.signal);
      }
    } finally {
      stopped.abort();
      await heart;
    }
  }

  async work(job) {
    this.job = job;
    const ours = { job_id: job.id, lease_token: job.lease_token }; // invalid once another worker has the job
    let report;
    try {
      report = ["ack", { ...ours, result: await this.handlers[job.type](job) }];
    } catch (error) {
      const failure = { type: error.name, code: "handler_error", message: error.message };
      report = ["nack", { ...ours, error: failure }];
    }
    const answer = await this.call(...report);
    this.job = null;
    console.log(`${job.type} ${job.id}: ${answer.state ?? "not ours any more"}`);
  }

  /** Send heartbeats until the last job has ended, too. */
  async live(stopped) {
    while (await rest(this.lease / 4, stopped)) await this.beat();
  }

  /** Extend the lease of the job, and get the server's directive: running, quiet or terminate. */
  async beat() {
    const jobs = this.job ? [this.job] : [];
    const ids = jobs.map((job) => job.id);
    const tokens = jobs.map((job) => job.lease_token);
    this.state = (await this.call("heartbeat", { active_jobs: ids, lease_tokens: tokens })).state;
    if (this.state === "terminate") this.stop();
  }

  /** Send a request until the server answers. A 409, because the job is not ours any more, is an answer, too. */
  async call(action, members) {
    const asks = action === "fetch" || action === "heartbeat";
    const lease = asks ? { visibility_timeout_ms: Math.round(this.lease * 1000) } : {};
    const body = JSON.stringify({ ...members, ...lease, worker_id: this.id });
    for (;;) {
      try {
        const request = { method: "POST", headers: this.headers, body, signal: AbortSignal.timeout(30_000) };
        const answer = await fetch(`${this.url}/ojs/v1/workers/${action}`, request);
        if (answer.status < 500 && answer.status !== 429) return await this.understood(action, answer);
      } catch (error) {
        if (error instanceof Refused) throw error;
        console.error(`${action}: ${error.cause ?? error}`);
      }
      await sleep(1000);
      if (asks && this.stopping.signal.aborted) return { jobs: [], state: this.state };
    }
  }

  async understood(action, answer) {
    const content = await answer.json();
    if (!answer.ok && answer.status !== 409) throw new Refused(`${action}: ${content.error.message}`);
    // If too many fetches wait, the server says when to fetch again.
    if (action === "fetch") this.pause = Number(answer.headers.get("Retry-After") ?? 0);
    return content;
  }
}

/** The server refuses what this worker asks for: to ask again would not help. */
class Refused extends Error {}

/** Wait; return whether the time is over, not cut short by the signal. */
async function rest(seconds, signal) {
  await sleep(seconds * 1000, undefined, { signal }).catch(() => {});
  return !signal.aborted;
}

async function main() {
  const queues = process.argv.length > 2 ? process.argv.slice(2) : ["default"];
  const url = process.env.OJS_URL ?? "http://127.0.0.1:8000";
  const worker = new Worker(url, process.env.OJS_TOKEN ?? "demo", queues, HANDLERS);
  for (const signal of ["SIGTERM", "SIGINT"]) process.on(signal, () => worker.stop());
  console.log(`${worker.id} works. Ctrl-C stops it.`);
  await worker.run();
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) await main();
