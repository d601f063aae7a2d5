// The page: log in, write messages, list the members and who is typing. All input is inserted as text, never as markup.

const { cable, room } = document.body.dataset;
const { connect } = await import(new URL("/ropewalk.js", cable.replace(/^ws/, "http"))); // from the server of the WebSocket

const TYPING_EVERY = 2_000;
const TYPING_LASTS = 3_000;
const EARLIER = 300_000; // milliseconds of the conversation that a new page shows

const $ = (id) => document.getElementById(id);
let chat; // the subscription, from the login on

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

function showState(name, text) {
  $("status").dataset.state = name;
  $("state").value = text;
}

function open() {
  const client = connect(cable);
  chat = client.channel("ChatChannel", { room }, { from: { since: Date.now() - EARLIER } });
  client.on("status", ({ state }) => state === "waiting" && showState("offline", "offline, trying again"));
  chat.on("status", ({ state }) => {
    if (state !== "live") return;
    showState("online", "online");
    $("login").hidden = true;
    $("chat").hidden = false;
  });
  chat.on("error", ({ code }) => {
    const stranger = code === "unauthorized";
    client.close();
    showState("refused", stranger ? "not logged in" : `refused: ${code}`);
    $("login").hidden = !stranger;
    $("chat").hidden = true;
  });
  chat.on("message", ({ data }) => {
    $("typing").textContent = "";
    show(data.name, data.text);
  });
  chat.on("gap", () => show("", "Some messages are gone. The messages still kept follow.", "notice"));
  chat.on("presence", () => {
    const names = chat.presence.members.map(nameOf);
    $("members").value = names.sort().join(", ") || "no members";
  });
  chat.on("transient", showTyping);
}

function nameOf({ id, info }) {
  return info?.name ?? id;
}

let typingSentAt = 0;
$("compose").addEventListener("input", () => {
  if (Date.now() - typingSentAt < TYPING_EVERY) return;
  typingSentAt = Date.now();
  chat.whisper({ typing: true });
});

// A whisper is untrusted input of another client. Only `from` is set by the server.
let typingEnds = 0;
function showTyping({ type, data, from }) {
  if (type !== "whisper" || data?.typing !== true) return;
  const member = chat.presence.members.find(({ id }) => id === from);
  clearTimeout(typingEnds);
  $("typing").textContent = `${member ? nameOf(member) : "Someone"} is typing…`;
  typingEnds = setTimeout(() => ($("typing").textContent = ""), TYPING_LASTS);
}

$("compose").addEventListener("submit", async (event) => {
  event.preventDefault();
  const field = event.target.text;
  try {
    await chat.perform("speak", { text: field.value });
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
  if (answer.ok) open();
});

open();
