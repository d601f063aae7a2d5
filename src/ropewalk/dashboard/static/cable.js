// A session of the extended Action Cable protocol, subscribed to one public stream, which reconnects when its connection is lost.
// It reports the server's messages in the order of their arrival, without sorting or repair: duplicate and missing offsets are
// reported, so that the page can show that there are none.
//
// Events (details):
//   state    { name: connecting | online | waiting | cut | closed, sid, reason, delay }
//   welcome  { sid, previous, restored, restoredIds }
//   message  { message, position: { epoch, offset }, replayed }
//   caughtup {}                                   every message from here on is live
//   gap      { reason, known, epoch, oldest, tip }  the messages still kept follow
//   repeated { position }      hole { known, position }
//   presence { type: join | leave | info | error, … }
//   transient { message }                         a whisper, or another message that keeps no place in the stream

const PROTOCOL = "actioncable-v1-ext-json";
const PING_SECONDS = 3;
const SILENCE = 10_000; // more than three pings: without any the connection is dead, even if the socket is open
const FIRST_DELAY = 500;
const MAX_DELAY = 15_000;

export class Session extends EventTarget {
  #url;
  #stream;
  #identifier;
  #since;
  #socket = null;
  #sid = "";
  #position = null;
  #gone = false; // the server did not know the stream
  #member = null;
  #replaying = false;
  #online = false;
  #attempts = 0;
  #retry = 0;
  #pause; // the reconnect delay that the server sent, in milliseconds
  #silence = 0;

  /** `since`: UNIX seconds; history from then on is requested while no position is known. */
  constructor({ url, stream, since }) {
    super();
    this.#url = url;
    this.#stream = stream;
    this.#since = since;
    this.#identifier = JSON.stringify({ channel: "$pubsub", stream_name: stream });
  }

  get online() {
    return this.#online;
  }

  get position() {
    return this.#position;
  }

  open() {
    this.#abandon();
    this.#state("connecting");
    const url = new URL(this.#url);
    url.searchParams.set("pi", String(PING_SECONDS));
    url.searchParams.set("reconnect_in", "1");
    url.searchParams.set("positions", "1");
    if (this.#sid) url.searchParams.set("sid", this.#sid);
    const socket = new WebSocket(url, PROTOCOL);
    socket.onmessage = ({ data }) => this.#receive(JSON.parse(data));
    socket.onclose = () => this.#lost();
    this.#socket = socket;
    this.#listen();
  }

  /** Close the connection until `open`, without unsubscribe and leave, as if it were lost. */
  cut() {
    this.#abandon();
    this.#state("cut");
  }

  /** Skip the delay if a lost connection waits for its next attempt. */
  hurry() {
    if (this.#retry) this.open();
  }

  join(member) {
    this.#member = member;
    if (this.#online) this.#send("join", { presence: member });
  }

  leave() {
    const member = this.#member;
    this.#member = null;
    if (this.#online && member) this.#send("leave", { presence: { id: member.id } });
  }

  whisper(data) {
    if (this.#online) this.#send("whisper", { data });
  }

  #receive(frame) {
    this.#listen();
    switch (frame.type) {
      case "ping":
        return;
      case "welcome":
        return this.#welcomed(frame);
      case "disconnect":
        this.#pause = frame.reconnect_in;
        return frame.reconnect ? undefined : this.#refused(frame.reason);
      case "confirm_subscription":
        return this.#subscribed();
      case "reject_subscription":
        return this.#refused("subscription rejected");
      case "confirm_history":
        return this.#caughtUp(frame);
      case "reject_history":
        return this.#gap(frame);
      case "presence":
        return this.#emit("presence", frame.message);
      default:
        if (frame.identifier === this.#identifier && "message" in frame) this.#deliver(frame);
    }
  }

  #welcomed(frame) {
    const previous = this.#sid;
    const restoredIds = frame.restored_ids ?? [];
    this.#sid = frame.sid;
    this.#attempts = 0;
    this.#replaying = true;
    this.#emit("welcome", { sid: frame.sid, previous, restored: frame.restored === true, restoredIds });
    if (frame.restored === true && restoredIds.includes(this.#identifier)) this.#resume();
    else this.#subscribe();
  }

  #resume() {
    this.#send("history", { history: this.#wanted() });
    if (this.#member) this.#send("join", { presence: this.#member });
    this.#subscribed();
  }

  #subscribe() {
    this.#send("subscribe", { history: this.#wanted(), ...(this.#member && { presence: this.#member }) });
  }

  #wanted() {
    return { since: this.#since, streams: this.#position ? { [this.#stream]: this.#position } : {} };
  }

  #subscribed() {
    this.#send("presence", {});
    this.#online = true;
    this.#state("online");
  }

  #deliver({ message, epoch, offset }) {
    if (!offset) return this.#emit("transient", { message });
    const position = { epoch, offset };
    const known = this.#position;
    const sameLife = known?.epoch === epoch;
    if (sameLife && offset <= known.offset) return this.#emit("repeated", { position });
    const begins = this.#gone && offset === 1; // this gap was reported when the server had no record of the stream
    if (known && !begins && !(sameLife && offset === known.offset + 1)) this.#emit("hole", { known, position });
    this.#gone = false;
    this.#position = position;
    this.#emit("message", { message, position, replayed: this.#replaying });
  }

  #gap({ reason = "unknown", streams = {} }) {
    const known = this.#position;
    const told = streams[this.#stream] ?? {};
    this.#position = this.#behind(told);
    this.#gone = told.epoch === "" && told.reason === "epoch_changed";
    this.#emit("gap", { known, ...told, reason: told.reason ?? reason });
  }

  /** The position after a gap: kept messages follow, from `oldest` on. */
  #behind({ reason, epoch, oldest, tip }) {
    if (epoch === undefined) return null; // no details: the next message has our position
    if (epoch === "") return this.#position; // the gap has no position: keep ours
    if (reason === "unclaimed") return this.#position; // the messages after this gap arrived before the notice
    return { epoch, offset: reason === "ahead" ? tip : oldest - 1 };
  }

  #caughtUp({ streams = {} }) {
    const told = streams[this.#stream];
    // No message received yet: later requests ask for history from here on.
    if (told?.epoch) this.#position ??= { epoch: told.epoch, offset: told.tip };
    this.#replaying = false;
    this.#emit("caughtup", {});
  }

  #lost() {
    this.#abandon();
    const ceiling = Math.min(MAX_DELAY, FIRST_DELAY * 2 ** this.#attempts++);
    // Jitter, so that clients do not reconnect to a restarted server all at once. A delay from the server includes it.
    const delay = this.#pause ?? ceiling * (0.5 + Math.random() / 2);
    this.#pause = undefined;
    this.#retry = setTimeout(() => this.open(), delay);
    this.#state("waiting", { delay });
  }

  #refused(reason) {
    this.#abandon();
    this.#state("closed", { reason });
  }

  #abandon() {
    clearTimeout(this.#retry);
    clearTimeout(this.#silence);
    this.#retry = 0;
    this.#online = false;
    if (!this.#socket) return;
    this.#socket.onmessage = this.#socket.onclose = null;
    this.#socket.close();
    this.#socket = null;
  }

  #listen() {
    clearTimeout(this.#silence);
    this.#silence = setTimeout(() => this.#lost(), SILENCE);
  }

  #send(command, fields) {
    this.#socket.send(JSON.stringify({ command, identifier: this.#identifier, ...fields }));
  }

  #state(name, more = {}) {
    this.#emit("state", { name, sid: this.#sid, ...more });
  }

  #emit(type, detail) {
    this.dispatchEvent(new CustomEvent(type, { detail }));
  }
}
