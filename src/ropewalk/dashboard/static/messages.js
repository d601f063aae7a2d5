// The chat's list of messages and notes. Data from other clients is inserted as text, never as markup.

const MAX_ENTRIES = 300;

export class Messages {
  #log;
  #list;
  #waiting;
  #self;

  /** `log` scrolls `list`; `self` is the sender id of this page's own messages. */
  constructor({ log, list, waiting, self }) {
    this.#log = log;
    this.#list = list;
    this.#waiting = waiting;
    this.#self = self;
  }

  add({ message, position, replayed }) {
    const said = understood(message);
    this.forget(said.uid);
    const item = element("li", "message");
    const arrival = replayed ? "replayed" : "live";
    Object.assign(item.dataset, { epoch: position.epoch, offset: position.offset, arrival });
    item.dataset.mine = said.from === this.#self ? "yes" : "no";
    item.append(
      line(element("bdi", "who", said.name), time(said.at), element("span", `tag ${arrival}`, arrival), place(position)),
      element("p", "what", said.text),
    );
    item.lastChild.dir = "auto";
    this.#append(item);
  }

  note(kind, text, data = {}) {
    const item = element("li", `note ${kind}`, text);
    Object.assign(item.dataset, data);
    this.#append(item);
  }

  /** Show a message that is not published yet, until it arrives with its position. */
  wait(uid, text) {
    const item = element("li", "", text);
    item.dataset.uid = uid;
    this.#waiting.append(item);
  }

  forget(uid) {
    for (const item of this.#waiting.children) if (item.dataset.uid === uid) return item.remove();
  }

  /** Screen readers wait until a replay is complete. */
  busy(busy) {
    this.#log.setAttribute("aria-busy", String(busy));
  }

  #append(item) {
    const list = this.#list;
    const log = this.#log;
    const atEnd = log.scrollHeight - log.scrollTop - log.clientHeight < 60;
    list.append(item);
    while (list.children.length > MAX_ENTRIES) list.firstChild.remove();
    if (atEnd) log.scrollTop = log.scrollHeight;
  }
}

/** Any client may publish to a public stream: other messages than the page's own are shown as JSON. */
function understood(message) {
  if (typeof message?.text !== "string") {
    return { name: "publisher", text: typeof message === "string" ? message : JSON.stringify(message) };
  }
  const { uid, from, name, text, at } = message;
  return { uid, from, name: typeof name === "string" && name ? name : "nameless", text, at };
}

function line(...parts) {
  const head = element("p", "head");
  head.append(...parts);
  return head;
}

function time(at) {
  const date = new Date(at);
  if (typeof at !== "number" || Number.isNaN(date.getTime())) return "";
  const mark = element("time", "", date.toLocaleTimeString());
  mark.dateTime = date.toISOString();
  return mark;
}

function place({ epoch, offset }) {
  const code = element("code", "position", `${epoch}:${offset}`);
  code.title = `epoch ${epoch}, offset ${offset}`;
  return code;
}

export function element(tag, name = "", text = "") {
  const made = document.createElement(tag);
  made.className = name;
  made.textContent = text;
  return made;
}
