// The demo page: binds the session, the list of messages, the members and the buttons to each other.
// The session and its helpers hold the state; this file connects them to the page.

import { Session } from "./cable.js";
import { Messages, element } from "./messages.js";
import { Publisher } from "./publisher.js";
import { Report, seconds } from "./report.js";

const EARLIER = 300; // seconds of history that a new page requests
const TYPING_EVERY = 2_000;
const TYPING_LASTS = 4_000;
const NAMES = ["Ada", "Bo", "Cleo", "Dara", "Eli", "Fern", "Gus", "Hana", "Ivo", "Juno", "Kit", "Lou", "Mika", "Noor", "Ola", "Pia"];

const $ = (id) => document.getElementById(id);
const show = (id, text) => { $(id).textContent = text; };
const { cable, publish, stream } = document.body.dataset;

// Stored per tab: a reloaded page is the same member, a second tab is another one.
const self = (sessionStorage.demoMember ??= randomId());
const url = new URL(cable, location.href);
url.protocol = location.protocol === "https:" ? "wss:" : "ws:";

const session = new Session({ url, stream, since: Math.floor(Date.now() / 1000) - EARLIER });
const messages = new Messages({ log: $("log"), list: $("messages"), waiting: $("waiting"), self });
const report = new Report($("report"), show);
const publisher = new Publisher({ url: publish, stream, mayGo: () => session.online, refused });
const members = new Map();
const typists = new Map();
const counts = { live: 0, replayed: 0, repeated: 0, holes: 0 };
let name = "";
let comeBackTimer = 0;
let typingSaidAt = 0;

const STATES = {
  connecting: () => "connecting…",
  online: () => "online",
  waiting: ({ delay }) => `connection lost, next attempt in ${seconds(delay)}`,
  cut: () => "cut off, by you",
  closed: ({ reason }) => `closed by the server: ${reason}`,
};

session.addEventListener("state", ({ detail }) => {
  $("status").dataset.state = detail.name;
  show("status-text", STATES[detail.name](detail));
  show("sid", detail.sid || "–");
  const away = detail.name === "cut";
  if (away || detail.name === "waiting") report.left();
  $("cut").hidden = away;
  $("cut").disabled = detail.name !== "online";
  $("come-back").hidden = !away;
});

session.addEventListener("welcome", ({ detail }) => {
  messages.busy(true);
  report.welcomed(detail);
});

session.addEventListener("message", ({ detail }) => {
  count(detail.replayed ? "replayed" : "live");
  if (detail.replayed) report.replayed(detail.position);
  if (detail.message?.from) stopTyping(detail.message.from);
  messages.add(detail);
  showPosition();
});

session.addEventListener("caughtup", () => {
  messages.busy(false);
  publisher.flush();
  const finished = report.finish();
  if (!finished) return;
  $("report-empty").hidden = true;
  $("report-facts").hidden = false;
  const restored = finished.restored ? "session restored" : "new session";
  messages.note("return", `back after ${seconds(finished.away)} · ${restored} · ${finished.offsets.length} replayed`);
});

session.addEventListener("gap", ({ detail }) => {
  report.gap(detail);
  messages.note("gap", gapText(detail), { reason: detail.reason });
  showPosition();
});

session.addEventListener("repeated", () => count("repeated"));
session.addEventListener("hole", () => count("holes"));

session.addEventListener("presence", ({ detail: { type, id, info, records = [] } }) => {
  if (type === "join") members.set(id, info);
  if (type === "leave") members.delete(id);
  if (type === "info") {
    members.clear();
    for (const record of records) members.set(record.id, record.info);
  }
  showMembers();
});

session.addEventListener("transient", ({ detail: { message } }) => {
  if (message?.typing !== true || typeof message.from !== "string" || typeof message.name !== "string") return;
  clearTimeout(typists.get(message.from)?.timer);
  typists.set(message.from, { name: message.name, timer: setTimeout(() => stopTyping(message.from), TYPING_LASTS) });
  showTyping();
});

$("join-form").addEventListener("submit", (event) => {
  event.preventDefault();
  name = $("name").value.trim();
  if (!name) return;
  sessionStorage.demoName = name;
  session.join({ id: self, info: { name } });
  showJoined();
  $("text").focus();
});

$("leave").addEventListener("click", () => {
  name = "";
  session.leave();
  showJoined();
  $("name").focus();
});

$("compose-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const text = $("text").value.trim();
  if (!text) return;
  const uid = randomId();
  $("problem").hidden = true;
  if (!publisher.publish(uid, { uid, from: self, name, text, at: Date.now() })) return refused(uid, "too many messages are waiting");
  messages.wait(uid, text);
  $("text").value = "";
  typingSaidAt = 0;
});

$("text").addEventListener("input", () => {
  const now = Date.now();
  if (!$("text").value || now - typingSaidAt < TYPING_EVERY) return;
  typingSaidAt = now;
  session.whisper({ typing: true, from: self, name });
});

$("cut").addEventListener("click", () => {
  session.cut();
  const away = Number($("away").value);
  if (away) comeBackTimer = setTimeout(comeBack, away * 1000);
  $("come-back").focus();
});

$("come-back").addEventListener("click", () => {
  comeBack();
  $(name ? "text" : "name").focus(); // the focused button is hidden now
});
addEventListener("online", () => session.hurry());

function comeBack() {
  clearTimeout(comeBackTimer);
  session.open();
}

function refused(uid, reason) {
  messages.forget(uid);
  show("problem", `Not sent: ${reason}`);
  $("problem").hidden = false;
}

function count(what) {
  show(`count-${what}`, String(++counts[what]));
}

function showPosition() {
  show("epoch", session.position?.epoch ?? "–");
  show("offset", session.position?.offset ?? "–");
}

function showJoined() {
  const joined = name !== "";
  $("join-form").hidden = joined;
  $("joined").hidden = !joined;
  $("text").disabled = $("send").disabled = !joined;
  $("text").placeholder = joined ? "Write a message" : "Join with a name to write";
  show("joined-name", name);
}

function showMembers() {
  const listed = [...members].map(([id, info]) => ({ id, name: nameOf(info) }));
  listed.sort((a, b) => a.name.localeCompare(b.name) || (a.id < b.id ? -1 : 1));
  $("members").replaceChildren(...listed.map(memberItem));
  show("member-count", String(listed.length));
  $("no-members").hidden = listed.length > 0;
}

function memberItem(member) {
  const item = element("li");
  item.dataset.member = member.id;
  item.append(element("bdi", "", member.name));
  if (member.id === self) item.append(element("span", "dim", " (you)"));
  return item;
}

function nameOf(info) {
  return typeof info?.name === "string" && info.name ? info.name : "nameless";
}

function stopTyping(from) {
  clearTimeout(typists.get(from)?.timer);
  typists.delete(from);
  showTyping();
}

function showTyping() {
  const names = [...typists.values()].map((typist) => typist.name);
  show("typing", names.length ? `${names.join(", ")} ${names.length > 1 ? "are" : "is"} typing…` : "");
}

function gapText({ reason, known, epoch, oldest, tip }) {
  if (reason === "epoch_changed") return "gap: the stream began a new epoch while you were away; older messages are lost";
  const kept = oldest <= tip ? `history reaches back to offset ${oldest}` : "history is empty";
  if (!known || known.epoch !== epoch) return `gap (${reason}): ${kept}`;
  return `gap (${reason}): offsets ${known.offset + 1}–${oldest - 1} cannot be replayed; ${kept}`;
}

/** 128 random bits. `crypto.randomUUID` is missing on plain http away from loopback, `getRandomValues` is not. */
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

$("name").value = sessionStorage.demoName ?? NAMES[Math.floor(Math.random() * NAMES.length)];
showJoined();
session.open();
