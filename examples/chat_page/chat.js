// The page: log in, talk, see who is there and who types. Whatever came from outside goes in as text, never as markup.

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
  if (name === "offline") return; // what was shown stays
  $("login").hidden = !stranger;
  $("chat").hidden = name !== "online";
});
channel.addEventListener("message", ({ detail: { message } }) => {
  $("typing").textContent = "";
  show(message.name, message.text);
});
channel.addEventListener("gap", () => show("", "Some messages are gone. What is still kept follows.", "notice"));

channel.addEventListener("presence", ({ detail: { type, id, info, records = [] } }) => {
  if (type === "info") members.clear();
  for (const member of records) members.set(member.id, member.info?.name ?? member.id);
  if (type === "join") members.set(id, info?.name ?? id);
  if (type === "leave") members.delete(id);
  $("members").value = [...members.values()].sort().join(", ") || "nobody";
});

let typingSaidAt = 0;
$("say").addEventListener("input", () => {
  if (Date.now() - typingSaidAt < TYPING_EVERY) return;
  typingSaidAt = Date.now();
  channel.whisper({ typing: true });
});

// A whisper is what another client says, and no more: `from` is the only thing in it that the server vouches for.
let typingEnds = 0;
channel.addEventListener("whisper", ({ detail: { message, from } }) => {
  if (message?.typing !== true) return;
  clearTimeout(typingEnds);
  $("typing").textContent = `${members.get(from) ?? "Somebody"} is typing…`;
  typingEnds = setTimeout(() => ($("typing").textContent = ""), TYPING_LASTS);
});

$("say").addEventListener("submit", async (event) => {
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
