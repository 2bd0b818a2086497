/* Renews the dashboard in place: its first lines every few seconds, all of it more rarely. A part that holds the focus or a selection stays until these have left it. */
"use strict";

{
  const page = document.querySelector(".ojs-dashboard");
  const box = document.getElementById("ojs-refresh");
  const problem = document.getElementById("ojs-problem");
  const updated = document.getElementById("ojs-updated");
  const waiting = document.getElementById("ojs-waiting");
  const longestWait = 10000;
  const remembered = "django-ojs-unique.refresh";
  const shown = new Map(regions(document).map((region) => [region.id, region.outerHTML]));
  const everything = { url: location.href, period: Number(page.dataset.seconds) * 1000 };
  const live = { url: page.dataset.live, period: Number(page.dataset.liveSeconds) * 1000 };

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
    if (!fresh.getElementById("ojs-now")) {
      tell(page.dataset.loggedOut);
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
    if (fresh.getElementById("ojs-updated")) {
      updated.textContent = fresh.getElementById("ojs-updated").textContent;
      waiting.textContent = kept ? `, ${page.dataset.except}` : "";
    }
    tell("");
  }

  async function refresh(source) {
    if (source.isAsking) return;
    source.isAsking = true;
    try {
      const answer = await fetch(source.url, { credentials: "same-origin", signal: AbortSignal.timeout(30000) });
      if (answer.ok || answer.status === 403) await show(answer.ok ? await answer.text() : "");
      else tell(page.dataset.error.replace("STATUS", answer.status));
    } catch {
      tell(page.dataset.unreachable);
    } finally {
      source.isAsking = false;
    }
  }

  function schedule(source) {
    clearTimeout(source.timer);
    if (box.checked && !document.hidden) {
      source.timer = setTimeout(async () => {
        await refresh(source);
        schedule(source);
      }, source.period);
    }
  }

  function scheduleBoth() {
    schedule(everything);
    schedule(live);
  }

  box.checked = remember() !== "off";
  box.closest("label").hidden = false;
  box.addEventListener("change", () => {
    remember(box.checked ? "on" : "off");
    tell("");
    scheduleBoth();
  });
  document.addEventListener("visibilitychange", async () => {
    if (!document.hidden && box.checked) await refresh(everything);
    scheduleBoth();
  });
  scheduleBoth();
}
