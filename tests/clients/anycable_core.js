// Drives @anycable/core: any number of named cables and channels in one process.
// The rule: the library is used as in an application. Only its socket class, tokens and timers are given.

import { createCable } from '@anycable/core'
import { call } from './calling.js'
import { cuts, execute, report, reportingSocket } from './conversation.js'

const NEVER = 1e9 // milliseconds: the cable reconnects when the test orders it
const ANY_PAUSE = 1000 // missing pings: a slow machine is not a lost link

const cables = new Map()
const channels = new Map()

const cableOf = ({ client }) => cables.get(client)
const channelOf = ({ client, channel }) => channels.get(`${client}/${channel}`)

// A silent link: the client abandons it, and the server gets neither FIN nor RST nor a close frame.
function stall(cable) {
  const { ws } = cable.transport

  ws.close = () => delete ws.close // the close frame of the client is lost; the response to a later one is not
  cable.transport.close()
}

function watchCable(client, cable) {
  cable.on('connect', ({ reconnect, restored }) =>
    report({ client, event: 'connect', reconnect, restored, sid: cable.sessionId })
  )
  cable.on('disconnect', error => report({ client, event: 'disconnect', reason: error?.reason }))
  cable.on('close', error => report({ client, event: 'close', reason: error?.reason }))
}

function watchChannel(client, name, channel) {
  const emit = (event, fields) => report({ client, channel: name, event, ...fields })

  channel.on('connect', ({ reconnect, restored }) => emit('subscribed', { reconnect, restored }))
  channel.on('disconnect', error => emit('channel_disconnect', { reason: error?.reason }))
  channel.on('close', error => emit('channel_close', { error: error?.name }))
  channel.on('message', (message, meta) => emit('message', { message, meta }))
  channel.on('info', ({ type }) => emit('info', { type }))
  channel.on('presence', message => emit('presence', message))
}

function subscribeBy(cable, { stream, signed, kind, params }) {
  if (signed) return cable.streamFromSigned(signed)
  if (stream) return cable.streamFrom(stream)
  return cable.subscribeTo(kind, params)
}

execute({
  // `oneByOne`: each message in a task of its own, as in a browser. Otherwise ws brings all messages of a read in one.
  open({ client, url, protocol, since, token, freshToken, authStrategy, reconnectAfter, protocolOptions, oneByOne }) {
    const cable = createCable(url, {
      protocol,
      protocolOptions,
      websocketImplementation: reportingSocket(client),
      websocketOptions: oneByOne && { allowSynchronousEvents: false },
      maxMissingPings: ANY_PAUSE,
      websocketAuthStrategy: authStrategy,
      auth: { token },
      historyTimestamp: since,
      reconnectStrategy: () => reconnectAfter ?? NEVER,
      tokenRefresher: freshToken && (transport => transport.setToken(freshToken))
    })

    cables.set(client, cable)
    watchCable(client, cable)
    cable.connect().catch(() => {}) // the cable's events report it
  },

  subscribe(args) {
    const channel = subscribeBy(cableOf(args), args)

    channels.set(`${args.client}/${args.channel}`, channel)
    watchChannel(args.client, args.channel, channel)
  },

  unsubscribe: args => channelOf(args).disconnect(),
  perform: args => channelOf(args).perform(args.action, args.data),

  async call(args) {
    const emit = fields => report({ client: args.client, channel: args.channel, event: 'replied', ...fields })

    await call(channelOf(args), args.action, args.data).then(
      result => emit({ outcome: 'result', result }),
      ({ code, message }) => emit({ outcome: 'error', code, text: message })
    )
  },

  whisper: args => channelOf(args).whisper(args.data),
  join: args => channelOf(args).presence.join(args.id, args.info),
  leave: args => channelOf(args).presence.leave(),

  async members(args) {
    const members = await channelOf(args).presence.info()

    report({ client: args.client, channel: args.channel, event: 'members', members })
  },

  cut(args) {
    if (args.how === 'stall') return stall(cableOf(args))

    cuts[args.how](cableOf(args).transport.ws)
  },

  reconnect: args => cableOf(args).monitor.reconnectNow(),
  disconnect: args => cableOf(args).disconnect(),

  end({ client: prefix }) {
    for (const [client, cable] of cables) {
      if (!client.startsWith(prefix)) continue

      cable.disconnect()
      cable.monitor.dispose()
      cables.delete(client)
    }
    for (const name of channels.keys()) if (name.startsWith(prefix)) channels.delete(name)
  }
})
