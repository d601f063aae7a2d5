// The page: log in, write messages, list the members and who is typing. All input is inserted as text, never as markup.

import { Channel } from "./cable.js";

const TYPING_EVERY = 2_000;
const TYPING_LASTS = 3_000;
const STATES = { online: "online", offline: "offline, trying again", refused: "not logged in" };

const $ = (id) => document.getElementById(id);
const { cable, room } = document.body.dataset;
const channel = new Channel(cable, "ChatChannel", { room });
const members = new Map(); // names by id

function show(name, text, kind = "") {
  const line = document.createElement("li");
  line.className = kind;
  if (name) line.append(Object.assign(document.createElement("strong"), { textContent: name }), ": ");
  line.append(text);
  $("messages").append(line);
  line.scrollIntoView({ block: "nearest" });
}

function complain(id, text = "") {
  $(id).textContent = text;
  $(id).hidden = !text;
}

channel.addEventListener("state", ({ detail: { name, reason } }) => {
  const stranger = name === "refused" && reason === "unauthorized";
  $("status").dataset.state = name;
  $("state").value = name === "refused" && !stranger ? `refused: ${reason}` : STATES[name];
  if (name === "offline") return; // the shown messages stay
  $("login").hidden = !stranger;
  $("chat").hidden = name !== "online";
});
channel.addEventListener("message", ({ detail: { message } }) => {
  $("typing").textContent = "";
  show(message.name, message.text);
});
channel.addEventListener("gap", () => show("", "Some messages are gone. The messages still kept follow.", "notice"));

channel.addEventListener("presence", ({ detail: { type, id, info, records = [] } }) => {
  if (type === "info") members.clear();
  for (const member of records) members.set(member.id, member.info?.name ?? member.id);
  if (type === "join") members.set(id, info?.name ?? id);
  if (type === "leave") members.delete(id);
  $("members").value = [...members.values()].sort().join(", ") || "no members";
});

let typingSentAt = 0;
$("compose").addEventListener("input", () => {
  if (Date.now() - typingSentAt < TYPING_EVERY) return;
  typingSentAt = Date.now();
  channel.whisper({ typing: true });
});

// A whisper is untrusted input of another client. Only `from` is set by the server.
let typingEnds = 0;
channel.addEventListener("whisper", ({ detail: { message, from } }) => {
  if (message?.typing !== true) return;
  clearTimeout(typingEnds);
  $("typing").textContent = `${members.get(from) ?? "Someone"} is typing…`;
  typingEnds = setTimeout(() => ($("typing").textContent = ""), TYPING_LASTS);
});

$("compose").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = event.target.text;
  try {
    await channel.perform("speak", { text: field.value });
    field.value = "";
    complain("problem");
  } catch (error) {
    complain("problem", `Not sent: ${error.message}`);
  }
});

const csrf = document.cookie.match(/csrftoken=([^;]+)/)?.[1]; // Django's; other frameworks have none
$("login").addEventListener("submit", async (event) => {
  event.preventDefault();
  const answer = await fetch("/login", {
    method: "POST",
    headers: { "Content-Type": "application/json", ...(csrf && { "X-CSRFToken": csrf }) },
    body: JSON.stringify({ name: event.target.name.value }),
  });
  complain("login-problem", answer.ok ? "" : "That name cannot be used.");
  if (answer.ok) channel.open();
});

channel.open();
