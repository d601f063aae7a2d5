// A chat on @anycable/serverless-js, an RPC backend that the server calls over HTTP. It reports the calls.
// The rule: the library is used as its own documentation shows, behind Node's HTTP server.

import { createServer } from 'node:http'
import { register } from 'node:module'
import { execute, report } from './conversation.js'

register('./directory_imports.js', import.meta.url)
const { Application, Channel, Status, broadcaster, handler, identificator } = await import('@anycable/serverless-js')

const emit = (event, fields) => report({ client: 'backend:backend', event, ...fields })

let broadcast // set by the command broadcastTo

class ChatApplication extends Application {
  async connect(handle) {
    const name = new URL(handle.env.url).searchParams.get('name')

    if (name === 'Mallory') throw new Error('of all names')
    if (!name) return handle.reject()

    handle.identifiedBy({ name })
  }

  async disconnect({ identifiers }) {
    emit('gone', identifiers)
  }
}

class ChatChannel extends Channel {
  async subscribed(handle, { room }) {
    if (room === 'cellar') return handle.reject()

    handle.streamFrom(`chat:${room}`).streamFrom(`news:${room}`)
    handle.transmit({ hello: handle.identifiers.name })
  }

  async unsubscribed({ identifiers }, { room }) {
    emit('unsubscribed', { ...identifiers, room })
  }

  async speak(handle, { room }, { text }) {
    const said = (handle.state?.said ?? 0) + 1

    handle.state = { said }
    await broadcast(`chat:${room}`, { ...handle.identifiers, text, number: said })
  }

  async stopNews(handle, { room }) {
    handle.stopStreamFrom(`news:${room}`).transmit('no news from now on')
  }

  async stopAll(handle) {
    handle.stopAllStreams().transmit('nothing from now on')
  }

  async kick(handle) {
    handle.transmit('out with you')
    handle.delegate.close()
  }
}

const app = new ChatApplication()
app.registerChannel('chat', new ChatChannel())

async function answer(incoming) {
  const chunks = []
  for await (const chunk of incoming) chunks.push(chunk)

  const body = Buffer.concat(chunks).toString()
  const url = `http://${incoming.headers.host}${incoming.url}`
  const method = incoming.url.split('/').pop()
  const { authorization, 'x-anycable-meta-sid': sid } = incoming.headers

  emit('asked', { method, command: JSON.parse(body).command, sid, authorization })
  try {
    return await handler(new Request(url, { method: 'POST', headers: { 'x-anycable-meta-sid': sid }, body }), app)
  } catch (error) {
    emit('error', { method, sid, text: error.message })
    return { status: Status.ERROR, error_msg: 'Server error' }
  }
}

const server = createServer(async (incoming, outgoing) => {
  const response = await answer(incoming)

  outgoing.setHeader('Content-Type', 'application/json')
  outgoing.end(JSON.stringify(response))
})

server.listen(0, '127.0.0.1', () => emit('listening', { port: server.address().port }))

execute({
  broadcastTo({ url, key }) {
    broadcast = broadcaster(url, key)
  },

  async token({ secret, identifiers }) {
    emit('token', { token: await identificator(secret, '1h').generateToken(identifiers) })
  }
})
