// Drives the client that the server serves as /ropewalk.js: any number of named clients and subscriptions in one process.

import { connect } from '@ropewalk/client'
import WebSocket from 'ws'
import { cuts, execute, report } from './conversation.js'

const clients = new Map()
const subscriptions = new Map()
const storages = new Map()

const clientOf = ({ client }) => clients.get(client)
const of = ({ client, channel }) => subscriptions.get(`${client}/${channel}`)

// The sockets of a client, which a test can cut, or block as a proxy does.
function sockets(state) {
  return class extends WebSocket {
    constructor(url, protocols) {
      super(state.blocked ? 'ws://127.0.0.1:1/' : url, protocols)
      this.on('error', () => {})
      state.socket = this
    }
  }
}

function storage(name) {
  if (!storages.has(name)) storages.set(name, new Map())
  const values = storages.get(name)

  return { getItem: key => values.get(key) ?? null, setItem: (key, value) => values.set(key, value) }
}

const plain = error => ({ code: error.code, text: error.message })

function watch({ client, channel, only, throws }, subscription) {
  const emit = (event, fields) => report({ client, channel, event, ...fields })
  const handlers = {
    message: item => {
      emit('message', item)
      if (throws) throw new Error('a handler that fails')
    },
    gap: gap => emit('gap', { gap }),
    status: status => emit('subscription', status),
    presence: change => emit('presence', { change, members: subscription.presence.members }),
    transient: transient => emit('transient', transient),
    error: error => emit('error', plain(error))
  }

  for (const name of only ?? ['message', 'gap', 'status', 'transient', 'error']) subscription.on(name, handlers[name])
}

async function loop({ client, channel, items = Infinity }, subscription) {
  const emit = (event, fields) => report({ client, channel, event, ...fields })

  try {
    for await (const item of subscription) {
      emit('item', item)
      if (--items === 0) return emit('loop_left')
    }
    emit('loop_done')
  } catch (error) {
    emit('loop_failed', plain(error))
  }
}

function perform({ client, channel, action, data, options }) {
  of({ client, channel })
    .perform(action, data, options)
    .then(
      result => report({ client, channel, event: 'replied', result }),
      error => report({ client, channel, event: 'perform_failed', ...plain(error) })
    )
}

function subscribe(args) {
  const { client, channel, stream, kind, params, from, resume, queue, iterate, then } = args
  const options = { from, queue, ...(resume && { resume: storage(resume) }) }
  const made = kind ? clientOf(args).channel(kind, params, options) : clientOf(args).subscribe(stream, options)

  subscriptions.set(`${client}/${channel}`, made)
  watch(iterate || then ? { ...args, only: ['status', 'gap', 'transient'] } : args, made)
  if (iterate) loop({ ...args, items: iterate === true ? Infinity : iterate }, made)
}

execute({
  // `first`: a subscription of the same moment, before the server can answer.
  open({ client, url, tokens, first, blocked = false, options = {} }) {
    const state = { blocked, asked: 0 }
    const token = tokens && (() => tokens[Math.min(state.asked++, tokens.length - 1)])
    const made = connect(url, { token, minDelay: 20, maxDelay: 200, WebSocket: sockets(state), ...options })

    made.state_of_test = state
    clients.set(client, made)
    made.on('status', status => report({ client, event: 'status', ...status, asked: state.asked }))
    made.on('error', error => report({ client, event: 'client_error', ...plain(error) }))
    if (first) subscribe({ client, ...first })
  },

  subscribe,
  watch: args => watch(args, of(args)),
  loop: args => void loop(args, of(args)),
  close: args => of(args).close(),
  join: args => void of(args).presence.join(args.id, args.info).catch(error => report({ ...args, event: 'join_failed', ...plain(error) })),
  leave: args => void of(args).presence.leave(),

  members: args => report({ client: args.client, channel: args.channel, event: 'members', members: of(args).presence.members }),
  position: ({ client, channel }) => {
    const { position, positions } = of({ client, channel })
    report({ client, channel, event: 'position', position, positions })
  },

  whisper({ client, channel, data }) {
    of({ client, channel })
      .whisper(data)
      .then(
        () => report({ client, channel, event: 'whispered' }),
        error => report({ client, channel, event: 'whisper_failed', ...plain(error) })
      )
  },

  perform,

  // In one task, so that the reply cannot come before.
  perform_and_cut(args) {
    perform(args)
    cuts.reset(clientOf(args).state_of_test.socket)
  },

  // `silent`: the link ends without a sign. The client must notice by itself.
  cut({ client, how = 'reset' }) {
    const { socket } = clients.get(client).state_of_test

    if (how === 'silent') socket._socket?.pause()
    else if (socket.readyState === socket.OPEN) cuts[how](socket)
  },

  block: args => (clientOf(args).state_of_test.blocked = args.blocked),
  disconnect: args => clientOf(args).disconnect(),
  reconnect: args => clientOf(args).reconnect(),
  close_client: args => clientOf(args).close(),

  end({ client: prefix }) {
    for (const [client, made] of clients) {
      if (!client.startsWith(prefix)) continue
      made.close()
      clients.delete(client)
    }
    for (const name of subscriptions.keys()) if (name.startsWith(prefix)) subscriptions.delete(name)
  }
})
