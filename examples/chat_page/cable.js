// One channel of Ropewalk, which reconnects. Missed messages are requested by position, so that each message is shown once and in
// order. For a page with more than a few channels, use @anycable/core.
//
// Events: state {name: online | offline | refused, reason}, message {message, replayed}, whisper {message, from},
// presence {type: join | leave | info, …}, gap {reason}
//
// A whisper of another client cannot be mistaken for a message: it is an event of its own, and the server adds the sender.

const MAX_DELAY = 10_000;
const SILENCE = 10_000; // the server pings every three seconds
const REPLY_TIMEOUT = 10_000;

export class Channel extends EventTarget {
  #url;
  #identifier;
  #since = Math.floor(Date.now() / 1000) - 300; // the last minutes, as long as no position is known
  #positions = {};
  #replaying = false;
  #sid = "";
  #socket = null;
  #failures = 0;
  #silence = 0;
  #calls = new Map(); // what to do with the reply, by the name of the call
  #called = 0;

  constructor(url, name, params) {
    super();
    this.#url = url;
    this.#identifier = JSON.stringify({ channel: name, ...params });
  }

  open() {
    const url = new URL(this.#url);
    url.searchParams.set("positions", "1"); // confirmations with the positions of all streams
    if (this.#sid) url.searchParams.set("sid", this.#sid);
    this.#socket = new WebSocket(url, "actioncable-v1-ext-json");
    this.#socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    this.#socket.onclose = () => this.#lost();
    this.#listen();
  }

  /** Returns the result of the action. Throws an error with its `code`, also if the connection is lost meanwhile. */
  perform(action, data) {
    return new Promise((resolve, reject) => {
      const id = ++this.#called;
      const timer = setTimeout(() => this.#calls.get(id)?.({ error: { code: "timeout", message: "no answer" } }), REPLY_TIMEOUT);
      this.#calls.set(id, ({ result, error }) => {
        clearTimeout(timer);
        this.#calls.delete(id);
        if (error) reject(Object.assign(new Error(error.message ?? error.code), { code: error.code }));
        else resolve(result);
      });
      const sent = this.#send("message", { data: JSON.stringify({ ...data, action, $reply_to: id }) });
      if (!sent) this.#calls.get(id)({ error: { code: "offline", message: "not connected" } });
    });
  }

  whisper(data) {
    this.#send("whisper", { data });
  }

  #receive(frame) {
    this.#listen();
    switch (frame.type) {
      case "ping":
        return;
      case "welcome":
        return this.#welcomed(frame);
      case "disconnect":
        return frame.reconnect ? undefined : this.#refused(frame.reason);
      case "reject_subscription":
        return this.#refused("rejected");
      case "confirm_subscription":
        return this.#online();
      case "confirm_history":
        return this.#caughtUp(frame);
      case "reject_history":
        return this.#gap(frame);
      case "presence":
        return this.#emit("presence", frame.message);
      case "reply":
        return this.#calls.get(frame.message.$reply_to)?.(frame.message);
      case "whisper":
        return this.#emit("whisper", { message: frame.message.$whisper, from: frame.message.from });
      default:
        if (frame.identifier === this.#identifier) this.#deliver(frame);
    }
  }

  #welcomed({ sid, restored, restored_ids: ids = [] }) {
    this.#sid = sid;
    this.#failures = 0;
    this.#replaying = true;
    const resumed = restored && ids.includes(this.#identifier);
    this.#send(resumed ? "history" : "subscribe", { history: { since: this.#since, streams: this.#positions } });
    if (resumed) this.#online();
  }

  #online() {
    this.#send("presence", {});
    this.#emit("state", { name: "online" });
  }

  #deliver({ message, stream_id: stream, epoch, offset }) {
    if (!offset) return; // sent to us alone, or without a place in the history: this chat has neither
    this.#positions[stream] = { epoch, offset };
    this.#emit("message", { message, replayed: this.#replaying });
  }

  // The messages still kept follow. A gap without an epoch has no position: keep ours.
  #gap({ reason = "unknown", streams = {} }) {
    for (const [stream, { reason, epoch, oldest, tip }] of Object.entries(streams)) {
      if (epoch && reason !== "unclaimed") this.#positions[stream] = { epoch, offset: reason === "ahead" ? tip : oldest - 1 };
    }
    this.#emit("gap", { reason });
  }

  #caughtUp({ streams = {} }) {
    for (const [stream, { epoch, tip }] of Object.entries(streams)) {
      if (epoch) this.#positions[stream] ??= { epoch, offset: tip }; // a stream without messages has no epoch
    }
    this.#replaying = false;
  }

  #lost() {
    this.#leave();
    this.#emit("state", { name: "offline" });
    const delay = Math.min(MAX_DELAY, 250 * 2 ** this.#failures++);
    setTimeout(() => this.open(), delay * (0.5 + Math.random() / 2)); // spreads the reconnects after a server restart
  }

  #refused(reason) {
    this.#leave();
    this.#sid = "";
    this.#emit("state", { name: "refused", reason });
  }

  #leave() {
    clearTimeout(this.#silence);
    for (const settle of [...this.#calls.values()]) settle({ error: { code: "offline", message: "the connection was lost" } });
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
  }

  #listen() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#lost(), SILENCE);
  }

  #send(command, fields) {
    if (this.#socket.readyState !== WebSocket.OPEN) return false;
    this.#socket.send(JSON.stringify({ command, identifier: this.#identifier, ...fields }));
    return true;
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
