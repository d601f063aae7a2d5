// The client of Ropewalk for browsers and Node. How to use it: docs/how-to/javascript.md
// The rule it keeps: a subscription yields each position once and in order, and a gap wherever messages are missing.

/** @typedef {{ epoch: string, offset: number }} Position */
/** @typedef {Record<string, Position>} Positions by stream */
/** @typedef {"live" | "start" | { last: number } | { since: Date | number } | Position | { positions: Positions }} From */
/** @template T @typedef {{ data: T, stream: string, position: Position, replayed: boolean, type?: string, gap?: undefined }} Message */
/** @typedef {{ reason: string, stream: string, known?: Position, position?: Position, tip?: number, missed?: number }} Gap */
/** @typedef {{ data?: undefined, stream: string, position?: Position, replayed: boolean, type?: undefined, gap: Gap }} GapItem */
/** @typedef {{ data: any, type?: string, from?: string | null }} Transient */
/** @typedef {{ id: string, info: any }} Member */
/** @typedef {{ type: "join" | "leave", id: string, info?: any } | { type: "sync", members: Member[] }} PresenceEvent */
/** @typedef {"connecting" | "online" | "waiting" | "offline" | "closed"} ClientState */
/** @typedef {{ state: ClientState, sid: string, transport: string, restored?: boolean, delay?: number, reason?: string }} ClientStatus */
/** @typedef {"pending" | "replaying" | "live" | "paused" | "closed"} SubscriptionState */
/** @typedef {{ state: SubscriptionState, restored?: boolean }} SubscriptionStatus */
/** @typedef {{ from?: From, resume?: Pick<Storage, "getItem" | "setItem">, queue?: number }} SubscribeOptions */
/** @typedef {{ token?: string | (() => string | Promise<string>), tokenParam?: string, events?: string | false,
 *   pingInterval?: number, minDelay?: number, maxDelay?: number,
 *   WebSocket?: { new (url: string, protocols: string[]): any } }} ConnectOptions */

const ANSWER_TIMEOUT = 10_000;
const EVENTS_TIME = 120_000; // until the WebSocket is tried again

export class RopewalkError extends Error {
  constructor(code = "", message = code) {
    super(message);
    this.name = "RopewalkError";
    this.code = code;
  }
}

const report = (/** @type {unknown} */ error) => (globalThis.reportError ?? console.error)(error);

/** Callers need not await it. @template T @param {() => Promise<T>} act */
function quiet(act) {
  const promise = act();
  promise.catch(() => {});
  return promise;
}

/** @template {Record<string, any>} Types */
class Emitter {
  /** @type {Map<string, Set<(detail: any) => any>>} */
  #handlers = new Map();

  /**
   * Returns a function that removes the handler.
   * @template {keyof Types & string} K @param {K} type @param {(detail: Types[K]) => any} handler @returns {() => void}
   */
  on(type, handler) {
    const handlers = this.#handlers.get(type) ?? new Set();
    const own = (/** @type {any} */ detail) => handler(detail);
    this.#handlers.set(type, handlers.add(own));
    this._listened(type);
    return () => void handlers.delete(own);
  }

  /** @internal */
  _listened(_type = "") {}

  /** Returns whether there was a handler.
   * @internal @template {keyof Types & string} K @param {K} type @param {Types[K]} detail */
  _emit(type, detail) {
    const handlers = this.#handlers.get(type);
    for (const handler of handlers ?? []) {
      try {
        handler(detail)?.catch?.(report);
      } catch (error) {
        report(error);
      }
    }
    return !!handlers?.size;
  }
}

/** What a subscription has received, what to request, and what it yields. @internal */
export class Track {
  asked = false; // for history, without an answer
  wantsMore = false; // the last answer was bounded
  positions = /** @type {Map<string, Position>} */ (new Map());
  #tips = /** @type {Map<string, Position>} */ (new Map()); // live delivery began here, in this answer
  #held = /** @type {any[]} */ ([]); // live messages above an answer
  #gone = new Set(); // streams unknown to the server, which was reported

  /** @param {(item: Message<any> | GapItem) => void} emit */
  constructor(emit) {
    this.emit = emit;
  }

  /** @param {number} [since] for streams without a position */
  request(since) {
    this.asked = true;
    this.wantsMore = false;
    const wanted = [...this.positions].filter(([stream, { epoch, offset }]) => {
      const tip = this.#tips.get(stream);
      return tip?.epoch !== epoch || tip.offset !== offset;
    });
    return { since, streams: Object.fromEntries(wanted) };
  }

  /** The connection is lost. The next replay contains the held messages. */
  lost() {
    this.asked = this.wantsMore = false;
    this.#held = [];
    this.#tips.clear();
    this.#gone.clear();
  }

  /** @param {Record<string, any>} [streams] */
  began(streams = {}) {
    for (const [stream, { epoch, tip }] of Object.entries(streams)) {
      if (!this.positions.has(stream)) this.positions.set(stream, { epoch, offset: tip });
    }
  }

  /** A message with a position. @param {any} frame */
  accept(frame) {
    if (this.#overtakes(frame)) this.#held.push(frame);
    else this.#advance(frame);
  }

  /** An answer is complete. */
  confirmed() {
    this.asked = false;
    if (!this.wantsMore) this.#release();
  }

  /** @param {any} frame */
  rejected({ reason, streams }) {
    if (!streams) return this.#forgetPositions(reason);
    const unclaimed = reason === "unclaimed";
    for (const [stream, told] of Object.entries(streams)) {
      const gap = { ...told, stream };
      // Not an answer: the server continues with its newest messages.
      if (reason === "dropped" || (unclaimed && !this.asked)) this.#gap({ stream, reason });
      else {
        if (unclaimed || gap.reason === "partial") this.#noteTip(gap);
        // If unclaimed, our request and this message crossed: the answer follows our position.
        if (!unclaimed && !this.#isKnown(gap)) this.#missing(gap);
      }
    }
  }

  /** @param {any} frame */
  #noteTip({ stream, epoch, tip }) {
    if (epoch && this.#tips.get(stream)?.epoch !== epoch) this.#tips.set(stream, { epoch, offset: tip });
  }

  /** Whether it was received meanwhile, or the loss was reported and the new epoch is complete. @param {any} frame */
  #isKnown({ stream, reason, epoch, oldest }) {
    if (reason === "epoch_changed" && epoch && oldest === 1 && this.#gone.delete(stream)) {
      this.positions.set(stream, { epoch, offset: 0 });
      return true;
    }
    const known = this.positions.get(stream);
    return reason === "trimmed" && known?.epoch === epoch && Number(known?.offset) >= oldest - 1;
  }

  /** @param {any} frame */
  #missing({ stream, reason, epoch, oldest, tip }) {
    if (!epoch) {
      // It gives no position. Keep ours: the answer to the next request reports whether messages are missing.
      if (reason === "epoch_changed") this.#gone.add(stream);
      return this.#gap({ stream, reason });
    }
    const noted = this.#tips.get(stream);
    const end = noted?.epoch === epoch ? Number(noted?.offset) : tip;
    const position = { epoch, offset: reason === "ahead" ? end : Math.min(oldest - 1, end) };
    if (reason !== "partial") return this.#gap({ stream, reason, position, tip });
    this.wantsMore = true; // nothing is missing: the next request returns the rest
    this.positions.set(stream, position);
  }

  /** @param {any} frame */
  #gap(frame) {
    const { stream, position } = frame;
    const known = this.positions.get(stream);
    if (position) this.positions.set(stream, position);
    this.emit(gapItem({ known, ...frame }));
  }

  /** The server gave no positions: each stream starts again with its next message. */
  #forgetPositions(reason = "unknown") {
    for (const stream of this.positions.size ? this.positions.keys() : [""]) this.#gap({ stream, reason });
    this.positions.clear();
    this.confirmed();
  }

  /** @param {any} frame */
  #overtakes({ stream_id: stream, epoch, offset }) {
    const tip = this.#tips.get(stream);
    if (tip) return tip.epoch !== epoch || offset > tip.offset;
    const known = this.positions.get(stream);
    if (!known || !this.asked) return false;
    // What does not follow may be a message that the server held until it got our request.
    return (known.epoch && known.epoch !== epoch) || offset > known.offset + 1;
  }

  #release() {
    let held = this.#held;
    this.#held = [];
    this.#tips.clear();
    // Sorted by epoch: messages held after a rejection may precede messages held before it.
    while (held.length) {
      const [{ stream_id, epoch }] = held;
      const run = held.filter((each) => each.stream_id === stream_id && each.epoch === epoch);
      held = held.filter((each) => !run.includes(each));
      for (const frame of run.sort((a, b) => a.offset - b.offset)) this.#advance(frame);
    }
  }

  /** @param {any} frame */
  #advance({ stream_id: stream, epoch, offset, message, type }) {
    const known = this.positions.get(stream);
    if (known?.epoch === epoch && offset <= Number(known?.offset)) return;
    // A missing offset is not a gap: publications may exclude this session.
    const complete = this.#gone.delete(stream) && offset === 1;
    if (known?.epoch && known.epoch !== epoch && !complete) {
      this.#gap({ stream, reason: "epoch_changed", position: { epoch, offset: offset - 1 } });
    }
    const position = { epoch, offset };
    this.positions.set(stream, position);
    this.emit({ data: message, stream, position, replayed: this.asked, type });
  }
}

/** @param {any} gap @returns {GapItem} */
function gapItem({ stream, reason, known, position, tip }) {
  // An empty epoch is the beginning of any epoch.
  const comparable = known && position && [position.epoch, ""].includes(known.epoch);
  const missed = comparable ? Math.max(0, position.offset - known.offset) : undefined;
  return { gap: { reason, stream, known, position, tip, missed }, stream, position, replayed: false };
}

class Presence {
  #members = new Map();
  /** @type {Map<string, any> | undefined} */
  #pages; // of a query without its last page
  #events = /** @type {any[]} */ ([]);
  /** @type {{ id: string, info?: any } | undefined} */
  #member;
  #subscription;

  /** @internal @param {Subscription<any>} subscription */
  constructor(subscription) {
    this.#subscription = subscription;
  }

  /** @returns {Member[]} */
  get members() {
    return [...this.#members].map(([id, info]) => ({ id, info }));
  }

  /** Become a member until `leave`. @param {string} id @param {any} [info] */
  join(id, info) {
    this.#member = { id, info };
    return this.#command("join");
  }

  leave() {
    const promise = this.#command("leave");
    this.#member = undefined;
    return promise;
  }

  #command(command = "") {
    return quiet(async () => {
      this.#subscription._requireWritable();
      this.#subscription._command(command, { presence: this.#member });
    });
  }

  /** @internal */
  _live() {
    if (this.#member) this.#subscription._command("join", { presence: this.#member });
    this.#pages = this.#subscription._command("presence") ? new Map() : undefined;
    this.#events = [];
  }

  /** @internal @param {any} frame */
  _receive({ type, id, info, records = [], next }) {
    const event = { type, id, info };
    if (type === "error") {
      this.#subscription._emit("error", new RopewalkError("presence_unavailable"));
    } else if (type !== "info") {
      if (this.#pages) this.#events.push(event);
      this.#apply(event);
      this.#subscription._emit("presence", event);
    } else if (this.#pages) {
      for (const record of records) this.#pages.set(record.id, record.info);
      if (next) return this.#subscription._command("presence", { data: { after: next } });
      this.#members = this.#pages;
      this.#pages = undefined;
      for (const each of this.#events) this.#apply(each); // the pages may be older
      this.#subscription._emit("presence", { type: "sync", members: this.members });
    }
  }

  /** @param {any} frame */
  #apply({ type, id, info }) {
    if (type === "join") this.#members.set(id, info);
    else this.#members.delete(id);
  }
}

/**
 * @template [T=any]
 * @extends {Emitter<{ message: Message<T>, gap: Gap, status: SubscriptionStatus, presence: PresenceEvent, transient: Transient,
 *   error: RopewalkError }>}
 */
export class Subscription extends Emitter {
  /** @type {SubscriptionState} */
  state = "pending";
  #client;
  #key;
  #resume = /** @type {SubscribeOptions["resume"]} */ (undefined);
  #limit;
  #last;
  #track = new Track((item) => this.#deliver(item));
  #started = Date.now();
  #accepted = false; // the server has confirmed it once
  #since = 0;
  /** @type {Presence | undefined} */
  #presence;
  #queue = /** @type {any[]} */ ([]);
  /** @type {"handlers" | "loop" | undefined} */
  #reader;
  #yielded = /** @type {any} */ (undefined); // the item that the loop works on
  /** @type {(() => void) | undefined} */
  #wake;
  #seen = /** @type {Map<string, Position>} */ (new Map()); // what the program has handled
  /** @type {RopewalkError | undefined} */
  #error;
  #calls = /** @type {Map<number, any>} */ (new Map()); // actions without a reply
  #lastCall = 0;

  /** @internal @param {Client} client @param {SubscribeOptions} options */
  constructor(client, options, identifier = "", name = "") {
    super();
    this.#client = client;
    this.identifier = identifier;
    this.name = name;
    this.#key = `ropewalk ${client.url} ${identifier}`;
    this.#resume = options.resume;
    this.#limit = options.queue ?? 1000;
    const stored = this.#resume?.getItem(this.#key);
    /** @type {any} */
    const from = stored ? { positions: JSON.parse(stored) } : (options.from ?? "live");
    const { last, since, epoch, offset, positions = offset === undefined ? {} : { [name]: { epoch, offset } } } = from;
    if (from === "start") this.#since = 1;
    else if (since !== undefined) this.#since = Math.max(1, since / 1000);
    else if (from !== "live" && typeof from !== "object") throw new TypeError(`from: ${from}`);
    this.#last = last;
    this.#seen = new Map(Object.entries(positions));
    this.#track.positions = new Map(this.#seen);
  }

  get presence() {
    if (!this.#presence) {
      this.#presence = new Presence(this);
      if (this.#isLive) this.#presence._live();
    }
    return this.#presence;
  }

  /** By stream. @returns {Positions} */
  get positions() {
    return Object.fromEntries(this.#seen);
  }

  get position() {
    return [...this.#seen.values()].at(-1);
  }

  get #isLive() {
    return this.state === "live" || this.state === "replaying";
  }

  /** Send a message that is not stored. @param {any} data */
  whisper(data) {
    return quiet(async () => {
      this._requireWritable();
      if (!this._command("whisper", { data })) throw new RopewalkError("offline");
    });
  }

  /**
   * Call an action of the channel, and return its result. With `reply: false`, return when it is sent.
   * @param {string} action @param {object} [data] @param {{ reply?: boolean, timeout?: number }} [options] @returns {Promise<any>}
   */
  perform(action, data, { reply = true, timeout = ANSWER_TIMEOUT } = {}) {
    return quiet(async () => {
      this._requireWritable();
      if (this.state === "closed") throw new RopewalkError("closed");
      return new Promise((resolve, reject) => {
        const id = ++this.#lastCall;
        const text = JSON.stringify({ ...data, action, ...(reply && { $reply_to: id }) });
        const settle = (/** @type {any} */ { result, error }) => {
          clearTimeout(timer);
          this.#calls.delete(id);
          if (error) reject(Object.assign(new RopewalkError(error.code, error.message), error));
          else resolve(result);
        };
        const timer = setTimeout(settle, timeout, { error: { code: "timeout" } });
        this.#calls.set(id, { text, reply, settle, sent: false });
        this.#sendCalls();
      });
    });
  }

  #sendCalls() {
    for (const call of this.#calls.values()) {
      call.sent ||= this._command("message", { data: call.text });
      if (call.sent && !call.reply) call.settle({});
    }
  }

  /** Unsubscribe. A loop ends after the messages that have arrived. */
  close() {
    this._end();
  }

  [Symbol.asyncIterator]() {
    return this;
  }

  /** For one loop at a time. @returns {Promise<IteratorResult<Message<T> | GapItem, undefined>>} */
  async next() {
    if (this.#reader !== "loop") {
      this.#reader = "loop";
      for (const item of this.#queue) this.#announce(item);
    }
    this.#handled();
    while (!this.#queue.length) {
      if (this.#error) throw this.#error;
      if (this.state === "closed") return { done: true, value: undefined };
      await /** @type {Promise<void>} */ (new Promise((resolve) => (this.#wake = resolve)));
    }
    const value = (this.#yielded = this.#queue.shift());
    if (this.state === "paused" && this.#queue.length <= this.#limit / 2) this._subscribe();
    return { done: false, value };
  }

  /** Leaves the subscription open.
   * @returns {Promise<IteratorResult<any, undefined>>} */
  async return() {
    this.#handled();
    return { done: true, value: undefined };
  }

  /** @internal @override */
  _listened(type = "") {
    if (type === "presence") this.presence;
    if (type === "message" && !this.#reader) {
      this.#reader = "handlers";
      // The other handlers of this moment come first.
      queueMicrotask(() => this.#reader === "handlers" && this.#queue.splice(0).forEach((item) => this.#hand(item)));
    }
  }

  /** @param {any} item */
  #deliver(item) {
    if (this.#reader === "handlers" && !this.#queue.length) return this.#hand(item);
    this.#queue.push(item);
    if (this.#reader === "loop") this.#announce(item);
    this.#wake?.();
    if (this.#queue.length < this.#limit) return;
    if (!this.#reader) return this.#dropUnread();
    // The loop is too slow: request the rest by position when there is room.
    if (!this.#isLive) return;
    this.#send("unsubscribe");
    this.#setState("paused");
  }

  /** @param {any} item */
  #announce(item) {
    this._emit(item.gap ? "gap" : "message", item.gap ?? item);
  }

  /** @param {any} item */
  #hand(item) {
    if (this.state === "closed") return;
    if (item.position) this.#seen.set(item.stream, item.position);
    this.#announce(item);
    this.#save();
  }

  #handled() {
    const { stream = "", position = undefined } = this.#yielded ?? {};
    this.#yielded = undefined;
    if (!position) return;
    this.#seen.set(stream, position);
    this.#save();
  }

  #save() {
    try {
      this.#resume?.setItem(this.#key, JSON.stringify(this.positions));
    } catch (error) {
      this.#resume = undefined;
      report(error);
    }
  }

  /** Nothing reads. The first reader gets a gap for the older half. */
  #dropUnread() {
    const dropped = this.#queue.splice(0, Math.ceil(this.#limit / 2));
    for (const [stream, position] of new Map(dropped.map((item) => [item.stream, item.position]))) {
      this.#queue.unshift(gapItem({ stream, reason: "unread", known: this.#seen.get(stream), position }));
    }
  }

  #send(command = "", fields = {}) {
    return this.#client._send(command, this.identifier, fields);
  }

  /** Returns whether it was sent. @internal */
  _command(command = "", fields = {}) {
    return this.#isLive && this.#client.transport === "websocket" && this.#send(command, fields);
  }

  /** @internal */
  _requireWritable() {
    if (this.#client.transport === "events") throw new RopewalkError("read_only", "WebSockets are blocked: read only");
  }

  /** @internal */
  _connected(restored = false) {
    if (restored && this.#accepted && this.state !== "paused") {
      this.#track.lost();
      this.#requestHistory();
      return this.#confirmed(true);
    }
    if (restored) this.#send("unsubscribe");
    if (this.state !== "paused") this._subscribe();
  }

  /** @internal */
  _disconnected() {
    if (this.state !== "paused") this.#setState("pending");
    this.#settleCalls("connection_lost");
  }

  /** Returns the command, which is not sent over server-sent events. @internal */
  _subscribe() {
    this.#track.lost();
    this.#setState("pending");
    const wanted = this.#accepted || this.#since || this.#track.positions.size;
    const fields = wanted ? { history: this.#request() } : {};
    this.#send("subscribe", fields);
    return { command: "subscribe", identifier: this.identifier, ...fields };
  }

  #request() {
    // Streams of a channel may have no position yet: request everything since the subscription began.
    return this.#track.request(this.#since || (this.#accepted ? this.#client._serverTime(this.#started) : undefined));
  }

  #requestHistory() {
    this.#send("history", { history: this.#request() });
  }

  /** @internal @param {any} frame */
  _receive(frame) {
    const { type, message, streams } = frame;
    if (type === "confirm_subscription") return this.#began(streams);
    if (type === "reject_subscription") return this._rejected();
    // Of an earlier subscription with this identifier, or part of the history.
    if (!this.#isLive) return;
    if (frame.offset) return this.#track.accept(frame);
    switch (type) {
      case "confirm_history":
        return this.#caughtUp(streams);
      case "reject_history":
        return this.#track.rejected(frame);
      case "presence":
        return this.#presence?._receive(message);
      case "reply":
        return this.#calls.get(message.$reply_to)?.settle(message);
      case "whisper":
        return this._emit("transient", { data: message.$whisper, from: message.from, type });
      default:
        if ("message" in frame) this._emit("transient", { data: message, type });
    }
  }

  /** @param {Record<string, any>} [streams] */
  #began(streams = {}) {
    if (this.#last && !this.#accepted) {
      for (const [stream, { epoch, tip }] of Object.entries(streams)) {
        this.#track.positions.set(stream, { epoch, offset: Math.max(0, tip - this.#last) });
      }
      this.#accepted = true;
      this.#requestHistory();
    } else this.#startAt(streams);
    this.#confirmed();
  }

  /** @param {Record<string, any>} [streams] */
  #startAt(streams) {
    const before = new Set(this.#track.positions.keys());
    this.#track.began(streams);
    for (const [stream, position] of this.#track.positions) if (!before.has(stream)) this.#seen.set(stream, position);
    this.#save();
  }

  #confirmed(restored = false) {
    this.#accepted = true;
    this.#setState(this.#track.asked ? "replaying" : "live", { restored });
    this.#presence?._live();
    this.#sendCalls();
  }

  /** @param {Record<string, any>} [streams] */
  #caughtUp(streams) {
    this.#track.confirmed();
    this.#startAt(streams);
    if (!this.#isLive) return; // the held messages have filled the queue
    if (this.#track.wantsMore) this.#requestHistory();
    else this.#setState("live");
  }

  /** @param {SubscriptionState} state @param {object} [detail] */
  #setState(state, detail) {
    const changed = this.state !== state;
    this.state = state;
    if (changed || detail) this._emit("status", { state, ...detail });
  }

  #settleCalls(code = "") {
    for (const call of [...this.#calls.values()]) if (call.sent || code === "closed") call.settle({ error: { code } });
  }

  /** @internal */
  _rejected() {
    const error = new RopewalkError("rejected", `subscription to ${this.name} rejected`);
    const told = this._end(error);
    if (!this.#client._emit("error", error) && !told) report(error);
  }

  /** Returns whether the program gets the error. @internal @param {RopewalkError} [error] */
  _end(error) {
    if (this.state === "closed") return true;
    this.#client._remove(this.identifier, this.#isLive);
    this.#error = error;
    this.#setState("closed");
    this.#settleCalls("closed");
    this.#wake?.();
    return (!!error && this._emit("error", error)) || this.#reader === "loop";
  }
}

/** In the place of a WebSocket. The subscriptions are in the request. */
class EventStream {
  readyState = 1;
  /** @type {any} */
  onmessage;
  /** @type {any} */
  onclose;
  #abort = new AbortController();

  /** @param {any} headers */
  constructor(url = "", headers, body = "") {
    this.#run(fetch(url, { method: "POST", headers, body, signal: this.#abort.signal })).then(
      (end) => this.onclose?.(end),
      (error) => this.onclose?.({ code: 0, reason: String(error) }),
    );
  }

  close() {
    this.#abort.abort();
  }

  /** @param {Promise<Response>} sent */
  async #run(sent) {
    const answer = await sent;
    if (!answer.ok || !answer.body) return { code: answer.status, reason: await answer.text() };
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    for (let rest = "", data = ""; ; ) {
      const { value, done } = await reader.read();
      if (done) return { code: 0, reason: "" };
      const lines = (rest + value).split("\n");
      rest = /** @type {string} */ (lines.pop());
      for (const line of lines) {
        if (line.startsWith("data: ")) data += line.slice(6) + "\n";
        if (line || !data) continue;
        this.onmessage?.({ data });
        data = "";
      }
    }
  }
}

/** @extends {Emitter<{ status: ClientStatus, error: RopewalkError }>} */
export class Client extends Emitter {
  /** @type {ClientState} */
  state = "connecting";
  sid = "";
  transport = "websocket";
  /** @type {any} */
  #options;
  #subscriptions = /** @type {Map<string, Subscription<any>>} */ (new Map());
  #sent = new Set(); // identifiers of unanswered subscribe commands
  #unanswered = new Set(); // those of them that were unsubscribed
  /** @type {any} */
  #socket;
  #failures = 0; // since the last ping
  #unopened = 0; // WebSockets in a row
  #webSocketWorks = false;
  #mayRefresh = true;
  #timer = 0;
  #pulse = 0;
  #heard = 0;
  #skew = -5; // seconds between the server's clock and ours, at least
  #listening = new AbortController();

  /** @internal @param {string | URL} url @param {ConnectOptions} options */
  constructor(url, options) {
    super();
    const defaults = { tokenParam: "jid", events: "/events", pingInterval: 3, minDelay: 500, maxDelay: 15_000 };
    const given = Object.entries(options).filter(([, value]) => value !== undefined);
    this.#options = { ...defaults, WebSocket: globalThis.WebSocket, ...Object.fromEntries(given) };
    const place = new URL(url, globalThis.location?.href);
    place.protocol = place.protocol.replace("http", "ws");
    if (place.pathname === "/") place.pathname = "/cable";
    this.url = place.href;
    if (!this.#options.WebSocket) throw new TypeError("no WebSocket here: pass one in the options");
    const { signal } = this.#listening;
    globalThis.addEventListener?.("online", this.#hurry, { signal });
    globalThis.document?.addEventListener("visibilitychange", this.#hurry, { signal });
    this.#open();
  }

  /**
   * Subscribe to a public stream by its name, or to a signed one by `{ signed: "…" }`.
   * @template [T=any] @param {string | { signed: string }} stream @param {SubscribeOptions} [options] @returns {Subscription<T>}
   */
  subscribe(stream, options) {
    if (typeof stream === "string") return this.#add(options, stream, { channel: "$pubsub", stream_name: stream });
    return this.#add(options, signedName(stream.signed), { channel: "$pubsub", signed_stream_name: stream.signed });
  }

  /**
   * Subscribe to a channel of the application.
   * @template [T=any] @param {string} name @param {object} [params] @param {SubscribeOptions} [options] @returns {Subscription<T>}
   */
  channel(name, params, options) {
    return this.#add(options, name, { channel: name, ...params });
  }

  /** Close the connection until `reconnect`. */
  disconnect() {
    if (this.state === "closed") return;
    this.#drop();
    this.#setState("offline");
  }

  reconnect() {
    if (this.state === "waiting" || this.state === "offline") this.#open();
  }

  /** With all subscriptions. */
  close() {
    this.#end();
  }

  /** @param {SubscribeOptions} options */
  #add(options = {}, name = "", fields = {}) {
    if (this.state === "closed") throw new RopewalkError("closed");
    // Subscriptions to the same stream differ in the spaces behind their identifier.
    let identifier = JSON.stringify(fields);
    while (this.#subscriptions.has(identifier) || this.#unanswered.has(identifier)) identifier += " ";
    const subscription = new Subscription(this, options, identifier, name);
    this.#subscriptions.set(identifier, subscription);
    if (this.state === "online") subscription._subscribe();
    return subscription;
  }

  /** Returns whether it was sent. @internal */
  _send(command = "", identifier = "", fields = {}) {
    if (this.state !== "online" || this.#socket?.readyState !== 1) return false;
    if (this.transport === "events") {
      // Commands are in the request: make a new one.
      clearTimeout(this.#timer);
      this.#timer = setTimeout(() => this.#open());
    } else {
      if (command === "subscribe") this.#sent.add(identifier);
      this.#socket.send(JSON.stringify({ command, identifier, ...fields }));
    }
    return true;
  }

  /** @internal */
  _serverTime(moment = 0) {
    return moment / 1000 + this.#skew;
  }

  /** @internal */
  _remove(identifier = "", live = false) {
    this.#subscriptions.delete(identifier);
    const sent = this.#sent.has(identifier);
    if (sent) this.#unanswered.add(identifier);
    if (live || sent) this._send("unsubscribe", identifier);
  }

  async #open() {
    this.#drop();
    const { token, events, pingInterval } = this.#options;
    const overEvents = events && this.#unopened > 1 && this.#subscriptions.size;
    this.transport = overEvents ? "events" : "websocket";
    this.#heard = Date.now();
    const pulse = setInterval(() => this.#checkPulse(), pingInterval * 1000);
    this.#pulse = pulse;
    this.#setState("connecting");
    try {
      const value = typeof token === "function" ? await token() : token;
      if (pulse !== this.#pulse) return;
      const socket = overEvents ? this.#eventStream(events, value) : this.#webSocket(value);
      socket.onmessage = (/** @type {any} */ { data }) => this.#receive(JSON.parse(data));
      socket.onclose = (/** @type {any} */ event) => this.#closed(event);
      socket.onerror = () => {}; // a close event follows
      this.#socket = socket;
    } catch (error) {
      if (pulse === this.#pulse) this.#lost(String(error));
    }
  }

  #webSocket(token = "") {
    const { WebSocket, pingInterval, tokenParam } = this.#options;
    const url = new URL(this.url);
    const protocols = ["actioncable-v1-ext-json"];
    const params = { pi: pingInterval, reconnect_in: 1, positions: 1, ...(this.sid && { sid: this.sid }) };
    for (const [name, value] of Object.entries(params)) url.searchParams.set(name, String(value));
    // Proxies log URLs.
    if (token && /^[\w.~+-]+$/.test(token)) protocols.push(`anycable-token.${token}`);
    else if (token) url.searchParams.set(tokenParam, token);
    return new WebSocket(url.href, protocols);
  }

  /** @returns {any} */
  #eventStream(path = "", token = "") {
    const url = new URL(path, this.url);
    url.protocol = url.protocol.replace("ws", "http");
    url.searchParams.set("positions", "1");
    const wanted = [...this.#subscriptions.values()].filter(({ state }) => state !== "paused");
    const lines = wanted.map((each) => JSON.stringify(each._subscribe()));
    this.#timer = setTimeout(() => this.#lost("time to try the WebSocket again"), EVENTS_TIME);
    return new EventStream(url.href, token ? { [`x-${this.#options.tokenParam}`]: token } : {}, lines.join("\n"));
  }

  /** @param {any} frame */
  #receive(frame) {
    this.#heard = Date.now();
    if (this.transport === "websocket") {
      this.#webSocketWorks = true;
      this.#unopened = 0;
    }
    const { type, identifier } = frame;
    switch (frame.offset ? "" : type) {
      case "ping":
        this.#failures = 0;
        this.#skew = frame.message - Date.now() / 1000;
        if (this.transport === "websocket") this.#socket.send('{"command":"pong"}');
        return;
      case "welcome":
        return this.#welcome(frame);
      case "disconnect":
        return frame.reconnect ? this.#lost(frame.reason, frame.reconnect_in) : this.#refused(frame.reason);
      case "confirm_subscription":
      case "reject_subscription":
        this.#sent.delete(identifier);
        if (this.#unanswered.delete(identifier)) return;
    }
    this.#subscriptions.get(identifier)?._receive(frame);
  }

  /** @param {any} frame */
  #welcome({ sid, restored = false, restored_ids: ids = [] }) {
    this.#mayRefresh = true;
    this.sid = sid;
    this.#setState("online", { restored });
    if (this.transport === "events") return;
    for (const id of ids) if (!this.#subscriptions.has(id)) this._send("unsubscribe", id);
    for (const [id, subscription] of this.#subscriptions) if (this.state === "online") subscription._connected(ids.includes(id));
  }

  #closed({ code = 0, reason = "" }) {
    if (this.transport === "events") {
      if (code === 401) return this.#refused("unauthorized");
      const rejected = (/** @type {Subscription<any>} */ { identifier }) => reason.includes(JSON.stringify(identifier).slice(1));
      const subscription = code === 400 && [...this.#subscriptions.values()].find(rejected);
      if (subscription) {
        subscription._rejected();
        return this.#open();
      }
    }
    this.#lost(reason || `closed with code ${code}`);
  }

  #lost(reason = "", pause = NaN) {
    if (this.transport === "events") this.#unopened = 1;
    else if (!this.#webSocketWorks) this.#unopened++;
    this.#drop();
    const { minDelay, maxDelay } = this.#options;
    const longest = Math.min(maxDelay, minDelay * 2 ** this.#failures++);
    const delay = pause >= 0 ? Math.min(pause, 300_000) : longest * (0.5 + Math.random() / 2);
    this.#timer = setTimeout(() => this.#open(), delay);
    this.#setState("waiting", { delay, reason });
  }

  #refused(reason = "") {
    const refreshable = /^(unauthorized|token_expired)$/.test(reason) && typeof this.#options.token === "function";
    if (!refreshable || !this.#mayRefresh) return this.#end(new RopewalkError(reason, `the server refused the connection: ${reason}`));
    this.#mayRefresh = false;
    this.sid = ""; // the session ends with its token
    this.#open();
  }

  /** @param {RopewalkError} [error] */
  #end(error) {
    if (this.state === "closed") return;
    let told = false;
    for (const subscription of this.#subscriptions.values()) told = subscription._end(error) || told;
    this.#drop();
    this.#listening.abort();
    this.#setState("closed", error && { reason: error.code });
    if (error && !this._emit("error", error) && !told) report(error);
  }

  #drop() {
    clearTimeout(this.#timer);
    clearInterval(this.#pulse);
    this.#pulse = 0;
    this.#sent.clear();
    this.#unanswered.clear();
    const socket = this.#socket;
    if (!socket) return;
    this.#socket = undefined;
    socket.onmessage = socket.onclose = null;
    socket.close();
    for (const subscription of this.#subscriptions.values()) subscription._disconnected();
  }

  #checkPulse() {
    const limit = this.state === "online" ? 3000 * this.#options.pingInterval : ANSWER_TIMEOUT;
    if (Date.now() - this.#heard >= limit) this.#lost("no sign of life from the server");
  }

  #hurry = () => {
    if (globalThis.document?.visibilityState === "hidden") return;
    if (this.state === "waiting") this.#open();
    else if (this.#socket) this.#checkPulse();
  };

  /** @param {ClientState} state @param {object} [detail] */
  #setState(state, detail) {
    this.state = state;
    this._emit("status", { state, sid: this.sid, transport: this.transport, ...detail });
  }
}

function signedName(signed = "") {
  try {
    const bytes = atob(signed.split("--")[0].replace(/-/g, "+").replace(/_/g, "/"));
    return String(JSON.parse(new TextDecoder().decode(Uint8Array.from(bytes, (each) => each.charCodeAt(0)))));
  } catch {
    return signed;
  }
}

/**
 * Connect to a server, and reconnect until `close()`. The URL may have the path of the WebSocket.
 * @param {string | URL} [url] @param {ConnectOptions} [options]
 */
export function connect(url = "/", options = {}) {
  return new Client(url, options);
}
