// Drives @rails/actioncable: any number of named consumers and subscriptions in one process.
// The rule: the library is used as in a page. What it takes from the browser is given here, and nothing else.

import ActionCable from '@rails/actioncable'
import { ask, settled } from './calling.js'
import { cuts, execute, report, reportingSocket } from './conversation.js'

globalThis.addEventListener ??= () => {} // its monitor listens for the tab to become visible
globalThis.removeEventListener ??= () => {}

// A slow machine is not a lost link: the monitor acts when a test orders it, not when a ping is late.
ActionCable.ConnectionMonitor.staleThreshold = 1000

const consumers = new Map()
const subscriptions = new Map()

const subscriptionOf = ({ client, channel }) => subscriptions.get(`${client}/${channel}`)
const monitorOf = ({ client }) => consumers.get(client).connection.monitor

// The library takes the class of its sockets from one place for all consumers.
function useSocketsOf(client, connection) {
  const socket = reportingSocket(client)
  const { open } = connection

  connection.open = () => {
    ActionCable.adapters.WebSocket = socket
    return open()
  }
}

execute({
  open({ client, url }) {
    const consumer = ActionCable.createConsumer(url)

    useSocketsOf(client, consumer.connection)
    consumers.set(client, consumer)
    consumer.connect()
  },

  subscribe({ client, channel, params }) {
    const emit = (event, fields) => report({ client, channel, event, ...fields })

    const subscription = consumers.get(client).subscriptions.create(params, {
      connected: ({ reconnected }) => emit('subscribed', { reconnected }),
      disconnected: ({ willAttemptReconnect }) => emit('disconnect', { willAttemptReconnect }),
      rejected: () => emit('rejected'),
      received: message => settled(message) || emit('message', { message })
    })

    subscriptions.set(`${client}/${channel}`, subscription)
  },

  unsubscribe: args => subscriptionOf(args).unsubscribe(),
  perform: args => subscriptionOf(args).perform(args.action, args.data),

  async call(args) {
    const emit = fields => report({ client: args.client, channel: args.channel, event: 'replied', ...fields })

    await ask(subscriptionOf(args), args.action, args.data).then(
      result => emit({ outcome: 'result', result }),
      ({ code, message }) => emit({ outcome: 'error', code, text: message })
    )
  },

  // As if that many seconds passed without a ping.
  elapse({ seconds, ...args }) {
    const monitor = monitorOf(args)

    for (const time of ['startedAt', 'pingedAt', 'disconnectedAt']) if (monitor[time]) monitor[time] -= seconds * 1000
    report({ client: args.client, event: 'elapsed' })
  },

  // What the monitor does at intervals.
  poll(args) {
    report({ client: args.client, event: 'polled', stale: monitorOf(args).connectionIsStale() })
    monitorOf(args).reconnectIfStale()
  },

  cut: ({ client, how }) => cuts[how](consumers.get(client).connection.webSocket),
  disconnect: ({ client }) => consumers.get(client).disconnect(),

  end({ client: prefix }) {
    for (const [client, consumer] of consumers) {
      if (!client.startsWith(prefix)) continue

      consumer.disconnect()
      consumers.delete(client)
    }
    for (const name of subscriptions.keys()) if (name.startsWith(prefix)) subscriptions.delete(name)
  }
})
