"use strict";
// The live page: asks for the status twice a second, and shows it. Texts are inserted with textContent only.
(() => {
  const token = new URLSearchParams(location.search).get("token") || "";
  const headers = { "X-Trine-Token": token };
  const byId = (id) => document.getElementById(id);
  const PERIOD_MS = 500;
  let rank = "";

  function time(ps) {
    const units = [[1e12, "s"], [1e9, "ms"], [1e6, "µs"], [1e3, "ns"], [1, "ps"]];
    const [scale, unit] = units.find(([scale]) => Math.abs(ps) >= scale) || units[4];
    return `${Number((ps / scale).toPrecision(4))} ${unit}`;
  }

  const count = (value) => Math.round(value).toLocaleString("en-US");
  const seconds = (value) => (value < 100 ? `${value.toFixed(1)} s` : `${count(value)} s`);

  function element(name, text, className) {
    const made = document.createElement(name);
    if (text !== undefined) made.textContent = text;
    if (className) made.className = className;
    return made;
  }

  // columns: [title, class of its cells]. rows: lists of texts. shares: of each row, drawn behind its first cell.
  function table(columns, rows, shares = []) {
    const made = element("table");
    const head = made.createTHead().insertRow();
    for (const [title, kind] of columns) {
      const cell = element("th", title, kind);
      cell.scope = "col";
      head.append(cell);
    }
    const body = made.createTBody();
    rows.forEach((row, index) => {
      const line = body.insertRow();
      row.forEach((text, place) => line.append(element("td", text, columns[place][1])));
      if (shares[index] !== undefined) {
        line.cells[0].className = "share";
        line.cells[0].style.backgroundSize = `${(100 * shares[index]).toFixed(1)}% 60%`;
      }
    });
    return made;
  }

  function fill(id, content, isShown = true) {
    const place = byId(id);
    const section = place.closest("section");
    if (section) section.hidden = !isShown;
    place.replaceChildren(...(isShown ? [content] : []));
  }

  const units = (each) => (each.first === each.last ? String(each.first) : `${each.first} to ${each.last}`);
  const wavefronts = (counts) => Object.entries(counts).map(([words, number]) => `${number} ${words}`).join(", ");

  function facts(status) {
    const rows = [["wall time", seconds(status.wall_s)], ["simulated time", time(status.now_ps)]];
    if (status.left_s !== null) rows.push(["time left", seconds(status.left_s)]);
    if (status.total) rows.push(["done", `${count(status.done)} of ${count(status.total)}`]);
    if (status.events_per_s) rows.push(["events per second", count(status.events_per_s)]);
    if (status.simulated_ps_per_s) rows.push(["simulated per second", time(status.simulated_ps_per_s)]);
    if (status.view.transfers !== undefined) rows.push(["transfers in flight", count(status.view.transfers)]);
    const parts = [];
    for (const [name, value] of rows) {
      const group = element("div");
      group.append(element("dt", name), element("dd", value));
      parts.push(group);
    }
    byId("facts").replaceChildren(...parts);
  }

  function show(status) {
    const view = status.view;
    byId("title").textContent = status.title;
    const isPreparing = status.state === "running" && !status.total && view.now_ps === undefined;
    byId("state").textContent = isPreparing ? "preparing the run" : status.state;
    const share = status.total ? status.done / status.total : 0;
    byId("bar").value = status.state === "finished" ? 1 : share;
    const isStalled = view.stalled && status.state !== "finished";
    byId("stall").hidden = !isStalled;
    byId("stall").textContent = isStalled
      ? "All wavefronts wait for semaphores or barriers: unless a message on its way releases one, this is a deadlock." : "";
    byId("pause").disabled = status.state !== "running";
    byId("resume").disabled = byId("step").disabled = status.state !== "paused";
    byId("stop").disabled = !["running", "paused"].includes(status.state);
    facts(status);
    fill("workers", table([["process", "number"], ["does"], ["for", "number"], ["done", "number"]],
      status.workers.map((each) => [String(each.worker), each.what || "waits for work", seconds(each.since_s),
        count(each.done)])), status.workers.length > 0);
    const links = view.links || [];
    fill("links", table([["link"], ["in use", "number"], ["transfers", "number"]],
      links.map((each) => [each.name, `${(100 * each.share).toFixed(1)} %`, count(each.transfers)]),
      links.map((each) => each.share)), links.length > 0);
    const waits = view.waiting || [];
    fill("waiting", table([["who"], ["at"], ["waits for"], ["since", "number"]],
      waits.map((each) => [each.who, each.at, each.for, time(each.since_ps)])), waits.length > 0);
    const waves = Object.entries(view.wavefronts || {});
    fill("waves", table([["they are"], ["wavefronts", "number"]],
      waves.map(([words, number]) => [words, count(number)])), waves.length > 0);
    const hasRanks = view.ranks > 0;
    byId("rank").closest("section").hidden = !hasRanks;
    byId("rank").max = hasRanks ? view.ranks - 1 : 0;
    if (view.tasks) {
      byId("tasks").replaceChildren(table([["task"], ["state"], ["since", "number"]],
        view.tasks.map((each) => [each.task, each.state, time(each.since_ps)])));
    } else if (view.units) {
      byId("tasks").replaceChildren(table([["compute units"], ["wavefronts of each"]],
        view.units.map((each) => [units(each), wavefronts(each.wavefronts)])));
    } else {
      byId("tasks").replaceChildren();
    }
    byId("stages").replaceChildren(...status.stages.map((sentence) => element("li", sentence)));
    byId("stages").closest("section").hidden = !status.stages.length;
  }

  async function ask() {
    try {
      const answer = await fetch(`status?rank=${encodeURIComponent(rank || "-1")}`, { headers, cache: "no-store" });
      if (!answer.ok) throw new Error(await answer.text());
      const status = await answer.json();
      show(status);
      if (status.state === "finished") return;
    } catch (error) {
      byId("state").textContent = "the run has ended";
      for (const id of ["pause", "resume", "step", "stop"]) byId(id).disabled = true;
      return;
    }
    setTimeout(ask, PERIOD_MS);
  }

  for (const command of ["pause", "resume", "step", "stop"]) {
    byId(command).addEventListener("click", () => fetch(command, { method: "POST", headers }));
  }
  byId("rank").addEventListener("input", (event) => { rank = event.target.value; });
  ask();
})();
