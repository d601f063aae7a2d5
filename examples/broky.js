// Push and subscribe over TCP from Node, without a package: node broky.js HOST PORT KEY [TOKEN]
// Subscribes to KEY, pushes every line of its input to it, and prints the deliveries. docs/reference/broky.md explains the bytes.
"use strict";
const net = require("node:net");
const readline = require("node:readline");

const KINDS = ["", "Hello", "Welcome", "Run", "Pushed", "Refused", "Subscribe", "Subscribed", "Unsubscribe", "Gap", "Credit", "Ping", "Pong", "Error"];

// --- writing: one layout for every table -----------------------------------------------------------------------------

// `fields`, in the order of the schema: [size, number], or bytes for a vector. undefined: left out, so that its default holds.
function frame(kind, fields) {
  const vtableAt = 20, size = 4 + 2 * fields.length;
  const frameAt = Math.ceil((vtableAt + size) / 8) * 8, bodyAt = frameAt + 12;
  let at = bodyAt + 4;
  const places = fields.map(() => 0);
  for (const width of [8, 4, 2, 1]) // the widest first, so that all are aligned
    fields.forEach((field, index) => {
      if (field === undefined || (field instanceof Buffer ? 4 : field[0]) !== width) return;
      places[index] = at;
      at += width;
    });
  const bodySize = at - bodyAt;
  at = Math.ceil(at / 4) * 4;
  const tail = fields.map((field) => {
    const start = at;
    if (field instanceof Buffer) at += 4 + Math.ceil((field.length + 1) / 4) * 4; // with a zero behind it, which texts need
    return start;
  });
  const out = Buffer.alloc(Math.ceil(at / 8) * 8);
  out.writeUInt32LE(out.length - 4, 0);
  out.writeUInt32LE(frameAt - 4, 4);
  out.write("BRK1", 8, "latin1");
  [8, 12, 8, 4].forEach((value, index) => out.writeUInt16LE(value, 12 + 2 * index));
  [size, bodySize, ...places.map((place) => place && place - bodyAt)].forEach((value, index) => out.writeUInt16LE(value, vtableAt + 2 * index));
  out.writeInt32LE(frameAt - 12, frameAt);
  out.writeUInt32LE(8, frameAt + 4);
  out.writeUInt8(KINDS.indexOf(kind), frameAt + 8);
  out.writeInt32LE(bodyAt - vtableAt, bodyAt);
  fields.forEach((field, index) => {
    const place = places[index];
    if (field === undefined) return;
    if (field instanceof Buffer) {
      out.writeUInt32LE(tail[index] - place, place);
      out.writeUInt32LE(field.length, tail[index]);
      field.copy(out, tail[index] + 4);
    } else if (field[0] === 8) out.writeBigUInt64LE(BigInt(field[1]), place);
    else out.writeUIntLE(field[1], place, field[0]);
  });
  return out;
}

const hello = (token) => frame("Hello", [[2, 1], Buffer.from(token)]);
const subscribe = (ref, key) => frame("Subscribe", [[4, ref], Buffer.from(key)]);
const push = (ref, key, payload) =>
  frame("Run", [[4, ref], [4, 1], undefined, undefined, Buffer.from(key), undefined, undefined, undefined, undefined, undefined, Buffer.from(payload)]);

// --- reading: any layout; the server is trusted ----------------------------------------------------------------------

class Table {
  constructor(data, at) {
    this.data = data;
    this.at = at;
    this.vtable = at - data.readInt32LE(at);
  }
  place(index) {
    const entry = 4 + 2 * index;
    const within = entry < this.data.readUInt16LE(this.vtable) ? this.data.readUInt16LE(this.vtable + entry) : 0;
    return within && this.at + within;
  }
  number(index, size, otherwise = 0) {
    const at = this.place(index);
    return !at ? otherwise : size === 8 ? Number(this.data.readBigUInt64LE(at)) : this.data.readUIntLE(at, size);
  }
  bytes(index, width = 1) {
    const at = this.place(index);
    if (!at) return Buffer.alloc(0);
    const start = at + this.data.readUInt32LE(at);
    return this.data.subarray(start + 4, start + 4 + this.data.readUInt32LE(start) * width);
  }
}

function read(data) {
  const root = new Table(data, 4 + data.readUInt32LE(4));
  const at = root.place(1);
  return [KINDS[root.number(0, 1)], new Table(data, at + data.readUInt32LE(at))];
}

function* payloads(run) {
  const sizes = run.bytes(6, 4), payload = run.bytes(10);
  if (!sizes.length) yield payload;
  for (let index = 0, start = 0; index < sizes.length; index += 4) {
    const end = start + sizes.readUInt32LE(index);
    yield payload.subarray(start, end);
    start = end;
  }
}

// --- the conversation --------------------------------------------------------------------------------------------------

const [host, port, key, token = ""] = process.argv.slice(2);
const socket = net.connect(Number(port), host, () => socket.write(hello(token)));
let rest = Buffer.alloc(0);
let last = 0;

socket.on("data", (data) => {
  rest = Buffer.concat([rest, data]);
  while (rest.length >= 4 && rest.length >= 4 + rest.readUInt32LE(0)) {
    const size = 4 + rest.readUInt32LE(0);
    handle(...read(rest.subarray(0, size)));
    rest = rest.subarray(size);
  }
});
socket.on("end", () => process.exit(1));
socket.on("error", ({ message, code }) => {
  console.error(`no connection to ${host}:${port}: ${message || code}`); // with several addresses the error has a code only
  process.exit(1);
});

function handle(kind, body) {
  switch (kind) {
    case "Welcome":
      return socket.write(subscribe(1, key));
    case "Subscribed":
      console.log(`subscribed at ${body.number(2, 8)}`);
      return readline.createInterface({ input: process.stdin }).on("line", (line) => socket.write(push(++last, key, line)));
    case "Pushed":
      return console.log(`pushed ${body.bytes(0, 4).readUInt32LE(0)} at ${body.bytes(1, 8).readBigUInt64LE(0)}`);
    case "Run": {
      let offset = body.number(2, 8);
      for (const payload of payloads(body)) console.log(`${body.bytes(4)} ${offset++} ${payload}`);
      return;
    }
    case "Refused":
      return console.log(`refused: ${body.bytes(3)}`);
    case "Error":
      return console.log(`error: ${body.bytes(1)}`);
  }
}
