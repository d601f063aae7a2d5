// Runs the client of examples/chat_page against frames from stdin: a JSON list of connections, each a list of frames.
// Prints a JSON object: the positions with which each connection asks for its history, and the reasons of the reported gaps.

import { readFileSync } from 'node:fs'

const source = readFileSync(new URL('../../examples/chat_page/cable.js', import.meta.url), 'utf8')
const { Channel } = await import(`data:text/javascript,${encodeURIComponent(source)}`)

const connections = JSON.parse(readFileSync(0, 'utf8'))
const asked = []
const gaps = []
let socket

globalThis.WebSocket = class {
  static OPEN = 1
  readyState = 1

  constructor() {
    socket = this
  }

  send(text) {
    const { history } = JSON.parse(text)
    if (history) asked.push(history.streams)
  }

  close() {}
}

const channel = new Channel('ws://localhost/cable', 'ChatChannel', { room: 'a' })
channel.addEventListener('gap', ({ detail }) => gaps.push(detail.reason))
for (const frames of connections) {
  channel.open()
  for (const frame of frames) socket.onmessage({ data: JSON.stringify(frame) })
}
process.stdout.write(JSON.stringify({ asked, gaps }), () => process.exit())
