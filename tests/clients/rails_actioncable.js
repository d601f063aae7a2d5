// @rails/actioncable as the tests drive it: one consumer a process, any number of named subscriptions.
// The rule: the library is used as a page would; what it takes from the browser is given to it here, and nothing else.

import ActionCable from '@rails/actioncable'
import { ask, settled } from './calling.js'
import { cuts, obey, say, tellingSocket } from './conversation.js'

globalThis.addEventListener ??= () => {} // its monitor listens for the tab to become visible
globalThis.removeEventListener ??= () => {}

const subscriptions = new Map()
let consumer

obey({
  open({ client, url, staleAfter }) {
    ActionCable.adapters.WebSocket = tellingSocket(client)
    if (staleAfter) ActionCable.ConnectionMonitor.staleThreshold = staleAfter

    consumer = ActionCable.createConsumer(url)
    consumer.connect()
  },

  subscribe({ client, channel, params }) {
    const tell = (event, fields) => say({ client, channel, event, ...fields })

    const subscription = consumer.subscriptions.create(params, {
      connected: ({ reconnected }) => tell('subscribed', { reconnected }),
      disconnected: ({ willAttemptReconnect }) => tell('disconnect', { willAttemptReconnect }),
      rejected: () => tell('rejected'),
      received: message => settled(message) || tell('message', { message })
    })

    subscriptions.set(channel, subscription)
  },

  unsubscribe: ({ channel }) => subscriptions.get(channel).unsubscribe(),
  perform: ({ channel, action, data }) => subscriptions.get(channel).perform(action, data),

  async call({ client, channel, action, data }) {
    const tell = fields => say({ client, channel, event: 'replied', ...fields })

    await ask(subscriptions.get(channel), action, data).then(
      result => tell({ outcome: 'result', result }),
      ({ code, message }) => tell({ outcome: 'error', code, text: message })
    )
  },

  cut: ({ how }) => cuts[how](consumer.connection.webSocket),
  disconnect: () => consumer.disconnect()
})
