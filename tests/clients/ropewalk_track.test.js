// The positions of one subscription: each once and in order, and no loss without a gap.

import assert from 'node:assert/strict'
import { test } from 'node:test'
import { Track } from '@ropewalk/client'

const message = (offset, { epoch = 'e', stream = 'a' } = {}) => ({ stream_id: stream, epoch, offset, message: offset })
const rejection = (reason, { epoch = 'e', oldest = 1, tip = 0 } = {}) => ({
  reason,
  streams: { a: { reason, epoch, oldest, tip } }
})

// A track at an offset, and what it yields: offsets, and gaps as "reason known-position".
function trackAt(offset, epoch = 'e') {
  const yielded = []
  const text = ({ reason, known, position }) => `${reason} ${known?.offset ?? ''}-${position?.offset ?? ''}`
  const track = new Track(({ gap, position }) => yielded.push(gap ? text(gap) : position.offset))
  if (offset !== undefined) track.positions.set('a', { epoch, offset })
  return { track, yielded }
}

const position = track => track.positions.get('a')

test('a seen position is not repeated', () => {
  const { track, yielded } = trackAt()
  for (const offset of [4, 4, 3, 5]) track.accept(message(offset))
  assert.deepEqual(yielded, [4, 5])
})

test('streams of one subscription have separate positions', () => {
  const { track, yielded } = trackAt(4)
  track.accept(message(1, { stream: 'b' }))
  assert.deepEqual(yielded, [1])
  assert.deepEqual(track.request().streams, { a: { epoch: 'e', offset: 4 }, b: { epoch: 'e', offset: 1 } })
})

test('a skipped offset is not a gap, because publications may exclude the session', () => {
  const { track, yielded } = trackAt(4)
  track.accept(message(6))
  assert.deepEqual(yielded, [6])
})

test('live messages wait for the answer to a request', () => {
  const { track, yielded } = trackAt(4)
  track.request()
  for (const offset of [9, 8, 5, 6, 7]) track.accept(message(offset))
  assert.deepEqual(yielded, [5, 6, 7])
  track.confirmed()
  assert.deepEqual(yielded, [5, 6, 7, 8, 9])
})

test('a lost connection discards the messages that wait, and the next answer has them', () => {
  const { track, yielded } = trackAt(4)
  track.request()
  track.accept(message(7))
  track.lost()
  track.request()
  for (const offset of [5, 6, 7]) track.accept(message(offset))
  track.confirmed()
  assert.deepEqual(yielded, [5, 6, 7])
})

test('a trimmed history is a gap up to the oldest kept message', () => {
  const { track, yielded } = trackAt(4)
  track.request()
  track.rejected(rejection('trimmed', { oldest: 8, tip: 9 }))
  for (const offset of [8, 9]) track.accept(message(offset))
  track.confirmed()
  assert.deepEqual(yielded, ['trimmed 4-7', 8, 9])
})

test('a gap that was received meanwhile is not one', () => {
  const { track, yielded } = trackAt(7)
  track.request()
  track.rejected(rejection('trimmed', { oldest: 8, tip: 9 }))
  assert.deepEqual(yielded, [])
})

test('a position ahead of the stream continues at its tip', () => {
  const { track, yielded } = trackAt(9)
  track.request()
  track.rejected(rejection('ahead', { oldest: 3, tip: 5 }))
  track.confirmed()
  track.accept(message(6))
  assert.deepEqual(yielded, ['ahead 9-5', 6])
})

test('a gap without an epoch keeps the position, and the new epoch is complete from its first message on', () => {
  const { track, yielded } = trackAt(4)
  track.request()
  track.rejected(rejection('epoch_changed', { epoch: '' }))
  track.confirmed()
  assert.deepEqual(position(track), { epoch: 'e', offset: 4 })
  track.accept(message(1, { epoch: 'f' }))
  assert.deepEqual(yielded, ['epoch_changed 4-', 1])
})

test('the first messages of a new epoch are missing if it does not begin with offset 1', () => {
  const { track, yielded } = trackAt(4)
  track.request()
  track.rejected(rejection('epoch_changed', { epoch: '' }))
  track.confirmed()
  track.rejected(rejection('epoch_changed', { epoch: 'f', oldest: 3, tip: 4 }))
  track.accept(message(3, { epoch: 'f' }))
  assert.deepEqual(yielded, ['epoch_changed 4-', 'epoch_changed 4-2', 3])
})

test('a new epoch without a notice is a gap', () => {
  const { track, yielded } = trackAt(4)
  track.accept(message(3, { epoch: 'f' }))
  assert.deepEqual(yielded, ['epoch_changed 4-2', 3])
})

test('a partial answer is not a gap: the rest is requested and live messages wait', () => {
  const { track, yielded } = trackAt(2)
  track.request()
  track.rejected(rejection('partial', { oldest: 5, tip: 6 }))
  track.accept(message(7))
  track.confirmed()
  assert.deepEqual([yielded, track.wantsMore], [[], true])
  assert.deepEqual(track.request().streams, { a: { epoch: 'e', offset: 4 } })
  for (const offset of [5, 6]) track.accept(message(offset))
  track.confirmed()
  assert.deepEqual(yielded, [5, 6, 7])
})

test('unclaimed without a request is a gap that keeps the position', () => {
  const { track, yielded } = trackAt(8)
  track.rejected(rejection('unclaimed', { oldest: 5, tip: 8 }))
  assert.deepEqual([yielded, position(track)], [['unclaimed 8-'], { epoch: 'e', offset: 8 }])
})

test('unclaimed that crosses a request is not a gap: the answer follows', () => {
  const { track, yielded } = trackAt(4)
  track.request()
  track.rejected(rejection('unclaimed', { oldest: 5, tip: 7 }))
  track.accept(message(8))
  for (const offset of [5, 6, 7]) track.accept(message(offset))
  track.confirmed()
  assert.deepEqual(yielded, [5, 6, 7, 8])
})

test('skipped messages of a slow client are a gap that keeps the position', () => {
  const { track, yielded } = trackAt(4)
  track.rejected(rejection('dropped', { oldest: 9, tip: 9 }))
  track.accept(message(9))
  assert.deepEqual(yielded, ['dropped 4-', 9])
})

test('a rejection without positions forgets ours', () => {
  const { track, yielded } = trackAt(4)
  track.request()
  track.rejected({})
  assert.deepEqual(yielded, ['unknown 4-'])
  assert.equal(track.positions.size, 0)
})

test('a tip is the position of a stream without messages only', () => {
  const { track } = trackAt(4)
  track.began({ a: { epoch: 'e', tip: 9 }, b: { epoch: '', tip: 0 } })
  assert.deepEqual(Object.fromEntries(track.positions), { a: { epoch: 'e', offset: 4 }, b: { epoch: '', offset: 0 } })
})
