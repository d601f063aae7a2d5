// Shared by the scripts: commands are JSON lines on stdin, events are JSON lines on stdout.
// The rule: the scripts check nothing, the Python tests do.

import { createInterface } from 'node:readline'
import WebSocket from 'ws'

export const report = event => process.stdout.write(JSON.stringify(event) + '\n')

// A real socket that also reports each frame as text, exactly as it was on the wire (a parsed number may have lost digits).
export function reportingSocket(client) {
  let opened = 0

  return class ReportingSocket extends WebSocket {
    constructor(...args) {
      super(...args)
      this.number = ++opened
      this.on('open', () => this.report('open', { protocol: this.protocol, url: this.url }))
      this.on('message', data => this.report('frame', { text: data.toString() }))
      this.on('close', (code, text) => this.report('socket_close', { code, text: text.toString() }))
      this.on('error', error => this.report('socket_error', { text: error.message }))
    }

    send(data, ...rest) {
      this.report('sent', { text: data })
      super.send(data, ...rest)
    }

    report(event, fields) {
      report({ client, event, socket: this.number, ...fields })
    }
  }
}

// The ways to lose a link without a close frame: the socket ends with FIN or with RST.
export const cuts = {
  fin: socket => socket.terminate(),
  reset: socket => socket._socket.resetAndDestroy()
}

// Runs the commands in order. An exception is reported, so that the test fails at once and shows it.
export async function execute(commands) {
  for await (const line of createInterface({ input: process.stdin })) {
    const { command, ...args } = JSON.parse(line)
    try {
      await commands[command](args)
    } catch (error) {
      report({ client: args.client, event: 'failed', command, text: String(error?.stack ?? error) })
    }
  }
  process.exit(0) // stdin ended: the tests are over, and timers of the clients must not keep this process alive
}
