// What both client scripts share: commands come in as JSON lines on stdin, everything that happens goes out as JSON lines
// on stdout. The rule: nothing is judged here, the Python tests do that.

import { createInterface } from 'node:readline'
import WebSocket from 'ws'

export const say = event => process.stdout.write(JSON.stringify(event) + '\n')

// A real socket that also tells each frame as text, exactly as it was on the wire (a parsed number may have lost digits).
export function tellingSocket(client) {
  let opened = 0

  return class TellingSocket extends WebSocket {
    constructor(...args) {
      super(...args)
      this.number = ++opened
      this.on('open', () => this.tell('open', { protocol: this.protocol, url: this.url }))
      this.on('message', data => this.tell('frame', { text: data.toString() }))
      this.on('close', (code, text) => this.tell('socket_close', { code, text: text.toString() }))
      this.on('error', error => this.tell('socket_error', { text: error.message }))
    }

    send(data, ...rest) {
      this.tell('sent', { text: data })
      super.send(data, ...rest)
    }

    tell(event, fields) {
      say({ client, event, socket: this.number, ...fields })
    }
  }
}

// The ways a link is lost without a close frame: the peer's socket is gone (with FIN or with RST).
export const cuts = {
  fin: socket => socket.terminate(),
  reset: socket => socket._socket.resetAndDestroy()
}

// One command after another, as they come. A command that throws is told, so that the test fails at once and says why.
export async function obey(commands) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { command, ...args } = JSON.parse(line)
    try {
      await commands[command](args)
    } catch (error) {
      say({ client: args.client, event: 'failed', command, text: String(error?.stack ?? error) })
    }
  }
  process.exit(0) // stdin ended: the test is over, and timers of the clients must not keep this process alive
}
