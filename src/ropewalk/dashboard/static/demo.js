// The demo page: binds the client, the list of messages, the members and the buttons to each other.
// The client and its helpers hold the state; this file connects them to the page.

import { connect } from "/ropewalk.js";
import { Messages, element } from "./messages.js";
import { Publisher } from "./publisher.js";
import { Report, seconds } from "./report.js";

const EARLIER = 300_000; // milliseconds of history that a new page requests
const TYPING_EVERY = 2_000;
const TYPING_LASTS = 4_000;
const NAMES = ["Ada", "Bo", "Cleo", "Dara", "Eli", "Fern", "Gus", "Hana", "Ivo", "Juno", "Kit", "Lou", "Mika", "Noor", "Ola", "Pia"];

const $ = (id) => document.getElementById(id);
const show = (id, text) => { $(id).textContent = text; };
const { cable, publish, stream } = document.body.dataset;

// Stored per tab: a reloaded page is the same member, a second tab is another one.
const self = (sessionStorage.demoMember ??= randomId());

const client = connect(cable);
const chat = client.subscribe(stream, { from: { since: Date.now() - EARLIER } });
const messages = new Messages({ log: $("log"), list: $("messages"), waiting: $("waiting"), self });
const report = new Report($("report"), show);
const publisher = new Publisher({ url: publish, stream, mayGo: () => chat.state === "live" || chat.state === "replaying", refused });
const typists = new Map();
const counts = { live: 0, replayed: 0, repeated: 0, holes: 0 };
let name = "";
let comeBackTimer = 0;
let typingSaidAt = 0;

const STATES = {
  connecting: () => "connecting…",
  online: () => "online",
  waiting: ({ delay }) => `connection lost, next attempt in ${seconds(delay)}`,
  offline: () => "cut off, by you",
  closed: ({ reason }) => `closed by the server: ${reason}`,
};

let sid = "";
client.on("status", (status) => {
  if (status.state === "online") {
    messages.busy(true);
    report.welcomed({ previous: sid, sid: status.sid, restored: status.restored });
    sid = status.sid;
  } else showState(status);
});

chat.on("status", ({ state, restored }) => {
  if (restored) report.subscription(stream);
  if (state === "replaying" || state === "live") showState({ state: "online", sid: client.sid });
  if (state === "live") caughtUp();
});

chat.on("error", ({ message }) => showState({ state: "closed", reason: message }));

function showState(status) {
  $("status").dataset.state = status.state === "offline" ? "cut" : status.state;
  show("status-text", STATES[status.state](status));
  show("sid", status.sid || "–");
  const away = status.state === "offline";
  if (away || status.state === "waiting") report.left();
  $("cut").hidden = away;
  $("cut").disabled = status.state !== "online";
  $("come-back").hidden = !away;
}

let previous; // the position of the message before
let explained = true; // by a gap that was reported, or because there was none before
chat.on("message", ({ data, position, replayed }) => {
  check(position);
  count(replayed ? "replayed" : "live");
  if (replayed) report.replayed(position);
  if (data?.from) stopTyping(data.from);
  messages.add({ message: data, position, replayed });
  showPosition();
});

/** The client promises each position once and in order. The page does not rely on it. */
function check(position) {
  const follows = previous && previous.epoch === position.epoch;
  if (follows && position.offset <= previous.offset) count("repeated");
  else if (!explained && !(follows && position.offset === previous.offset + 1)) count("holes");
  previous = position;
  explained = false;
}

function caughtUp() {
  messages.busy(false);
  publisher.flush();
  const finished = report.finish();
  if (!finished) return;
  $("report-empty").hidden = true;
  $("report-facts").hidden = false;
  const restored = finished.restored ? "session restored" : "new session";
  messages.note("return", `back after ${seconds(finished.away)} · ${restored} · ${finished.offsets.length} replayed`);
}

chat.on("gap", (gap) => {
  previous = gap.position ?? previous;
  explained = !gap.position;
  report.gap(gap);
  messages.note("gap", gapText(gap), { reason: gap.reason });
  showPosition();
});

chat.on("presence", showMembers);

chat.on("transient", ({ data }) => {
  if (data?.typing !== true || typeof data.from !== "string" || typeof data.name !== "string") return;
  clearTimeout(typists.get(data.from)?.timer);
  typists.set(data.from, { name: data.name, timer: setTimeout(() => stopTyping(data.from), TYPING_LASTS) });
  showTyping();
});

$("join-form").addEventListener("submit", (event) => {
  event.preventDefault();
  name = $("name").value.trim();
  if (!name) return;
  sessionStorage.demoName = name;
  chat.presence.join(self, { name });
  showJoined();
  $("text").focus();
});

$("leave").addEventListener("click", () => {
  name = "";
  chat.presence.leave();
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
  chat.whisper({ typing: true, from: self, name });
});

$("cut").addEventListener("click", () => {
  client.disconnect();
  const away = Number($("away").value);
  if (away) comeBackTimer = setTimeout(comeBack, away * 1000);
  $("come-back").focus();
});

$("come-back").addEventListener("click", () => {
  comeBack();
  $(name ? "text" : "name").focus(); // the focused button is hidden now
});

function comeBack() {
  clearTimeout(comeBackTimer);
  client.reconnect();
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
  show("epoch", chat.position?.epoch ?? "–");
  show("offset", chat.position?.offset ?? "–");
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
  const listed = chat.presence.members.map(({ id, info }) => ({ id, name: nameOf(info) }));
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

function gapText({ reason, known, position, tip, missed }) {
  if (reason === "epoch_changed") return "gap: the stream began a new epoch while you were away; older messages are lost";
  if (!position) return `gap (${reason}): messages may be missing`;
  const kept = position.offset < tip ? `history reaches back to offset ${position.offset + 1}` : "history is empty";
  if (!missed || !known) return `gap (${reason}): ${kept}`;
  return `gap (${reason}): offsets ${known.offset + 1}–${position.offset} cannot be replayed; ${kept}`;
}

/** 128 random bits. `crypto.randomUUID` is missing on plain http away from loopback, `getRandomValues` is not. */
function randomId() {
  return Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");
}

$("name").value = sessionStorage.demoName ?? NAMES[Math.floor(Math.random() * NAMES.length)];
showJoined();
