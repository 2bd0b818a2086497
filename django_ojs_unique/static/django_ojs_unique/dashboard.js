/* Renews the dashboard in place. A part that holds the focus or a selection stays until these have left it. */
"use strict";

{
  const page = document.querySelector(".ojs-dashboard");
  const box = document.getElementById("ojs-refresh");
  const problem = document.getElementById("ojs-problem");
  const updated = document.getElementById("ojs-updated");
  const waiting = document.getElementById("ojs-waiting");
  const period = Number(page.dataset.seconds) * 1000;
  const longestWait = 10000;
  const remembered = "django-ojs-unique.refresh";
  const shown = new Map(regions(document).map((region) => [region.id, region.outerHTML]));
  let timer = null;
  let isAsking = false;

  function regions(root) {
    return [...root.querySelectorAll("[data-refresh]")];
  }

  function remember(value) {
    try {
      if (value === undefined) return localStorage.getItem(remembered);
      localStorage.setItem(remembered, value);
    } catch {
      // Storage is forbidden here: then it is not remembered.
    }
    return null;
  }

  function tell(text) {
    if (problem.textContent !== text) problem.textContent = text;
  }

  function isInUse(region) {
    const selection = getSelection();
    const isSelected = selection && !selection.isCollapsed && selection.containsNode(region, true);
    return isSelected || region.contains(document.activeElement);
  }

  async function replace(region, fresh) {
    for (const details of fresh.querySelectorAll("details[id]")) {
      const old = document.getElementById(details.id);
      if (old) details.open = old.open;
    }
    // A picture is loaded before it takes the place of the old one, so that nothing flickers; a slow one is not awaited.
    const loaded = [...fresh.querySelectorAll("img")].map((image) => image.decode().catch(() => null));
    await Promise.race([Promise.all(loaded), new Promise((resolve) => { setTimeout(resolve, longestWait); })]);
    if (isInUse(region)) return false;
    const scrolled = [...region.querySelectorAll(".ojs-table")].map((table) => table.scrollLeft);
    region.replaceWith(fresh);
    fresh.querySelectorAll(".ojs-table").forEach((table, at) => { table.scrollLeft = scrolled[at] ?? 0; });
    return true;
  }

  async function show(text) {
    const fresh = new DOMParser().parseFromString(text, "text/html");
    if (!fresh.querySelector(".ojs-dashboard")) {
      tell("You are logged out, or may no longer see this page. Load it again to log in.");
      return;
    }
    let kept = 0;
    for (const region of regions(document)) {
      const other = fresh.getElementById(region.id);
      if (!other || shown.get(region.id) === other.outerHTML) continue;
      const html = other.outerHTML;
      if (!isInUse(region) && (await replace(region, document.adoptNode(other)))) shown.set(region.id, html);
      else kept += 1;
    }
    updated.textContent = fresh.getElementById("ojs-updated").textContent;
    waiting.textContent = kept ? ", except where you are" : "";
    tell("");
  }

  async function refresh() {
    if (isAsking) return;
    isAsking = true;
    try {
      const answer = await fetch(location.href, { credentials: "same-origin", signal: AbortSignal.timeout(30000) });
      if (answer.ok || answer.status === 403) await show(answer.ok ? await answer.text() : "");
      else tell(`The server answered with an error (${answer.status}). This is tried again.`);
    } catch {
      tell("The server cannot be reached. This is tried again.");
    } finally {
      isAsking = false;
    }
  }

  function schedule() {
    clearTimeout(timer);
    timer = null;
    if (box.checked && !document.hidden) {
      timer = setTimeout(async () => {
        await refresh();
        schedule();
      }, period);
    }
  }

  box.checked = remember() !== "off";
  box.closest("label").hidden = false;
  box.addEventListener("change", () => {
    remember(box.checked ? "on" : "off");
    tell("");
    schedule();
  });
  document.addEventListener("visibilitychange", async () => {
    if (!document.hidden && box.checked) await refresh();
    schedule();
  });
  schedule();
}
