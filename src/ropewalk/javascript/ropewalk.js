// The client of Ropewalk for browsers and Node: streams with positions, gaps, presence and channels over one WebSocket.
// The rule it keeps: a subscription yields each position once and in order, and a gap wherever messages are missing.
// How to use it: docs/how-to/javascript.md

/**
 * @typedef {{ epoch: string, offset: number }} Position
 *
 * @typedef {"live" | "start" | { last: number } | { since: Date | number } | Position | { positions: Record<string, Position> }} From
 *   `since`: a date, or milliseconds as of `Date.now()`. `positions`: by stream, for channels.
 *
 * @typedef {object} Gap Messages that will not be delivered.
 * @property {string} reason
 * @property {string} stream
 * @property {Position} [known] the position before the gap
 * @property {Position} [position] the position after the gap; absent if the server gave none
 * @property {number} [tip] the newest offset
 * @property {number} [missed] how many messages, if known
 *
 * @typedef {{ state: "connecting" | "online" | "waiting" | "offline" | "closed", sid: string, transport: "websocket" | "events",
 *   restored?: boolean, delay?: number, reason?: string }} ClientStatus
 * @typedef {{ state: "pending" | "replaying" | "live" | "paused" | "closed", restored?: boolean }} SubscriptionStatus
 * @typedef {{ id: string, info: any }} Member
 * @typedef {{ type: "join" | "leave", id: string, info?: any } | { type: "sync", members: Member[] }} PresenceEvent
 * @typedef {{ data: any, type?: string, from?: string | null }} Transient
 *
 * @typedef {object} ConnectOptions
 * @property {string | (() => string | Promise<string>)} [token] a function is called for each connection
 * @property {string} [tokenParam] the server's `--jwt_param` ("jid")
 * @property {string | false} [events] the path for server-sent events ("/events"), false: never use them
 * @property {number} [pingInterval] seconds between two pings of the server (3)
 * @property {number} [minDelay] the first reconnect delay in milliseconds (500), which doubles
 * @property {number} [maxDelay] its maximum (15,000)
 * @property {{ new (url: string, protocols: string[]): any }} [WebSocket] for Node 20
 * @property {typeof fetch} [fetch]
 *
 * @typedef {object} SubscribeOptions
 * @property {From} [from] where it begins ("live")
 * @property {Pick<Storage, "getItem" | "setItem">} [resume] keeps the position, for example over a page reload
 * @property {number} [queue] how many items wait for a slow `for await` loop before the subscription pauses (1000)
 */

/** @template T @typedef {{ data: T, stream: string, position: Position, replayed: boolean, type?: string, gap?: undefined }} Message */
/** @typedef {{ gap: Gap, data?: undefined, stream: string, position?: Position, replayed: boolean, type?: undefined }} GapItem */

const PROTOCOL = "actioncable-v1-ext-json";
const ANSWER_TIMEOUT = 10_000;
const MAX_PAUSE = 300_000; // the longest reconnect delay that a server may request
const MAX_CLOCK_SKEW = 5; // seconds, before the first ping
const EVENTS_TIME = 120_000; // after this time on server-sent events, the WebSocket is tried again
const SUBPROTOCOL_TOKEN = /^[\w!#$%&'*+.^`|~-]+$/;

/** `code`: what failed; see the table in the documentation. */
export class RopewalkError extends Error {
  /** @param {string} code @param {string} [message] */
  constructor(code, message = code) {
    super(message);
    this.name = "RopewalkError";
    this.code = code;
  }
}

/** @param {unknown} error */
const report = (error) => (globalThis.reportError ?? console.error)(error);

/** A rejection that nobody awaits is not an error of the program.
 * @template T @param {Promise<T>} promise */
function quiet(promise) {
  promise.catch(() => {});
  return promise;
}

/** @template {Record<string, any>} Types */
class Emitter {
  /** @type {Map<string, Set<(detail: any) => any>>} */
  #handlers = new Map();

  /**
   * Returns a function that removes the handler.
   * @template {keyof Types & string} K
   * @param {K} type @param {(detail: Types[K]) => any} handler @returns {() => void}
   */
  on(type, handler) {
    const handlers = this.#handlers.get(type) ?? new Set();
    const own = (/** @type {Types[K]} */ detail) => handler(detail);
    this.#handlers.set(type, handlers.add(own));
    return () => void handlers.delete(own);
  }

  /**
   * Returns whether there was a handler. Their errors are reported and stop nothing.
   * @internal @template {keyof Types & string} K @param {K} type @param {Types[K]} detail
   */
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

/** What one subscription has received, what to request, and what it yields. No I/O. */
export class Track {
  /** @type {Map<string, Position>} */
  positions = new Map();
  asked = false; // a history request is not answered yet
  wantsMore = false; // the last answer was bounded: request the rest
  #tips = /** @type {Map<string, Position>} */ (new Map()); // live delivery began here, in this answer
  #held = /** @type {any[]} */ ([]); // live messages above an answer that is not complete
  #gone = new Set(); // streams unknown to the server on this connection, which was reported

  /** @param {(item: Message<any> | GapItem) => void} emit */
  constructor(emit) {
    this.emit = emit;
  }

  /** The history request to send now. `since`: for streams without a position. @param {number} [since] */
  request(since) {
    this.asked = true;
    this.wantsMore = false;
    return { since, streams: Object.fromEntries([...this.positions].filter(([name, known]) => !same(this.#tips.get(name), known))) };
  }

  /** The connection is lost, and answers with it. The next replay contains the held messages. */
  lost() {
    this.asked = this.wantsMore = false;
    this.#held = [];
    this.#tips.clear();
    this.#gone.clear();
  }

  /** Live delivery begins at these tips: the positions of streams without messages. @param {Record<string, any>} streams */
  began(streams = {}) {
    for (const [name, { epoch, tip }] of Object.entries(streams)) {
      if (!this.positions.has(name)) this.positions.set(name, { epoch, offset: tip });
    }
  }

  /** @param {any} frame a message with a position */
  accept(frame) {
    if (this.#overtakes(frame)) this.#held.push(frame);
    else this.#advance(frame);
  }

  /** An answer is complete. @param {Record<string, any>} [streams] */
  confirmed(streams) {
    this.asked = false;
    if (!this.wantsMore) this.#release();
    this.began(streams);
  }

  /** @param {{ reason?: string, streams?: Record<string, any> }} rejection */
  rejected({ reason = "unknown", streams = {} }) {
    const gaps = Object.entries(streams);
    const unclaimed = reason === "unclaimed";
    if (reason === "dropped" || (unclaimed && !this.asked)) {
      // Not an answer: the server continues with its newest messages.
      for (const [name, gap] of gaps) this.#gap(name, gap.reason);
    } else if (!gaps.length) {
      this.#forgetPositions(reason);
    } else {
      for (const [name, gap] of gaps) if (unclaimed || gap.reason === "partial") this.#noteTip(name, gap);
      // If unclaimed, our request and this message crossed: the answer follows our position.
      if (!unclaimed) for (const [name, gap] of gaps) if (!this.#isKnown(name, gap)) this.#missing(name, gap);
    }
  }

  /** @param {string} name @param {any} gap */
  #noteTip(name, gap) {
    if (gap.epoch && this.#tips.get(name)?.epoch !== gap.epoch) this.#tips.set(name, { epoch: gap.epoch, offset: gap.tip });
  }

  /** Whether nothing is missing: it was received meanwhile, or the loss was reported and the new epoch is complete.
   * @param {string} name @param {any} gap */
  #isKnown(name, { reason, epoch, oldest }) {
    if (reason === "epoch_changed" && epoch && oldest === 1 && this.#gone.delete(name)) {
      this.positions.set(name, { epoch, offset: 0 });
      return true;
    }
    const known = this.positions.get(name);
    return reason === "trimmed" && !!known && known.epoch === epoch && known.offset >= oldest - 1;
  }

  /** @param {string} name @param {any} gap */
  #missing(name, { reason, epoch, oldest, tip }) {
    if (!epoch) {
      // It gives no position. Keep ours: the answer to the next request reports whether messages are missing.
      if (reason === "epoch_changed") this.#gone.add(name);
      return this.#gap(name, reason);
    }
    const noted = this.#tips.get(name);
    const end = noted && noted.epoch === epoch ? noted.offset : tip;
    const offset = reason === "ahead" ? end : Math.min(oldest - 1, end);
    if (reason === "partial") {
      // Nothing is missing: the next request returns the rest.
      this.wantsMore = true;
      this.positions.set(name, { epoch, offset });
    } else this.#gap(name, reason, { epoch, offset }, tip);
  }

  /** @param {string} stream @param {string} reason @param {Position} [position] @param {number} [tip] */
  #gap(stream, reason, position, tip) {
    const known = this.positions.get(stream);
    if (position) this.positions.set(stream, position);
    this.emit(gapItem(stream, reason, known, position, tip));
  }

  /** The server gave no positions: each stream starts again with its next message. @param {string} reason */
  #forgetPositions(reason) {
    const before = this.positions.size ? [...this.positions] : /** @type {[string, undefined][]} */ ([["", undefined]]);
    this.asked = false;
    this.positions.clear();
    for (const [name, known] of before) this.emit(gapItem(name, reason, known));
    this.#release();
  }

  /** @param {any} frame */
  #overtakes({ stream_id: name, epoch, offset }) {
    const tip = this.#tips.get(name);
    if (tip) return tip.epoch !== epoch || offset > tip.offset;
    const known = this.positions.get(name);
    if (!known || !this.asked) return false;
    // A message that does not follow may be one that the server held until it got our request.
    return (known.epoch !== "" && known.epoch !== epoch) || offset > known.offset + 1;
  }

  #release() {
    const held = this.#held;
    this.#held = [];
    this.#tips.clear();
    // Messages held after a rejection may precede messages held before it: sort them within each epoch.
    const runs = new Map();
    for (const { stream_id, epoch } of held) if (!runs.has(stream_id + "\n" + epoch)) runs.set(stream_id + "\n" + epoch, runs.size);
    const order = (/** @type {any} */ { stream_id, epoch }) => runs.get(stream_id + "\n" + epoch);
    held.sort((a, b) => order(a) - order(b) || a.offset - b.offset);
    for (const frame of held) this.#advance(frame);
  }

  /** @param {any} frame */
  #advance({ stream_id: stream, epoch, offset, message, type }) {
    const known = this.positions.get(stream);
    if (known && known.epoch === epoch && offset <= known.offset) return;
    // A missing offset is no gap: publications may exclude this session, and the server reports losses.
    const complete = this.#gone.delete(stream) && offset === 1;
    if (known && known.epoch && known.epoch !== epoch && !complete) {
      this.#gap(stream, "epoch_changed", { epoch, offset: offset - 1 });
    }
    const position = { epoch, offset };
    this.positions.set(stream, position);
    this.emit({ data: message, stream, position, replayed: this.asked, type });
  }
}

/** @param {Position | undefined} a @param {Position | undefined} b */
function same(a, b) {
  return a?.epoch === b?.epoch && a?.offset === b?.offset;
}

/** @param {string} stream @param {string} reason @param {Position} [known] @param {Position} [position] @param {number} [tip]
 * @returns {GapItem} */
function gapItem(stream, reason, known, position, tip) {
  const comparable = known && position && (known.epoch === position.epoch || (!known.epoch && !known.offset));
  const missed = comparable ? Math.max(0, position.offset - known.offset) : undefined;
  return { gap: { reason, stream, known, position, tip, missed }, stream, position, replayed: false };
}

/** The members of a stream, kept up to date while the subscription is live. */
class Presence {
  /** @type {Map<string, any>} */
  #members = new Map();
  /** @type {Map<string, any> | undefined} */
  #pages; // of the query that is not complete
  /** @type {any[]} */
  #events = []; // since that query
  /** @type {{ id: string, info?: any } | undefined} */
  #member;
  #subscription;

  /** @param {Subscription<any>} subscription */
  constructor(subscription) {
    this.#subscription = subscription;
  }

  /** @returns {Member[]} */
  get members() {
    return [...this.#members].map(([id, info]) => ({ id, info }));
  }

  /** Become a member, also after reconnects, until `leave`. @param {string} id @param {any} [info] */
  join(id, info) {
    this.#member = { id, info };
    return this.#command("join", { presence: this.#member });
  }

  leave() {
    const presence = this.#member;
    this.#member = undefined;
    return this.#command("leave", { presence });
  }

  /** @param {string} command @param {object} fields @returns {Promise<void>} */
  #command(command, fields) {
    return quiet((async () => void this.#subscription._sendWhenLive(command, fields))());
  }

  /** The subscription is live. @internal */
  _live() {
    if (this.#member) this.#subscription._sendWhenLive("join", { presence: this.#member });
    this.#events = [];
    this.#pages = new Map();
    this.#subscription._sendWhenLive("presence", {});
  }

  /** @internal @param {any} message */
  _receive({ type, id, info, records = [], next }) {
    if (type === "error") throw new RopewalkError("presence_unavailable", "the server has no presence for this stream");
    if (type !== "info") {
      if (this.#pages) this.#events.push({ type, id, info });
      this.#apply({ type, id, info });
      return this.#subscription._emit("presence", { type, id, info });
    }
    if (!this.#pages) return;
    for (const record of records) this.#pages.set(record.id, record.info);
    if (next) return this.#subscription._sendWhenLive("presence", { data: { after: next } });
    this.#members = this.#pages;
    this.#pages = undefined;
    for (const event of this.#events) this.#apply(event); // the pages may be older than these
    this.#subscription._emit("presence", { type: "sync", members: this.members });
  }

  /** @param {any} event */
  #apply({ type, id, info }) {
    if (type === "join") this.#members.set(id, info);
    else this.#members.delete(id);
  }
}

/**
 * One subscription, from `client.subscribe` or `client.channel`.
 * @template [T=any]
 * @extends {Emitter<{ message: Message<T>, gap: Gap, status: SubscriptionStatus, presence: PresenceEvent, transient: Transient,
 *   error: RopewalkError }>}
 */
class Subscription extends Emitter {
  /** @type {SubscriptionStatus["state"]} */
  state = "pending";
  #client;
  #options;
  #track = new Track((item) => this.#deliver(item));
  #started = Date.now();
  #accepted = false; // the server has confirmed it once
  /** @type {number | undefined} */
  #since;
  /** @type {Presence | undefined} */
  #presence;
  /** @type {(Message<T> | GapItem)[]} */
  #queue = [];
  /** @type {"handlers" | "iterator" | undefined} */
  #reader;
  /** @type {Message<T> | GapItem | undefined} */
  #yielded; // the item that the loop works on
  /** @type {(() => void)[]} */
  #wakes = [];
  #seen = /** @type {Map<string, Position>} */ (new Map()); // what the program has handled
  /** @type {RopewalkError | undefined} */
  #error;
  #calls = /** @type {Map<number, { sent: boolean, send: () => void, settle: (answer: any) => void }>} */ (new Map());
  #lastCall = 0;

  /** @internal @param {Client} client @param {string} identifier @param {string} name @param {SubscribeOptions} options */
  constructor(client, identifier, name, options) {
    super();
    this.#client = client;
    this.#options = options;
    this.identifier = identifier;
    this.name = name;
    const stored = options.resume?.getItem(this.#key);
    const start = stored ? { positions: JSON.parse(stored) } : (options.from ?? "live");
    if (start === "start") this.#since = 1;
    else if (typeof start !== "object") {
      if (start !== "live") throw new TypeError(`from: ${start}`);
    } else if ("since" in start) this.#since = Math.max(1, +start.since / 1000);
    else if ("offset" in start) this.#track.positions.set(name, { epoch: start.epoch, offset: start.offset });
    else if ("positions" in start) for (const [stream, known] of Object.entries(start.positions)) this.#track.positions.set(stream, known);
    for (const [stream, known] of this.#track.positions) this.#seen.set(stream, known);
  }

  /** Who is present. The members are queried from the first use on. */
  get presence() {
    if (!this.#presence) {
      this.#presence = new Presence(this);
      if (this.#isLive && this.#client.transport === "websocket") this.#presence._live();
    }
    return this.#presence;
  }

  /** The position of the last message that was handled, by stream. @returns {Record<string, Position>} */
  get positions() {
    return Object.fromEntries(this.#seen);
  }

  /** The same of the stream with the last message. @returns {Position | undefined} */
  get position() {
    return [...this.#seen.values()].at(-1);
  }

  get #isLive() {
    return this.state === "live" || this.state === "replaying";
  }

  get #key() {
    return `ropewalk ${this.#client.url} ${this.identifier}`;
  }

  /**
   * Returns a function that removes the handler.
   * @override
   * @template {"message" | "gap" | "status" | "presence" | "transient" | "error"} K
   * @param {K} type
   * @param {(detail: { message: Message<T>, gap: Gap, status: SubscriptionStatus, presence: PresenceEvent, transient: Transient,
   *   error: RopewalkError }[K]) => any} handler
   */
  on(type, handler) {
    const off = super.on(type, handler);
    if (type === "presence") this.presence;
    if (type === "message" && !this.#reader) {
      this.#reader = "handlers";
      queueMicrotask(() => this.#flush()); // other handlers of this moment are in place then
    }
    return off;
  }

  /** Send a message to the other subscribers, which is not stored. Rejects while there is no connection. @param {any} data */
  whisper(data) {
    return quiet(
      (async () => {
        if (!this._sendWhenLive("whisper", { data })) throw new RopewalkError("offline", "not connected");
      })(),
    );
  }

  /**
   * Call an action of the channel. Resolves with its result; with `reply: false` when it is sent, for applications that do not
   * reply. Waits for the connection.
   * @param {string} action @param {Record<string, any>} [data] @param {{ reply?: boolean, timeout?: number }} [options]
   * @returns {Promise<any>}
   */
  perform(action, data, { reply = true, timeout = ANSWER_TIMEOUT } = {}) {
    return quiet(
      new Promise((resolve, reject) => {
        const id = ++this.#lastCall;
        const settle = (/** @type {any} */ { result, error }) => {
          clearTimeout(timer);
          this.#calls.delete(id);
          if (error) reject(Object.assign(new RopewalkError(error.code, error.message), error));
          else resolve(result);
        };
        const timer = setTimeout(() => settle({ error: { code: "timeout", message: `no reply to ${action}` } }), timeout);
        const call = {
          sent: false,
          settle,
          send: () => {
            const text = JSON.stringify({ ...data, action, ...(reply && { $reply_to: id }) });
            try {
              call.sent = this._sendWhenLive("message", { data: text });
              if (call.sent && !reply) settle({});
            } catch (error) {
              settle({ error });
            }
          },
        };
        this.#calls.set(id, call);
        if (this.state === "closed") settle({ error: this.#error ?? new RopewalkError("closed", "the subscription is closed") });
        else call.send();
      }),
    );
  }

  /** Unsubscribe. A loop ends after the messages that have arrived. */
  close() {
    this._end();
  }

  // --- iteration ---

  [Symbol.asyncIterator]() {
    return this;
  }

  /** @returns {Promise<IteratorResult<Message<T> | GapItem, undefined>>} */
  async next() {
    if (this.#reader !== "iterator") {
      this.#reader = "iterator";
      for (const item of this.#queue) this.#announce(item);
    }
    this.#handled(this.#yielded);
    this.#yielded = undefined;
    while (!this.#queue.length) {
      if (this.#error) throw this.#error;
      if (this.state === "closed") return { done: true, value: undefined };
      await new Promise((resolve) => this.#wakes.push(() => resolve(undefined)));
    }
    this.#yielded = this.#queue.shift();
    if (this.state === "paused" && this.#queue.length <= this.#limit / 2) this._subscribe();
    return { done: false, value: /** @type {Message<T> | GapItem} */ (this.#yielded) };
  }

  /** A loop that ends early leaves the subscription open: the next loop continues behind its last item.
   * @returns {Promise<IteratorResult<Message<T> | GapItem, undefined>>} */
  async return() {
    this.#handled(this.#yielded);
    this.#yielded = undefined;
    return { done: true, value: undefined };
  }

  get #limit() {
    return this.#options.queue ?? 1000;
  }

  /** @param {Message<T> | GapItem} item */
  #deliver(item) {
    if (this.#reader === "handlers" && !this.#queue.length) return this.#hand(item);
    this.#queue.push(item);
    if (this.#reader === "iterator") this.#announce(item);
    this.#wake();
    if (this.#queue.length < this.#limit) return;
    if (this.#reader) this.#pause();
    else this.#dropOldest();
  }

  /** @param {Message<T> | GapItem} item */
  #announce(item) {
    if (item.gap) this._emit("gap", item.gap);
    else this._emit("message", item);
  }

  /** @param {Message<T> | GapItem} item */
  #hand(item) {
    if (item.position) this.#seen.set(item.stream, item.position);
    this.#announce(item);
    this.#save();
  }

  #flush() {
    for (const item of this.#queue.splice(0)) this.#hand(item);
  }

  #wake() {
    for (const wake of this.#wakes.splice(0)) wake();
  }

  /** @param {Message<T> | GapItem | undefined} item */
  #handled(item) {
    if (!item?.position) return;
    this.#seen.delete(item.stream); // the last one is the newest
    this.#seen.set(item.stream, item.position);
    this.#save();
  }

  #save() {
    try {
      this.#options.resume?.setItem(this.#key, JSON.stringify(this.positions));
    } catch (error) {
      this.#options = { ...this.#options, resume: undefined }; // storage is full or forbidden
      report(error);
    }
  }

  /** The loop is slower than the stream: unsubscribe, and request the rest by position when there is room. */
  #pause() {
    if (!this.#isLive) return;
    this._send("unsubscribe");
    this.#setState("paused");
  }

  /** Nothing has read so far. A reader that comes later gets a gap for what was dropped. */
  #dropOldest() {
    const [first, second] = this.#queue;
    const gap = first.gap?.reason === "unread" ? first.gap : undefined;
    const dropped = gap ? second : first;
    const known = gap ? gap.known : this.#seen.get(dropped.stream);
    this.#queue.splice(0, gap ? 2 : 1, gapItem(dropped.stream, "unread", known, dropped.position));
  }

  // --- for the client ---

  /** @internal @param {string} command @param {object} [fields] */
  _send(command, fields) {
    return this.#client._send(command, this.identifier, fields);
  }

  /** Returns whether it was sent. @internal @param {string} command @param {object} fields */
  _sendWhenLive(command, fields) {
    this.#client._requireWritable();
    return this.#isLive && this._send(command, fields);
  }

  /** The connection is open. @internal @param {boolean} restored whether the session still has this subscription */
  _connected(restored) {
    this.#track.lost();
    if (restored && this.#accepted && this.state !== "paused") {
      this._send("history", { history: this.#request() });
      return this.#confirmed(true);
    }
    if (restored) this._send("unsubscribe");
    if (this.state !== "paused") this._subscribe();
  }

  /** @internal */
  _disconnected() {
    if (this.state !== "paused") this.#setState("pending");
    for (const call of [...this.#calls.values()]) {
      if (call.sent) call.settle({ error: { code: "connection_lost", message: "the connection was lost before the reply" } });
    }
  }

  /** @internal */
  _subscribe() {
    this.#track.lost();
    this.#setState("pending");
    this._send("subscribe", this._request());
  }

  /** The fields of the subscribe command. @internal */
  _request() {
    const wanted = this.#accepted || this.#since || this.#track.positions.size;
    return wanted ? { history: this.#request() } : {};
  }

  #request() {
    // A stream of a channel without messages so far has no position: request everything since the subscription began.
    return this.#track.request(this.#since ?? (this.#accepted ? this.#client._serverTime(this.#started) : undefined));
  }

  /** @internal @param {any} frame */
  _receive(frame) {
    if (frame.type === "confirm_subscription") return this.#began(frame.streams);
    if (frame.type === "reject_subscription") {
      const why = frame.reason ? `: ${frame.reason}` : "";
      return this.#client._fail(this, new RopewalkError("rejected", `subscription to ${this.name} rejected${why}`));
    }
    // Ahead of the confirmation: of an earlier subscription with this identifier, or part of the history.
    if (!this.#isLive) return;
    if (frame.offset) return this.#track.accept(frame);
    switch (frame.type) {
      case "confirm_history":
        return this.#caughtUp(frame.streams);
      case "reject_history":
        return this.#track.rejected(frame);
      case "presence":
        try {
          return this.#presence?._receive(frame.message);
        } catch (error) {
          return void this._emit("error", /** @type {RopewalkError} */ (error));
        }
      case "reply":
        return this.#calls.get(frame.message.$reply_to)?.settle(frame.message);
      case "whisper":
        return this._emit("transient", { data: frame.message.$whisper, from: frame.message.from, type: "whisper" });
      default:
        if ("message" in frame) this._emit("transient", { data: frame.message, type: frame.type });
    }
  }

  /** @param {Record<string, any>} [streams] */
  #began(streams) {
    const { from } = this.#options;
    const last = !this.#accepted && !this.#track.asked && typeof from === "object" && "last" in from ? from.last : 0;
    if (last) {
      for (const [name, { epoch, tip }] of Object.entries(streams ?? {})) {
        this.#track.positions.set(name, { epoch, offset: Math.max(0, tip - last) });
      }
      this.#accepted = true;
      this._send("history", { history: this.#request() });
    } else this.#startAt(streams);
    this.#confirmed(false);
  }

  /** @param {Record<string, any>} [streams] */
  #startAt(streams) {
    const before = new Set(this.#track.positions.keys());
    this.#track.began(streams);
    for (const [name, position] of this.#track.positions) if (!before.has(name)) this.#seen.set(name, position);
    this.#save();
  }

  /** @param {boolean} restored */
  #confirmed(restored) {
    this.#accepted = true;
    this.#setState(this.#track.asked ? "replaying" : "live", { restored });
    if (this.#client.transport === "events") return;
    this.#presence?._live();
    for (const call of this.#calls.values()) if (!call.sent) call.send();
  }

  /** @param {Record<string, any>} [streams] */
  #caughtUp(streams) {
    this.#track.confirmed();
    this.#startAt(streams);
    if (!this.#isLive) return; // the messages that were held have filled the queue
    if (this.#track.wantsMore) this._send("history", { history: this.#request() });
    else this.#setState("live");
  }

  /** @param {SubscriptionStatus["state"]} state @param {object} [detail] */
  #setState(state, detail) {
    const changed = this.state !== state;
    this.state = state;
    if (changed || detail) this._emit("status", { state, ...detail });
  }

  /** Returns whether the program was told. @internal @param {RopewalkError} [error] */
  _end(error) {
    if (this.state === "closed") return true;
    this.#client._remove(this, this.#isLive);
    this.#error = error;
    this.#setState("closed");
    const told = !!error && this._emit("error", error);
    for (const call of [...this.#calls.values()]) {
      call.settle({ error: error ?? new RopewalkError("closed", "the subscription is closed") });
    }
    this.#wake();
    return told || this.#reader === "iterator";
  }
}

/** Server-sent events in the place of a WebSocket: the subscriptions are in the request, and nothing can be sent later. */
class EventStream {
  readyState = 1;
  /** @type {((event: { data: string }) => void) | null} */
  onmessage = null;
  /** @type {((event: { code: number, reason: string }) => void) | null} */
  onclose = null;
  #abort = new AbortController();

  /** @param {typeof fetch} send @param {URL} url @param {Record<string, string>} headers @param {string} body */
  constructor(send, url, headers, body) {
    this.#run(send(url, { method: "POST", headers, body, signal: this.#abort.signal })).then(
      (end) => this.onclose?.(end),
      (error) => this.onclose?.({ code: 0, reason: String(error?.message ?? error) }),
    );
  }

  close() {
    this.#abort.abort();
  }

  /** @param {Promise<Response>} sent */
  async #run(sent) {
    const answer = await sent;
    if (!answer.ok || !answer.body) return { code: answer.status, reason: (await answer.json()).error };
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let data = "";
    for (let rest = ""; ; ) {
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
class Client extends Emitter {
  /** @type {ClientStatus["state"]} */
  state = "connecting";
  /** The id of the session, for `exclude_socket`. */
  sid = "";
  /** @type {"websocket" | "events"} */
  transport = "websocket";
  #options;
  /** @type {Map<string, Subscription<any>>} */
  #subscriptions = new Map();
  #unanswered = new Set(); // identifiers that were unsubscribed before their confirmation
  #sent = new Set(); // subscribe commands without an answer
  /** @type {any} */
  #socket;
  #attempt = 0; // the number of the connection
  #failures = 0; // since the last ping
  #unopened = 0; // WebSockets in a row that did not open
  #webSocketWorks = false;
  #mayRefresh = true;
  #reopening = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #timer;
  /** @type {ReturnType<typeof setInterval> | undefined} */
  #pulse;
  #heard = 0;
  /** @type {number | undefined} */
  #pause;
  /** @type {number | undefined} */
  #skew;

  /** @internal @param {string | URL} url @param {ConnectOptions} options */
  constructor(url, options) {
    super();
    this.#options = options;
    const place = new URL(url, globalThis.location?.href);
    place.protocol = place.protocol.replace("http", "ws");
    if (place.pathname === "/") place.pathname = "/cable";
    this.url = place.href;
    if (!options.WebSocket && !globalThis.WebSocket) throw new TypeError("no WebSocket here: pass one in the options");
    globalThis.addEventListener?.("online", this.#hurry);
    globalThis.document?.addEventListener("visibilitychange", this.#hurry);
    this.#open();
  }

  /**
   * Subscribe to a public stream by its name, or to a signed one by `{ signed: "…" }`. Each subscription has its own position.
   * @template [T=any] @param {string | { signed: string }} stream @param {SubscribeOptions} [options]
   * @returns {Subscription<T>}
   */
  subscribe(stream, options = {}) {
    if (typeof stream === "string") return this.#add({ channel: "$pubsub", stream_name: stream }, stream, options);
    return this.#add({ channel: "$pubsub", signed_stream_name: stream.signed }, signedName(stream.signed), options);
  }

  /**
   * Subscribe to a channel of the application.
   * @template [T=any] @param {string} name @param {Record<string, any>} [params] @param {SubscribeOptions} [options]
   * @returns {Subscription<T>}
   */
  channel(name, params = {}, options = {}) {
    return this.#add({ channel: name, ...params }, name, options);
  }

  /** Close the connection until `reconnect`. The session, subscriptions and positions are kept. */
  disconnect() {
    if (this.state === "closed") return;
    this.#drop();
    this.#setState("offline");
  }

  /** Connect now, if there is no connection. */
  reconnect() {
    if (this.state === "waiting" || this.state === "offline") this.#open();
  }

  /** Close the connection and all subscriptions. */
  close() {
    this.#end();
  }

  /** @param {object} fields @param {string} name @param {SubscribeOptions} options */
  #add(fields, name, options) {
    if (this.state === "closed") throw new RopewalkError("closed", "the client is closed");
    // Subscriptions to the same stream differ in the spaces behind their identifier.
    let identifier = JSON.stringify(fields);
    while (this.#subscriptions.has(identifier) || this.#unanswered.has(identifier)) identifier += " ";
    const subscription = new Subscription(this, identifier, name, options);
    this.#subscriptions.set(identifier, subscription);
    if (this.state === "online") subscription._subscribe();
    return subscription;
  }

  // --- for subscriptions ---

  /** Returns whether it was sent. @internal @param {string} command @param {string} identifier @param {object} [fields] */
  _send(command, identifier, fields) {
    if (this.state !== "online" || this.#socket?.readyState !== 1) return false;
    if (this.transport === "events") {
      this.#reopen();
      return true;
    }
    if (command === "subscribe") this.#sent.add(identifier);
    this.#socket.send(JSON.stringify({ command, identifier, ...fields }));
    return true;
  }

  /** @internal */
  _requireWritable() {
    if (this.transport === "events") {
      throw new RopewalkError("read_only", "the WebSocket is blocked: over server-sent events, messages can only be received");
    }
  }

  /** The server's UNIX time at a moment of this machine. @internal @param {number} moment */
  _serverTime(moment) {
    return moment / 1000 + (this.#skew ?? -MAX_CLOCK_SKEW);
  }

  /** @internal @param {Subscription<any>} subscription @param {boolean} live */
  _remove({ identifier }, live) {
    this.#subscriptions.delete(identifier);
    if (this.#sent.has(identifier)) this.#unanswered.add(identifier);
    if (live || this.#sent.has(identifier)) this._send("unsubscribe", identifier);
  }

  /** @internal @param {Subscription<any>} subscription @param {RopewalkError} error */
  _fail(subscription, error) {
    const told = subscription._end(error);
    if (!this._emit("error", error) && !told) report(error);
  }

  // --- the connection ---

  async #open() {
    this.#drop();
    const attempt = this.#attempt;
    const { token, WebSocket = globalThis.WebSocket, events = "/events" } = this.#options;
    const overEvents = events && !this.#webSocketWorks && this.#unopened > 1 && this.#subscriptions.size > 0;
    this.transport = overEvents ? "events" : "websocket";
    this.#heard = Date.now();
    this.#pulse = setInterval(() => this.#checkPulse(), this.#pingInterval * 1000);
    this.#setState("connecting");
    try {
      const value = typeof token === "function" ? await token() : token;
      if (attempt !== this.#attempt) return;
      const socket = overEvents ? this.#eventStream(events, value) : this.#webSocket(WebSocket, value);
      socket.onmessage = (/** @type {{ data: string }} */ { data }) => this.#receive(JSON.parse(data));
      socket.onclose = (/** @type {{ code: number, reason: string }} */ event) => this.#closed(event);
      socket.onerror = () => {}; // a close event follows
      this.#socket = socket;
    } catch (error) {
      if (attempt === this.#attempt) this.#lost(String(/** @type {any} */ (error)?.message ?? error));
    }
  }

  get #pingInterval() {
    return this.#options.pingInterval ?? 3;
  }

  /** @param {any} WebSocket @param {string} [token] */
  #webSocket(WebSocket, token) {
    const url = new URL(this.url);
    const protocols = [PROTOCOL];
    const params = { pi: this.#pingInterval, reconnect_in: 1, positions: 1, ...(this.sid && { sid: this.sid }) };
    for (const [name, value] of Object.entries(params)) url.searchParams.set(name, String(value));
    // Not in the URL, which proxies log, if it can be elsewhere.
    if (token && SUBPROTOCOL_TOKEN.test(token)) protocols.push(`anycable-token.${token}`);
    else if (token) url.searchParams.set(this.#options.tokenParam ?? "jid", token);
    return new WebSocket(url.href, protocols);
  }

  /** @param {string} path @param {string} [token] */
  #eventStream(path, token) {
    const url = new URL(path, this.url);
    url.protocol = url.protocol.replace("ws", "http");
    url.searchParams.set("positions", "1");
    const commands = [...this.#subscriptions.values()].map((each) => {
      each._connected(false);
      return JSON.stringify({ command: "subscribe", identifier: each.identifier, ...each._request() });
    });
    this.#timer = setTimeout(() => this.#open(), EVENTS_TIME);
    const headers = /** @type {Record<string, string>} */ (token ? { [`x-${this.#options.tokenParam ?? "jid"}`]: token } : {});
    return new EventStream(this.#options.fetch ?? fetch.bind(globalThis), url, headers, commands.join("\n"));
  }

  /** Over server-sent events, commands are in the request: make a new one. */
  #reopen() {
    if (this.#reopening) return;
    this.#reopening = true;
    queueMicrotask(() => {
      this.#reopening = false;
      if (this.transport === "events" && this.state === "online") this.#open();
    });
  }

  /** @param {any} frame */
  #receive(frame) {
    this.#heard = Date.now();
    if (this.transport === "websocket") {
      this.#webSocketWorks = true;
      this.#unopened = 0;
    }
    switch (frame.offset ? "" : frame.type) {
      case "ping":
        this.#failures = 0;
        this.#skew = frame.message - Date.now() / 1000;
        if (this.transport === "websocket") this.#socket.send('{"command":"pong"}');
        return;
      case "welcome":
        return this.#welcome(frame);
      case "disconnect":
        this.#pause = frame.reconnect_in;
        return frame.reconnect ? this.#lost(frame.reason) : this.#refused(frame.reason);
      case "confirm_subscription":
      case "reject_subscription":
        this.#sent.delete(frame.identifier);
        if (this.#unanswered.delete(frame.identifier)) return;
    }
    this.#subscriptions.get(frame.identifier)?._receive(frame);
  }

  /** @param {any} frame */
  #welcome({ sid, restored = false, restored_ids: ids = [] }) {
    this.#mayRefresh = true;
    this.sid = sid;
    this.#setState("online", { restored });
    if (this.transport === "events") return; // the request contains the subscriptions
    for (const id of ids) if (!this.#subscriptions.has(id)) this._send("unsubscribe", id);
    for (const [id, subscription] of this.#subscriptions) subscription._connected(ids.includes(id));
  }

  /** @param {{ code: number, reason: string }} event */
  #closed({ code, reason }) {
    if (this.transport === "events") {
      if (code === 401) return this.#refused("unauthorized");
      if (code === 404 || code === 405) this.#options = { ...this.#options, events: false };
      const rejected = code === 400 && [...this.#subscriptions.values()].find((each) => reason.endsWith(`: ${each.identifier}`));
      if (rejected) {
        this._fail(rejected, new RopewalkError("rejected", reason));
        return this.#open();
      }
    }
    this.#lost(reason || `closed with code ${code}`);
  }

  /** @param {string} reason */
  #lost(reason) {
    if (this.transport === "events") this.#unopened = 1; // try the WebSocket again
    else if (!this.#webSocketWorks) this.#unopened++;
    this.#drop();
    const { minDelay = 500, maxDelay = 15_000 } = this.#options;
    const longest = Math.min(maxDelay, minDelay * 2 ** this.#failures++);
    // Jitter, so that clients do not reconnect to a restarted server all at once. A delay from the server includes it.
    const delay = Math.min(this.#pause ?? longest * (0.5 + Math.random() / 2), MAX_PAUSE);
    this.#pause = undefined;
    this.#timer = setTimeout(() => this.#open(), delay);
    this.#setState("waiting", { delay, reason });
  }

  /** @param {string} reason */
  #refused(reason) {
    const refreshable = ["unauthorized", "token_expired"].includes(reason) && typeof this.#options.token === "function";
    if (!refreshable || !this.#mayRefresh) return this.#end(new RopewalkError(reason, `the server refuses the connection: ${reason}`));
    this.#mayRefresh = false;
    this.sid = ""; // the session ends with its token
    this.#open();
  }

  /** @param {RopewalkError} [error] */
  #end(error) {
    if (this.state === "closed") return;
    let told = false;
    for (const subscription of [...this.#subscriptions.values()]) told = subscription._end(error) || told;
    this.#drop();
    globalThis.removeEventListener?.("online", this.#hurry);
    globalThis.document?.removeEventListener("visibilitychange", this.#hurry);
    this.#setState("closed", error && { reason: error.code });
    if (error && !this._emit("error", error) && !told) report(error);
  }

  /** Let go of the connection and its timers. */
  #drop() {
    this.#attempt++;
    clearTimeout(this.#timer);
    clearInterval(this.#pulse);
    const socket = this.#socket;
    this.#socket = undefined;
    this.#sent.clear();
    this.#unanswered.clear();
    if (!socket) return;
    socket.onmessage = socket.onclose = null;
    socket.close();
    for (const subscription of this.#subscriptions.values()) subscription._disconnected();
  }

  #checkPulse() {
    const limit = this.state === "online" ? 3 * this.#pingInterval * 1000 : ANSWER_TIMEOUT;
    if (Date.now() - this.#heard >= limit) this.#lost("no sign of life from the server");
  }

  /** The browser is online again, or the page is visible. */
  #hurry = () => {
    if (globalThis.document?.visibilityState === "hidden") return;
    if (this.state === "waiting") this.#open();
    else if (this.#socket) this.#checkPulse();
  };

  /** @param {ClientStatus["state"]} state @param {object} [detail] */
  #setState(state, detail) {
    this.state = state;
    this._emit("status", { state, sid: this.sid, transport: this.transport, ...detail });
  }
}

/** The name in a signed name. @param {string} signed */
function signedName(signed) {
  try {
    const bytes = Uint8Array.from(atob(signed.split("--")[0].replace(/-/g, "+").replace(/_/g, "/")), (each) => each.charCodeAt(0));
    return String(JSON.parse(new TextDecoder().decode(bytes)));
  } catch {
    return signed;
  }
}

/**
 * A client of the server at `url`: `https://host`, or with the path of its WebSocket. It connects at once, and reconnects until
 * `close()`.
 * @param {string | URL} [url] @param {ConnectOptions} [options]
 */
export function connect(url = "/", options = {}) {
  return new Client(url, options);
}
