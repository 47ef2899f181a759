// Draws what api/status says, every two seconds. Names of jobs and hosts are chosen by peers, so they
// become text nodes and never markup: nothing here uses innerHTML.
"use strict";

const SCHEMA = 1;
const SVG = "http://www.w3.org/2000/svg";
const KINDS = {joined: "good", epoch: "good", back: "good", draining: "note", ended: "note"};
const STATES = {serving: "good", running: "good", draining: "note"};
// The jobs by which `reducer doctor` measures; their names say nothing.
const DOCTOR = /^doctor-[0-9a-f]{8}|\[ranks doctor [0-9a-f]{12}\]$/;
const MARKS = {epoch: "", draining: "", lost: "bad", failed: "bad", silent: "bad"};
const CHARTS = [
  ["Sums per second", "collectives_per_s", count],
  ["Payload received", "received_per_s", rate],
  ["Wait for the last rank, p99", "wait_p99_s", milliseconds],
  ["Busiest process", "busiest", percent],
];
let latest = null;

function element(name, attributes = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...children);
  return made;
}

function drawn(name, attributes, text = "") {
  const made = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.textContent = text;
  return made;
}

function digits(value) {
  return value.toFixed(value >= 100 ? 0 : value >= 10 ? 1 : 2);
}

function count(value) {
  return value === null ? "–" : digits(value);
}

function scaled(value, base, units) {
  let index = 0;
  while (value >= base && index < units.length - 1) {
    value /= base;
    index += 1;
  }
  return `${index ? digits(value) : Math.round(value)} ${units[index]}`;
}

function rate(value) {
  return value === null ? "–" : `${scaled(value, 1000, ["B", "kB", "MB", "GB", "TB"])}/s`;
}

function size(value) {
  return scaled(value, 1024, ["B", "KiB", "MiB", "GiB", "TiB"]);
}

function milliseconds(value) {
  return value === null ? "–" : `${digits(value * 1e3)} ms`;
}

function percent(value) {
  return value === null ? "–" : `${Math.round(value * 100)} %`;
}

function duration(seconds) {
  for (const [unit, length] of [["d", 86400], ["h", 3600], ["min", 60]]) {
    if (seconds >= 2 * length) return `${Math.round(seconds / length)} ${unit}`;
  }
  return `${Math.round(seconds)} s`;
}

function clock(seconds) {
  return new Date(seconds * 1e3).toLocaleTimeString([], {hour12: false});
}

function card(title, state, facts, dot) {
  const heading = element("h3", {}, title);
  if (dot >= 0) heading.prepend(element("span", {class: `dot c${dot}`}));
  const list = element("dl");
  for (const [name, value] of facts) list.append(element("div", {}, element("dt", {}, name), element("dd", {}, value)));
  const word = element("span", {class: `state ${STATES[state] || ""}`}, state);
  return element("article", {class: "card"}, element("div", {}, heading, word), list);
}

function jobCard(job, dot) {
  const made = card(job.title, job.state, [
    ["ranks", job.ranks],
    ["epoch", String(job.epoch)],
    ["plane", job.plane || "–"],
    ["sums per second", count(job.collectives_per_s)],
    ["received", rate(job.received_per_s)],
    ["sent", rate(job.sent_per_s)],
    ["wait p50", milliseconds(job.wait_p50_s)],
    ["wait p99", milliseconds(job.wait_p99_s)],
  ], dot);
  if (job.absent) made.append(element("p", {class: "verdict bad"}, `everything waits for ${job.absent} to join`));
  else made.append(job.waits_now === null ? verdict(job.waited_for) : element("p", {class: "verdict bad"},
    `everything has been waiting for ${job.waits_now.names} for ${Math.round(job.waits_now.seconds)} s`));
  return made;
}

function verdict(rank) {
  if (rank === null) return element("p", {class: "verdict"}, "too early to say which rank is waited for");
  const text = `rank ${rank.rank} (${rank.host}) is last ${percent(rank.share)} of the time, by ${milliseconds(rank.wait_s)}`;
  return rank.is_straggler
    ? element("p", {class: "verdict bad"}, `${text}: the others wait for it`)
    : element("p", {class: "verdict"}, `${text}: no straggler`);
}

function hostCard(host) {
  const facts = [
    ["cpu, of a core", percent(host.cores)],
    ["busiest process", percent(host.busiest)],
    ["processes", String(host.processes)],
    ["reserved", size(host.reserved_bytes)],
    ["limit", size(host.limit_bytes)],
    ["resident", size(host.resident_bytes)],
    ["streams", String(host.streams)],
    ["received", rate(host.received_per_s)],
    ["sent", rate(host.sent_per_s)],
    ["up", duration(host.uptime_s)],
  ];
  const made = card(host.address, host.state, facts, -1);
  if (host.reason) made.append(element("p", {class: "verdict bad"}, host.reason));
  return made;
}

function eventItem(entry) {
  const where = entry.addresses.length === 1 ? entry.addresses[0] : `${entry.addresses.length} processes`;
  const job = DOCTOR.test(entry.job) ? "reducer doctor" : entry.job;
  const what = job ? `${job}: ${entry.text} ` : `${entry.text} `;
  return element("li", {},
    element("time", {}, clock(entry.at_s)),
    element("span", {class: `state ${KINDS[entry.kind] || ""}`}, entry.kind),
    element("span", {class: "what"}, what, element("span", {class: "where"}, where)));
}

// The smallest of 1, 2, 5, 10, ... that is not below the value, so that the axis has a round number.
function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * 0.999999);
}

function lines(timeline, name) {
  if (name === "busiest") return [["c5", timeline.busiest]];
  return timeline.jobs.map((job, index) => [`c${index}`, job[name]]);
}

function chart([title, name, text], data, width) {
  const {timeline} = data;
  const all = lines(timeline, name);
  const values = all.flatMap(([, line]) => line).filter((value) => value !== null);
  const top = roundUp(Math.max(...values, 0));
  const now = data.at_s;
  const span = Math.max(60, now - (timeline.at_s[0] ?? now));
  const [left, right, upper, lower] = [2, width - 2, 18, 108];
  const x = (at) => right - (now - at) / span * (right - left);
  const y = (value) => lower - value / top * (lower - upper);
  const svg = drawn("svg", {viewBox: `0 0 ${width} 130`, role: "img"});
  svg.append(drawn("title", {}, title));
  for (const level of [0, top / 2, top]) {
    svg.append(drawn("line", {class: "axis", x1: left, x2: right, y1: y(level), y2: y(level)}));
  }
  svg.append(drawn("text", {x: left, y: upper - 5}, text(top)));
  svg.append(drawn("text", {x: left, y: 124}, `${duration(span)} ago`));
  svg.append(drawn("text", {x: right, y: 124, "text-anchor": "end"}, "now"));
  for (const entry of data.events) {
    if (!(entry.kind in MARKS) || entry.at_s < now - span) continue;
    const mark = drawn("line", {class: `mark ${MARKS[entry.kind]}`, x1: x(entry.at_s), x2: x(entry.at_s), y1: upper, y2: lower});
    mark.append(drawn("title", {}, `${clock(entry.at_s)} ${entry.kind}: ${entry.text}`));
    svg.append(mark);
  }
  for (const [colour, line] of all) {
    for (const part of unbroken(line)) {
      const points = part.map(([index, value]) => `${x(timeline.at_s[index]).toFixed(1)},${y(value).toFixed(1)}`);
      svg.append(drawn("polyline", {class: colour, points: points.join(" ")}));
    }
  }
  const newest = all.length === 1 ? text(all[0][1].at(-1) ?? null) : "";
  return element("figure", {class: "chart", "data-line": name}, element("h3", {}, title, element("span", {}, newest)), svg);
}

// Parts of a line without a gap, as pairs of index and value.
function unbroken(line) {
  const parts = [];
  line.forEach((value, index) => {
    if (value === null) return;
    if (index === 0 || line[index - 1] === null) parts.push([]);
    parts.at(-1).push([index, value]);
  });
  return parts;
}

function replace(id, children, otherwise) {
  const all = children.length ? children : [element("p", {class: "empty"}, otherwise)];
  document.getElementById(id).replaceChildren(...all);
}

function draw() {
  if (latest === null) return;
  document.querySelector("main").hidden = false;
  const titles = latest.timeline.jobs.map((job) => job.title);
  const jobs = latest.jobs.map((job) => jobCard(job, titles.indexOf(job.title)));
  if (latest.jobs_left_out) jobs.push(element("p", {class: "empty"}, `and ${latest.jobs_left_out} more`));
  replace("jobs", jobs, "no jobs");
  replace("hosts", latest.hosts.map(hostCard), "none");
  const box = document.getElementById("charts");
  // A first drawing tells how wide a chart is; the grid decides that.
  if (!box.firstChild) box.append(element("figure", {class: "chart"}));
  const style = getComputedStyle(box.firstChild);
  const width = Math.max(100, box.firstChild.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
  box.replaceChildren(...CHARTS.map((one) => chart(one, latest, width)));
  replace("events", latest.events.map(eventItem).reverse(), "nothing has happened yet");
  document.getElementById("when").textContent = `version ${latest.version}, ${clock(latest.at_s)}`;
}

function complain(text) {
  const trouble = document.getElementById("trouble");
  trouble.textContent = text;
  trouble.hidden = !text;
  document.body.classList.toggle("stale", Boolean(text));
}

async function poll() {
  try {
    const answer = await fetch("api/status", {cache: "no-store", signal: AbortSignal.timeout(10000)});
    const data = await answer.json();
    if (data.schema !== SCHEMA) {
      complain("This reducer has another version than this page. Load the page again.");
    } else if (data.error) {
      complain(data.error);
    } else {
      latest = data;
      // Of a job of the doctor its end is enough.
      latest.events = data.events.filter((entry) => !DOCTOR.test(entry.job) || !["joined", "epoch"].includes(entry.kind));
      complain("");
      draw();
    }
  } catch (error) {
    complain(`No answer from this reducer (${error.message}). What is below is old; asking again ...`);
  }
  setTimeout(poll, (latest ? latest.every_s : 2) * 1e3);
}

addEventListener("resize", draw);
poll();
