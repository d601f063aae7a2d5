// Awaiting the reply to an action of a Python channel, as docs/how-to/python-channels.md shows it for both libraries.

export function call(channel, action, data = {}, timeout = 10_000) {
  return new Promise((resolve, reject) => {
    const id = crypto.randomUUID()
    const timer = setTimeout(() => done(reject, new Error('no reply')), timeout)
    const unbind = channel.on('message', message => {
      if (message?.$reply_to !== id) return
      message.error ? done(reject, Object.assign(new Error(message.error.message), message.error)) : done(resolve, message.result)
    })
    const done = (settle, value) => (clearTimeout(timer), unbind(), settle(value))
    channel.perform(action, { ...data, $reply_to: id }).catch(error => done(reject, error))
  })
}

export const replies = new Map()

export function ask(subscription, action, data = {}, timeout = 10_000) {
  return new Promise((resolve, reject) => {
    const id = crypto.randomUUID()
    const timer = setTimeout(() => replies.delete(id) && reject(new Error('no reply')), timeout)
    replies.set(id, ({ result, error }) => {
      clearTimeout(timer)
      error ? reject(Object.assign(new Error(error.message), error)) : resolve(result)
    })
    subscription.perform(action, { ...data, $reply_to: id })
  })
}

// In `received(message)`: true if it was a reply that somebody awaits.
export function settled(message) {
  const settle = replies.get(message?.$reply_to)
  replies.delete(message?.$reply_to)
  settle?.(message)
  return settle !== undefined
}
