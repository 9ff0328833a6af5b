// Keeps a page current: a hint from the server, the same address again, and the marked parts in place of the old ones.
// Without this module every page is complete as it is.
import { Idiomorph } from "./idiomorph.esm.js";

const body = document.body;
const namespace = body.dataset.namespace;
const live = document.getElementById("live");
const pause = document.getElementById("pause");
const cut = document.getElementById("cut");

// ---- times: relative, and in the viewer's own zone ----

const units = [["d", 86400000], ["h", 3600000], ["m", 60000], ["s", 1000]];
// How far the store's clock is ahead of this machine's, so that "12s ago" is by the store's.
let ahead = 0;

function readClock(root) {
  const now = root.querySelector("[data-now]")?.dataset.now;
  if (now) ahead = Number(now) - Date.now();
}

function brief(ms) {
  const first = units.findIndex(([, size]) => ms >= size);
  if (first < 0) return `${Math.max(0, Math.round(ms))}ms`;
  const [name, size] = units[first];
  const whole = Math.floor(ms / size);
  const next = units[first + 1];
  const rest = next ? Math.floor((ms % size) / next[1]) : 0;
  return rest > 0 && whole < 10 ? `${whole}${name} ${rest}${next[0]}` : `${whole}${name}`;
}

function relative(at, now) {
  if (at > now) return at - now < 1000 ? "now" : `in ${brief(at - now)}`;
  return now - at < 1000 ? "just now" : `${brief(now - at)} ago`;
}

const zone = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "long" });
const ofDay = new Intl.DateTimeFormat(undefined, { timeStyle: "medium" });
const toTheMinute = new Intl.DateTimeFormat(undefined, { timeStyle: "short" });
const day = { month: "short", day: "numeric", hour: "2-digit", minute: "2-digit" };
// How a time that is spelled out is written, as its `data-as` says.
const spelled = {
  exact: zone,
  clock: ofDay,
  slot: new Intl.DateTimeFormat(undefined, { year: "numeric", ...day, timeZoneName: "short" }),
  tick: new Intl.DateTimeFormat(undefined, day),
};

function tellTimes() {
  const now = Date.now() + ahead;
  for (const time of document.querySelectorAll("time[data-at]")) {
    const at = Number(time.dataset.at);
    const exact = zone.format(new Date(at));
    const text = spelled[time.dataset.as]?.format(new Date(at)) ?? relative(at, now);
    if (time.textContent !== text) time.textContent = text;
    if (time.title !== exact) time.title = exact;
  }
  // What a drawing says when it is pointed at.
  for (const title of document.querySelectorAll("svg title[data-at]")) {
    const text = `${title.dataset.words} (${zone.format(new Date(Number(title.dataset.at)))})`;
    if (title.textContent !== text) title.textContent = text;
  }
}

// ---- the same address again ----

// The server says how often at most.
let floor = 2000;
let asked = 0;
let waiting = null;
let isReading = false;
let isBehind = false;
let isPaused = sessionStorage.getItem("leasehold-paused") === "yes";
// Since when the page is as it was: because somebody stopped it, or because the server does not answer.
let stoppedAt = new Date();
let cutAt = null;
// When a connection broke off that perhaps comes back at once.
let doubtedAt = null;
// How long to wait for an answer, and until it is tried again.
const patience = 10000;
const pauseBetween = 5000;

function swap(next) {
  // What was not there before: an item that is done has a result, and follow-ups.
  for (const part of next.querySelectorAll("main > [data-live]")) {
    if (document.getElementById(part.id)) continue;
    let before = part.previousElementSibling;
    while (before && !(before.id && document.getElementById(before.id))) before = before.previousElementSibling;
    const fresh = document.importNode(part, true);
    if (before) document.getElementById(before.id).after(fresh);
    else document.getElementById("main").prepend(fresh);
  }
  for (const part of document.querySelectorAll("[data-live]")) {
    const other = next.getElementById(part.id);
    if (!other) {
      part.replaceChildren();
      continue;
    }
    Idiomorph.morph(part, other, {
      morphStyle: "outerHTML",
      ignoreActiveValue: true,
      callbacks: {
        // What somebody has opened stays as they saw it: an order is given on the epoch that its form was opened with.
        beforeNodeMorphed: (old) => !(old instanceof HTMLDetailsElement && old.open && old.classList.contains("order")),
        beforeNodeRemoved: (old) => !(old instanceof HTMLDetailsElement && old.open && old.classList.contains("order")),
        beforeAttributeUpdated: (name, node) => !(name === "open" && node instanceof HTMLDetailsElement),
        afterNodeMorphed: (old, now) => {
          if (old instanceof HTMLTableRowElement && now.dataset?.rev !== undefined && old.dataset.seen !== now.dataset.rev) {
            if (old.dataset.seen !== undefined) {
              old.classList.remove("flash");
              void old.offsetWidth;
              old.classList.add("flash");
            }
            old.dataset.seen = now.dataset.rev;
          }
        },
      },
    });
  }
}

// Only the last request counts: an earlier one may be answered later, and about another address.
let last = 0;

async function refresh(address = location.href) {
  const number = ++last;
  try {
    await take(address, () => number === last);
  } catch (error) {
    if (number === last) throw error;
  }
}

async function take(address, isLast) {
  asked = Date.now();
  const response = await fetch(address, {
    headers: { accept: "text/html" },
    cache: "no-store",
    signal: AbortSignal.timeout(patience),
  });
  if (!isLast()) {
    response.body?.cancel();
    return;
  }
  if (response.redirected || [401, 403, 404, 410].includes(response.status)) {
    // Signed out, here or by whoever revoked the key; or there is nothing any more.
    location.reload();
    return;
  }
  if (!response.ok) throw new Error(`status ${response.status}`);
  const text = await response.text();
  if (!isLast()) return;
  swap(new DOMParser().parseFromString(text, "text/html"));
  readClock(document);
  tellTimes();
}

// As soon as the floor allows, and once for all hints until then. A hint that comes while the page is being read may be about
// something newer than the answer, and one to a hidden tab is for later: both are remembered.
function refreshSoon() {
  if (isPaused || document.hidden || isReading) {
    isBehind = true;
    return;
  }
  if (waiting !== null) return;
  waiting = setTimeout(readAgain, Math.max(0, asked + floor - Date.now()));
}

async function readAgain() {
  waiting = null;
  if (isPaused || document.hidden) {
    isBehind = true;
    return;
  }
  isReading = true;
  isBehind = false;
  try {
    await refresh();
    if (!isPaused) say("on");
  } catch {
    if (!isPaused) say("off");
    setTimeout(refreshSoon, pauseBetween);
    return;
  } finally {
    isReading = false;
  }
  if (isBehind) refreshSoon();
}

// A page that is no longer true says so, and takes no orders: they would be given on what is perhaps long over.
function showWhetherCut() {
  if (!cut) return;
  const text = cutAt ? `Not connected since ${ofDay.format(cutAt)}. What you see is from then.` : "";
  if (cut.textContent !== text) cut.textContent = text;
  cut.hidden = !cutAt;
  body.toggleAttribute("data-cut", cutAt !== null);
  for (const part of document.querySelectorAll(".orders, .bulk")) part.inert = cutAt !== null;
}

function say(state) {
  if (!live) return;
  if (state === "off") cutAt ??= doubtedAt ?? new Date();
  if (state === "on") cutAt = null;
  if (state !== "paused") doubtedAt = null;
  showWhetherCut();
  const words = { on: "Live", paused: `Not updating since ${toTheMinute.format(stoppedAt)}`, off: "Not connected" };
  live.hidden = false;
  live.dataset.state = state;
  if (live.textContent !== words[state]) live.textContent = words[state];
}

// ---- one stream for all tabs of a browser ----

// A browser allows six connections of HTTP/1.1 to a server. So one tab, the one with the lock, has the stream and tells the
// others. A hidden tab has none, and gives the lock back.
let giveBack = null;
let asking = null;

function follow(channel) {
  if (asking || isPaused || document.hidden) return;
  asking = new AbortController();
  const lock = `leasehold ${body.dataset.changes}`;
  navigator.locks
    .request(lock, { signal: asking.signal }, () => new Promise((release) => {
      // The tab with the stream is one that somebody looks at: what its page is about is looked at more closely.
      const about = body.dataset.about ? `?about=${body.dataset.about}` : "";
      const stream = new EventSource(body.dataset.changes + about);
      giveBack = () => {
        stream.close();
        release();
      };
      stream.addEventListener("floor", (event) => {
        floor = Number(event.data) || floor;
        say("on");
        channel.postMessage({ floor });
        refreshSoon();
      });
      stream.addEventListener("changed", () => {
        channel.postMessage({ changed: true });
        refreshSoon();
      });
      stream.addEventListener("error", () => {
        // It may be back at once: whether the server answers decides, in every tab.
        doubtedAt ??= new Date();
        channel.postMessage({ changed: true });
        refreshSoon();
        if (stream.readyState !== EventSource.CLOSED) return;
        leave();
        setTimeout(() => follow(channel), pauseBetween);
      });
    }))
    .catch(() => {});
}

function leave() {
  asking?.abort();
  asking = null;
  giveBack?.();
  giveBack = null;
}

function begin() {
  pause.hidden = false;
  const channel = new BroadcastChannel(`leasehold ${body.dataset.changes}`);
  channel.addEventListener("message", ({ data }) => {
    if (data.floor) floor = data.floor;
    if (data.changed) refreshSoon();
  });
  const adjust = () => {
    pause.textContent = isPaused ? "Update again" : "Stop updating";
    if (isPaused) say("paused");
    if (isPaused || document.hidden) {
      leave();
    } else {
      if (!cutAt) say("on");
      follow(channel);
      if (cutAt || isBehind || Date.now() - asked > floor) refreshSoon();
    }
  };
  pause.addEventListener("click", () => {
    isPaused = !isPaused;
    stoppedAt = new Date();
    sessionStorage.setItem("leasehold-paused", isPaused ? "yes" : "no");
    adjust();
  });
  document.addEventListener("visibilitychange", adjust);
  addEventListener("pagehide", leave);
  // Back from where a link led: the browser may have kept the page as it was.
  addEventListener("pageshow", ({ persisted }) => { if (persisted) adjust(); });
  asked = Date.now();
  adjust();
}

// ---- type to filter ----

function filterAsTyped() {
  const form = document.getElementById("filter");
  const field = document.getElementById("q");
  if (!form || !field) return;
  form.querySelector("button").hidden = true;
  let later = null;
  const search = () => {
    const address = new URL(form.action);
    for (const [name, value] of new FormData(form)) if (value) address.searchParams.set(name, value);
    if (address.href === location.href) return;
    history.replaceState(null, "", address);
    refresh().catch(() => say("off"));
  };
  field.addEventListener("input", () => {
    clearTimeout(later);
    later = setTimeout(search, 200);
  });
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    clearTimeout(later);
    search();
  });
}

// ---- how long a text may be: the store counts bytes, and a browser would count characters ----

function tellLength(field) {
  const most = Number(field.dataset.bytes);
  const bytes = new TextEncoder().encode(field.value.trim()).length;
  const says = `This takes ${bytes} bytes, and there is room for ${most}. Letters other than a to z take two bytes or more.`;
  field.setCustomValidity(bytes > most ? says : "");
}

document.addEventListener("input", ({ target }) => {
  if (target instanceof HTMLInputElement && target.dataset.bytes) tellLength(target);
});

for (const row of document.querySelectorAll("tr[data-rev]")) row.dataset.seen = row.dataset.rev;
readClock(document);
tellTimes();
setInterval(() => document.hidden || tellTimes(), 1000);
if (namespace) {
  filterAsTyped();
  // Without a secure context there are no locks between tabs: then the page stays as it is.
  // A form that asks to confirm what was counted stays as it is too.
  if (navigator.locks && pause && document.querySelector("[data-live]")) begin();
}
