// Enqueue jobs over HTTP from any program, so that a lost answer never queues a job twice.
//
// Needs Node.js 18 or newer, no package, and a server: `make serve` has one with the token `demo`.
//
//     OJS_URL=http://127.0.0.1:8000 OJS_TOKEN=demo node examples/client.mjs

import { randomBytes } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { pathToFileURL } from "node:url";

/** Seconds between the attempts to reach the server, if it does not say how long to wait. */
export const PAUSES = [0.5, 1, 2, 4, 8];

/** Return a function that sends a request; `send` is what does so. */
export function connect(url, token, send = fetch) {
  const headers = { Authorization: `Token ${token}`, "Content-Type": "application/json" };
  return (method, path, body) =>
    send(url + path, { method, headers, body: JSON.stringify(body), signal: AbortSignal.timeout(30_000) });
}

/**
 * Enqueue a job; return the stored job and the outcome: "created", "deduplicated" or "rejected".
 *
 * The id is chosen here, once. So it does no harm to send the job again if no answer came: the server either stores it
 * now, or names the job that it stored the first time.
 */
export async function enqueue(http, job) {
  job = { id: uuid7(), ...job };
  const { status, content } = await answer(http, job);
  if (status === 201 || status === 200) {
    return [content.job, content.job.id === job.id ? "created" : "deduplicated"];
  }
  if (status === 409) {
    const existing = content.error.details.existing_job_id;
    const found = await (await http("GET", `/ojs/v1/jobs/${existing}`)).json();
    return [found.job, existing === job.id ? "created" : "rejected"];
  }
  throw new Error(content.error.message);
}

/** Return a UUIDv7, which the specification asks for. */
export function uuid7() {
  const bytes = randomBytes(16);
  bytes.writeUIntBE(Date.now(), 0, 6);
  bytes[6] = 0x70 | (bytes[6] & 0x0f);
  bytes[8] = 0x80 | (bytes[8] & 0x3f);
  return bytes.toString("hex").replace(/^(.{8})(.{4})(.{4})(.{4})/, "$1-$2-$3-$4-");
}

/** Send the job until the server has decided about it. */
async function answer(http, job) {
  for (const pause of [...PAUSES, null]) {
    let seconds = pause;
    try {
      const response = await http("POST", "/ojs/v1/jobs", job);
      if (![429, 503].includes(response.status) || pause === null) {
        return { status: response.status, content: await response.json() };
      }
      seconds = Number(response.headers.get("Retry-After") ?? pause);
    } catch (error) {
      if (pause === null) throw error;
    }
    await sleep(seconds * 1000);
  }
}

async function main() {
  const job = {
    type: "letter.count",
    args: [{ text: "never twice" }],
    options: { queue: "letters", unique: { keys: ["type", "args"], on_conflict: "ignore" } },
  };
  const http = connect(process.env.OJS_URL ?? "http://127.0.0.1:8000", process.env.OJS_TOKEN ?? "demo");
  for (let times = 0; times < 2; times++) {
    const [found, outcome] = await enqueue(http, job);
    console.log(`${outcome}: job ${found.id} is ${found.state}`);
  }
}

if (import.meta.url === pathToFileURL(process.argv[1] ?? "").href) await main();
